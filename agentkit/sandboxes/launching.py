"""Layer: boundaries. The kit's side of ``launcher.py``: one launcher for each kit process."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentkit.errors import SandboxError

FIRST_FD = 10
"""Descriptors given to bubblewrap are numbered from here on, as in ``launcher.py``."""
_ANSWER_S = 30.0


@dataclass
class Started:
    """A running bubblewrap: its pid and a pipe that ends when its whole namespace is gone."""

    pid: int
    exit_notice: int


def interpreter() -> Path:
    """The Python outside any virtual environment, the same that sandboxes see at /opt/python."""
    folder = Path(sys.base_prefix) / "bin"
    for name in ("python3", f"python3.{sys.version_info.minor}"):
        if (folder / name).exists():
            return folder / name
    raise SandboxError(str(folder), "no python3", "the interpreter that runs the kit")


class Launcher:
    """Handle of the launcher process. Thread-safe."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.staged: dict[tuple[str, int, int], str] = {}
        self.count = int.from_bytes(os.urandom(3), "big")
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(_ANSWER_S)
        script = Path(__file__).with_name("launcher.py")
        env = {"PATH": "/usr/bin:/bin"}
        if "LD_LIBRARY_PATH" in os.environ:
            env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        with theirs:
            numbers = [str(theirs.fileno()), str(os.getpid())]
            self.process = subprocess.Popen(
                [str(interpreter()), "-I", "-S", str(script), *numbers],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal must reach the kit only
                env=env,
                cwd="/",
            )
        self._receive()

    def _receive(self) -> dict[str, object]:
        try:
            message = self.control.recv(1 << 16)
        except OSError as error:
            raise SandboxError("sandbox launcher", f"no answer: {error}") from error
        if not message:
            raise SandboxError("sandbox launcher", "ended", "a running launcher", "try again")
        answer: dict[str, object] = json.loads(message)
        if "error" in answer:
            raise SandboxError("sandbox launcher", str(answer["error"]))
        return answer

    def _ask(self, request: dict[str, object], fds: Sequence[int] = ()) -> dict[str, object]:
        with self.lock:
            try:
                socket.send_fds(self.control, [json.dumps(request).encode()], list(fds))
            except OSError as error:
                raise SandboxError("sandbox launcher", f"gone: {error}") from error
            return self._receive()

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def stage(self, path: Path) -> str:
        """A path under which an unprivileged uid finds ``path`` in the launcher's namespace."""
        if os.geteuid() != 0:
            return str(path)
        try:
            status = path.stat()
        except OSError as error:
            raise SandboxError(str(path), str(error.strerror), "a path to bind") from error
        key = (str(path), status.st_dev, status.st_ino)
        if key not in self.staged:
            self.staged[key] = str(self._ask({"op": "stage", "path": str(path)})["path"])
        return self.staged[key]

    def start(self, argv: Sequence[str], stderr: int, fds: Sequence[int]) -> Started:
        """Start bubblewrap under a fresh uid; ``fds`` become descriptors 10, 11, … inside."""
        with self.lock:
            self.count = (self.count + 1) % (1 << 24)
        ours, theirs = os.pipe()
        try:
            request = {"op": "start", "argv": list(argv), "number": self.count}
            pid = self._ask(request, [stderr, theirs, *fds])["pid"]
        except SandboxError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return Started(int(str(pid)), ours)

    def wait(self, started: Started, timeout_s: float) -> bool:
        """Whether the namespace is gone, waiting up to ``timeout_s`` seconds."""
        return bool(select.select([started.exit_notice], [], [], timeout_s)[0])

    def kill(self, started: Started) -> None:
        self._ask({"op": "kill", "pid": started.pid})

    def stop(self) -> None:
        """End the launcher and every sandbox that it started."""
        self.control.close()
        deadline = time.monotonic() + 5
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)


_current: Launcher | None = None
_current_lock = threading.Lock()


def launcher() -> Launcher:
    """The launcher of this process, started at first use and again where it died."""
    global _current
    with _current_lock:
        if _current is None or not _current.alive():
            _current = Launcher()
        return _current
