"""The standalone gateway: one session by hand, ended by a signal, written to a file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from agentkit.serving.gateway_cli import main
from agentkit.serving.scripted import ScriptedEngine, answer_tokens
from tests.gateway_house import TOOLS, USER
from tests.scripted_engine import OK


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_session_by_hand(tmp_path: Path, number: signal.Signals) -> None:
    record, sock = tmp_path / "log.json", tmp_path / "s"
    with ScriptedEngine(OK) as engine:
        argv = [sys.executable, "-m", "agentkit.serving.gateway", "--engine", engine.url]
        argv += ["--socket", str(sock), "--record", str(record), "--key", "by-hand-1"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert url.endswith("/s/by-hand-1/v1")
            answer = httpx.post(f"{url}/chat/completions", json={"messages": USER, "tools": TOOLS})
            assert answer.status_code == 200
            process.send_signal(number)
            out = process.stdout.read()
        assert process.returncode == 0
    assert "1 turns, 0 calls, events: none" in out
    log = json.loads(record.read_text())
    (turn,) = log["turns"]
    assert turn["token_ids"] == answer_tokens(turn["message"])
    assert not sock.exists()


def test_a_wrong_socket_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--engine", "http://127.0.0.1:9", "--socket", str(tmp_path / ("x" * 120))])
    line = str(exit_.value)
    assert line.startswith("GatewayError: gateway socket") and "\n" not in line
