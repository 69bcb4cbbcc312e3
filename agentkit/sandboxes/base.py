"""Layer: boundaries. What every sandbox back end offers, whatever enforces it.

A sandbox is single use. The agent's runs in one; validation runs in a second, fresh one.
Paths inside are the same for every session, so that prompts are the same: ``/work`` (workspace,
working directory), ``/home/agent`` (home), ``/tmp``, ``/tests`` and ``/logs`` (validator only),
``/solution`` (reference runs only).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentkit.errors import SandboxError
from agentkit.types import Files

WORK, HOME = "/work", "/home/agent"
GATEWAY_PORT = 8000
"""Loopback port inside the sandbox that the relay forwards to the gateway's socket."""


class TooLarge(SandboxError):
    """Files exceed the limits of ``get``, or do not fit at ``put``: no fault of the sandbox."""


@dataclass(frozen=True)
class Mount:
    """A host path bound read-only at a fixed path inside."""

    source: Path
    target: str


@dataclass(frozen=True)
class Limits:
    """Limits of one sandbox; sizes in MiB. See ``SandboxBackend.enforcement`` for what holds."""

    memory_mb: int = 2048
    disk_mb: int = 64
    processes: int = 128
    cpus: float = 1.0


@dataclass(frozen=True)
class ExecResult:
    """Outcome of one command. ``exit_status`` is None when the time limit killed the tree.

    Output beyond the back end's limit is cut and ``truncated`` is set.
    """

    exit_status: int | None
    stdout: bytes
    stderr: bytes
    duration_s: float
    truncated: bool = False

    @property
    def timed_out(self) -> bool:
        return self.exit_status is None


class Sandbox(ABC):
    """One running sandbox. A context manager: leaving it kills and removes everything."""

    @abstractmethod
    def put(self, files: Files, to: str = WORK) -> None:
        """Write ``files`` below ``to`` (created if missing), owned by the agent's uid.

        Raises TooLarge when they do not fit.
        """

    @abstractmethod
    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a shell line (str, by ``bash -c``) or an argv, then kill all that it left running.

        The time limit kills the whole process tree. Raises SandboxError when the sandbox itself
        is gone.
        """

    @abstractmethod
    def get(self, path: str = WORK, *, max_bytes: int = 16 << 20, max_files: int = 2000) -> Files:
        """Return the regular files below ``path``; links, devices and sockets are left out.

        Raises TooLarge beyond the limits.
        """

    @abstractmethod
    def close(self) -> None:
        """Kill everything inside and remove every trace of it on the host. Idempotent."""

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SandboxBackend(ABC):
    """Makes sandboxes."""

    name: str

    @abstractmethod
    def open(
        self,
        *,
        limits: Limits,
        mounts: Sequence[Mount] = (),
        gateway_socket: Path | None = None,
    ) -> Sandbox:
        """Start a fresh sandbox. With ``gateway_socket`` a relay listens on 127.0.0.1:8000 inside;
        without it there is no network at all. Raises SandboxError."""

    @abstractmethod
    def enforcement(self) -> dict[str, str]:
        """Per limit (``network``, ``filesystem``, ``memory``, ``disk``, ``processes``, ``cpus``,
        ``time``, ...) the word ``enforced``, or ``watched, not enforced: why``, or ``not enforced:
        why``. Written to the manifest; measured on this machine, never assumed."""
