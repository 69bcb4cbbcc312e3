"""Layer: boundaries. Single-use sandboxes: ``backend("auto").open(limits=...)``."""

from __future__ import annotations

from agentkit.errors import SandboxError
from agentkit.sandboxes.base import SandboxBackend

CHOICES = ("auto", "bubblewrap", "docker")


def backend(choice: str = "auto") -> SandboxBackend:
    """Return the back end for a ``sandbox:`` parameter. There is no unsandboxed mode.

    Raises SandboxError for an unknown choice and where the program is not installed.
    """
    if choice not in CHOICES:
        raise SandboxError("sandbox", repr(choice), " or ".join(CHOICES))
    if choice == "docker":
        raise SandboxError(
            "sandbox", "'docker'", "'auto' or 'bubblewrap'", "Docker comes with a later release"
        )
    from agentkit.sandboxes.bubblewrap import BubblewrapBackend

    return BubblewrapBackend()
