"""pi's configuration, command line and outcome, without running it."""

from __future__ import annotations

import json

import pytest

from agentkit import harnesses
from agentkit.errors import HarnessError
from agentkit.harnesses.base import HarnessSettings
from agentkit.harnesses.pi import PACKAGE, PiHarness, read_events
from agentkit.sandboxes.base import ExecResult


def _stream(*events, exit_status=0, stderr=b"", truncated=False):
    out = b"".join(json.dumps(e).encode() + b"\n" for e in events)
    return ExecResult(exit_status, out, stderr, 1.0, truncated)


def _says(stop, error=None):
    message = {"role": "assistant", "content": [], "stopReason": stop}
    if error:
        message["errorMessage"] = error
    return {"type": "message_end", "message": message}


def _start(i):
    return {"type": "tool_execution_start", "toolCallId": str(i), "toolName": "bash", "args": {}}


def _end(i, ms=250):
    return {"type": "tool_execution_end", "toolCallId": str(i), "durationMs": ms, "isError": False}


END = {"type": "agent_end", "messages": []}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (_stream(_says("toolUse"), _start(1), _end(1), _says("stop"), END),
         ("completed", "stop", 1, 0.25)),
        (_stream(_says("length"), END), ("completed", "length", 0, 0.0)),
        # pi exits 0 even where the endpoint failed it
        (_stream(_says("error", "500 boom"), END), ("engine_error", "500 boom", 0, 0.0)),
        # a first error that a retry mended
        (_stream(_says("error", "500"), _says("stop"), END), ("completed", "stop", 0, 0.0)),
        (_stream(_says("toolUse"), _start(1), exit_status=-9),
         ("harness_error", "killed by signal 9 during a call of bash", 0, 0.0)),
        (_stream(_says("toolUse"), _start(1), _end(1), exit_status=-9),
         ("harness_error", "killed by signal 9", 1, 0.25)),
        (_stream(exit_status=1, stderr=b"warning\nSyntaxError: x\n"),
         ("harness_error", "exit status 1: SyntaxError: x", 0, 0.0)),
        (_stream(END), ("harness_error", "no assistant message", 0, 0.0)),
        (_stream(_says("toolUse"), _start(1), exit_status=None),
         ("timed_out", "time limit", 0, 0.0)),
        (_stream(_says("stop"), truncated=True), ("completed", "stop", 0, 0.0)),
    ],
)  # fmt: skip
def test_outcome_is_read_from_the_events(result, expected):
    assert read_events(result) == expected


def test_a_torn_last_line_is_left_out():
    result = _stream(_says("stop"), END)
    torn = ExecResult(0, result.stdout + b'{"type": "tool_execution_e', b"", 1.0)
    assert read_events(torn) == ("completed", "stop", 0, 0.0)


def test_settings_reach_the_configuration():
    settings = HarnessSettings(context_window=4096, max_tokens=99, request_timeout_s=7.5)
    files = PiHarness().home_files("http://127.0.0.1:8000/s/k/v1", settings)
    provider = json.loads(files[".pi/agent/models.json"])["providers"]["local"]
    assert provider["baseUrl"] == "http://127.0.0.1:8000/s/k/v1"
    assert provider["models"][0]["contextWindow"] == 4096
    assert provider["models"][0]["maxTokens"] == 99
    config = json.loads(files[".pi/agent/settings.json"])
    assert config["httpIdleTimeoutMs"] == config["retry"]["provider"]["timeoutMs"] == 7500
    assert config["compaction"]["enabled"] is False


def test_command_line():
    argv, stdin = PiHarness().command("do it; rm -rf /", HarnessSettings())
    assert argv[-2:] == ["-p", "do it; rm -rf /"] and stdin == b""
    assert "--system-prompt" not in argv and "--tools" not in argv
    given = HarnessSettings(system_prompt="You are.", tools=("bash", "write"))
    argv, _ = PiHarness().command("x", given)
    assert argv[argv.index("--system-prompt") + 1] == "You are."
    assert argv[argv.index("--tools") + 1] == "bash,write"


@pytest.mark.parametrize(
    ("package", "message"),
    [(None, "no pi"), ('{"version": "1.5.9"}', "pi 1.5.9"), ("{", "no pi"),
     ('{"version": "1.6.0"}', "node/bin/node")],
)  # fmt: skip
def test_a_missing_or_other_installation_is_told_in_one_line(
    tmp_path, monkeypatch, package, message
):
    monkeypatch.setenv("AGENTKIT_NODE_DIR", str(tmp_path))
    if package is not None:
        folder = tmp_path / "node_modules" / PACKAGE
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(package)
    with pytest.raises(HarnessError, match=message) as caught:
        harnesses.get("pi")
    assert "make setup" in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_harness_is_refused():
    with pytest.raises(HarnessError, match="'codex'"):
        harnesses.get("codex")
