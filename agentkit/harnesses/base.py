"""Layer: boundaries. What the kit needs to know of an agent harness. The harness is unmodified.

A new harness is one subclass in one file plus its name in a params file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from agentkit.sandboxes.base import ExecResult, Mount, Sandbox, SandboxBackend
from agentkit.types import Files


@dataclass(frozen=True)
class HarnessSettings:
    """Settings of a run that every harness maps to its own documented configuration.

    ``system_prompt`` None and ``tools`` empty mean the harness's own defaults.
    """

    system_prompt: str | None = None
    tools: tuple[str, ...] = ()
    context_window: int = 65536
    max_tokens: int = 256
    request_timeout_s: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """How the harness itself says that its run ended.

    ``status`` is ``completed``, ``timed_out``, ``engine_error`` (the endpoint failed it) or
    ``harness_error``; ``calls`` counts the tool executions that the transcript shows, and
    ``tool_s`` is the time they took in seconds where it tells.
    """

    status: str
    reason: str
    calls: int
    transcript: bytes
    tool_s: float = 0.0


class Harness(ABC):
    """One harness at one fixed version."""

    name: str
    version: str

    @abstractmethod
    def check_installed(self) -> None:
        """Raise HarnessError with the command that installs it, where it is missing or of another
        version."""

    @abstractmethod
    def mounts(self) -> Sequence[Mount]:
        """Program files, bound read-only at fixed paths."""

    def prepare(self, backend: SandboxBackend) -> None:  # noqa: B027 - optional for a harness
        """Make what every later session profits from; called before each session, and quick when
        all is there. Nothing by default."""

    @abstractmethod
    def home_files(self, base_url: str, settings: HarnessSettings) -> Files:
        """Configuration files, relative to the home directory."""

    @abstractmethod
    def environment(self, settings: HarnessSettings) -> dict[str, str]:
        """Environment of the process; the sandbox adds nothing of the host's."""

    @abstractmethod
    def command(self, instruction: str, settings: HarnessSettings) -> tuple[list[str], bytes]:
        """Return (argv, stdin)."""

    @abstractmethod
    def outcome(self, result: ExecResult, sandbox: Sandbox) -> Outcome:
        """Read the outcome from the run's output and transcript, never from the exit status
        alone."""
