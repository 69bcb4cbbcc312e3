"""The watchdog ends a server's whole process tree, however the parent goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkit.serving import watchdog

# A server whose child ignores SIGTERM and moves to a session of its own, as a bad worker would.
SERVER = """
import os, signal, subprocess, sys, time
child = "import os,signal,time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
    "open(sys.argv[1] + '/child', 'w').write(str(os.getpid())); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", "import sys; " + child, sys.argv[1]])
open(sys.argv[1] + "/server", "w").write(str(os.getpid()))
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""

PARENT = """
import os, subprocess, sys, time
reader, writer = os.pipe()
command = [sys.executable, "-S", sys.argv[1], str(reader), str(os.getpid()),
           sys.executable, "-c", sys.argv[2], sys.argv[3], "600"]
process = subprocess.Popen(command, pass_fds=(reader,), start_new_session=True)
os.close(reader)
open(sys.argv[3] + "/watchdog", "w").write(str(process.pid))
time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def wait_for(condition, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def pids(folder: Path, *names: str) -> list[int]:
    wait_for(lambda: all((folder / n).is_file() and (folder / n).read_text() for n in names))
    return [int((folder / n).read_text()) for n in names]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_parent_death_ends_the_tree(tmp_path: Path, sign: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, watchdog.__file__, SERVER, str(tmp_path)],
        stderr=subprocess.DEVNULL,
    )
    tree = pids(tmp_path, "watchdog", "server", "child")
    assert not any(map(gone, tree))
    parent.send_signal(sign)
    parent.wait()
    wait_for(lambda: all(map(gone, tree)))


def test_exit_status_of_the_server_is_handed_on_and_its_child_ended(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-S", watchdog.__file__, str(reader), str(os.getpid())]
    command += [sys.executable, "-c", SERVER, str(tmp_path), "0.5"]
    process = subprocess.Popen(command, pass_fds=(reader,), start_new_session=True)
    os.close(reader)
    (child,) = pids(tmp_path, "child")
    assert process.wait(20) == 7
    assert gone(child)
    os.close(writer)


def test_death_of_the_watchdog_takes_the_server(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-S", watchdog.__file__, str(reader), str(os.getpid())]
    command += [sys.executable, "-c", SERVER, str(tmp_path), "600"]
    process = subprocess.Popen(command, pass_fds=(reader,), start_new_session=True)
    os.close(reader)
    server, child = pids(tmp_path, "server", "child")
    process.kill()
    process.wait()
    wait_for(lambda: gone(server))
    os.close(writer)
    os.kill(child, signal.SIGKILL)  # this stand-in asks for no death signal; vLLM's workers do
