"""Layer: boundaries. Runs a server so that it never outlives the process that wanted it.

A script of the standard library alone, started in a session of its own::

    python watchdog.py <pipe fd> <parent pid> <command> [argument ...]

The parent holds the other end of the pipe. When the pipe closes (``stop()``, Ctrl-C, the parent's
death by any signal) or the parent is gone, every process of the session is ended: SIGTERM, then
SIGKILL after ``GRACE_S``. If the watchdog itself is killed, the kernel kills the server's first
process (PR_SET_PDEATHSIG), and the server's workers end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 5.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(expected_parent: int) -> None:
    """Ask the kernel to SIGKILL this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected_parent:  # it died before the request
        os.kill(os.getpid(), signal.SIGKILL)


def members() -> list[int]:
    """Processes of this session and adopted children, without this one."""
    own = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        state, parent, session = fields[0], int(fields[1]), int(fields[3])
        if state != "Z" and (session == own or parent == own):
            found.append(int(entry.name))
    return found


def end_all() -> None:
    """End every member: politely once, then by force until none is left."""
    send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while members() and time.monotonic() < deadline:
        reap()
        time.sleep(0.05)
    while members():
        send(signal.SIGKILL)
        time.sleep(0.05)
        reap()


def send(sign: signal.Signals) -> None:
    """Send a signal to every member."""
    for pid in members():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


def reap() -> None:
    """Collect dead adopted children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> int:
    """Return the server's exit status, or 0 after an ordered stop."""
    pipe, parent, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    own = os.getpid()
    server = subprocess.Popen(command, preexec_fn=lambda: die_with_parent(own))
    while not stopped:
        readable, _, _ = select.select([pipe], [], [], 0.25)
        if readable or os.getppid() != parent:
            break
        if server.poll() is not None:
            end_all()
            return server.returncode if server.returncode >= 0 else 128 - server.returncode
    end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
