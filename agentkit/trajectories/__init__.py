"""Layer: sources. Public agent traces to ``Trajectory`` objects, whatever program wrote them.

``read_trajectories`` and its streaming form ``iter_trajectories`` take a file, a folder or a Hub
data set id. A file that cannot be used becomes a ``Refusal`` with its name, line and reason, and
the rest goes on. A new format is one reader in one module, one rule in ``detect`` and one entry
in ``READERS``.
"""

from __future__ import annotations

from agentkit.trajectories.reader import READERS, iter_trajectories, read_trajectories
from agentkit.trajectories.refusal import Refusal

__all__ = ["READERS", "Refusal", "iter_trajectories", "read_trajectories"]
