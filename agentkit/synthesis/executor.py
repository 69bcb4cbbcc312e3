"""Layer: sources. What synthesis needs of a sandbox, as protocols; it imports no back end.

``agentkit.sandboxes.base.Sandbox`` fits ``Box`` as it is; the work layer passes
``lambda: backend.open(limits=limits)`` as the ``Executor``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from agentkit.types import Files

WORK = "/work"
GUEST = Path(__file__).parent / "guest"
"""Programs that run inside the sandbox: standard library only, never imported by the kit."""


class Done(Protocol):
    """Outcome of one command; ``exit_status`` None: the time limit killed it."""

    @property
    def exit_status(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class Box(Protocol):
    """One fresh sandbox."""

    def put(self, files: Files, to: str = WORK) -> None: ...

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        stdin: bytes = b"",
    ) -> Done: ...

    def get(self, path: str = WORK) -> Files: ...


Executor = Callable[[], AbstractContextManager[Box]]
"""Opens a fresh sandbox without a network."""


def guest_source(name: str) -> str:
    return (GUEST / name).read_text()
