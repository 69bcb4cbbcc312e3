"""Layer: boundaries. Agent harnesses, unmodified: ``get("pi")``."""

from __future__ import annotations

from agentkit.errors import HarnessError
from agentkit.harnesses.base import Harness

NAMES = ("pi",)


def get(name: str) -> Harness:
    """Return the harness for a ``harness:`` parameter, checked to be installed.

    Raises HarnessError for an unknown name and where it is missing or of another version.
    """
    if name not in NAMES:
        raise HarnessError("harness", repr(name), " or ".join(NAMES))
    from agentkit.harnesses.pi import PiHarness

    harness = PiHarness()
    harness.check_installed()
    return harness
