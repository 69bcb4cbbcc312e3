"""A real server dies with its parent, tells why it died, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkit.errors import EngineError
from agentkit.serving.engine import Engine, EngineSettings

PARENT = """
import sys, time
from pathlib import Path
from agentkit.serving.engine import Engine, EngineSettings
settings = EngineSettings(sys.argv[1], dtype="float32", max_model_len=512, threads=1)
engine = Engine.start(settings, Path(sys.argv[2])).wait_ready(status=None)
print(engine._process.pid, flush=True)
time.sleep(600)
"""


def session(leader: int) -> dict[int, str]:
    """Living processes of the watchdog's session: pid -> state and name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, tail = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            fields = tail.split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found[int(entry.name)] = head.partition("(")[2]
    return found


def wait_until_gone(leader: int, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while left := session(leader):
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.1)


@pytest.fixture
def parent(tiny_model: Path, tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tiny_model), str(tmp_path / "engine.log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def test_kill_of_the_parent_takes_all_of_vllm(parent: subprocess.Popen[str]) -> None:
    leader = int(parent.stdout.readline())
    assert len(session(leader)) >= 4  # watchdog, API server, engine core, worker
    parent.send_signal(signal.SIGKILL)
    wait_until_gone(leader)


def test_kill_of_the_watchdog_takes_all_of_vllm(parent: subprocess.Popen[str]) -> None:
    leader = int(parent.stdout.readline())
    tree = session(leader)
    assert len(tree) >= 4
    os.kill(leader, signal.SIGKILL)
    wait_until_gone(leader)


def test_kill_of_the_server_is_one_line_and_leaves_nothing(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = EngineSettings(str(tiny_model), dtype="float32", max_model_len=512, threads=1)
    with Engine.start(settings, tmp_path / "engine.log") as engine:
        engine.wait_ready(status=None)
        leader = engine._process.pid
        core = next(pid for pid, name in session(leader).items() if "Engine" in name)
        os.kill(core, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"died") as caught:
            for _ in range(300):
                engine.check()
                time.sleep(0.1)
        assert "\n" not in str(caught.value)
        wait_until_gone(leader)


def test_a_model_that_vllm_refuses_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    settings = EngineSettings(str(tiny_model), extra_args=("--max-model-len", "999999"))
    with (
        Engine.start(settings, tmp_path / "engine.log") as engine,
        pytest.raises(EngineError, match=r"died while starting \(status 1\): .*max_model_len"),
    ):
        engine.wait_ready(status=None)
