"""The real pi in the real sandbox, through the real gateway, with a scripted engine."""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentkit import harnesses, sandboxes
from agentkit.harnesses.base import HarnessSettings
from agentkit.sandboxes.base import Limits
from agentkit.sandboxes.launching import launcher
from agentkit.serving.gateway import Gateway
from agentkit.sessions import SessionSettings, probe, run_session
from tests.integration.session_parts import (
    DONE,
    WRITE,
    bash,
    descendants,
    eventually,
    policy,
    processes,
    task,
)
from tests.scripted_engine import Scripted, ScriptedEngine, always, by_step, fault, once

SETTINGS = SessionSettings(timeout_s=60, limits=Limits(memory_mb=1024))


@pytest.fixture(scope="module")
def parts():
    return {"harness": harnesses.get("pi"), "backend": sandboxes.backend("bubblewrap")}


def play(parts, script, *, job=None, settings=SETTINGS, timeout_s=120, **gateway_options):
    with ScriptedEngine(script) as engine, Gateway(engine.url, **gateway_options) as gateway:
        return run_session(
            job or task(), policy(), gateway=gateway, settings=settings, arm="test", **parts
        )


def results(transcript: bytes) -> list[str]:
    """Texts of the tool results in pi's session file."""
    lines = [json.loads(line) for line in transcript.splitlines()]
    messages = [line["message"] for line in lines if line.get("type") == "message"]
    return [m["content"][0]["text"] for m in messages if m["role"] == "toolResult"]


def test_all_four_tools_run_and_are_counted_alike(parts):
    edit = {"path": "hello.py", "edits": [{"oldText": "41", "newText": "42"}]}
    script = by_step(
        [
            Scripted("", [("write", {"path": "hello.py", "content": "print(41)\n"})]),
            Scripted("", [("read", {"path": "README.md"}), ("bash", {"command": "ls; pwd"})]),
            Scripted("", [("edit", edit)]),
            bash("python3 hello.py && exit 3"),
            DONE,
        ]
    )
    result = play(parts, script)
    record = result.record
    assert (record.status, record.score, record.turns, record.calls) == ("completed", 1.0, 5, 5)
    # the gateway's count and the transcript's agree, or the verdict would say so
    assert record.verdict == {}
    texts = results(result.transcript)
    assert texts[1] == "Nothing yet.\n" and "hello.py" in texts[2] and "/work" in texts[2]
    assert "42" in texts[4] and "code 3" in texts[4]
    assert set(result.workspace) == {"README.md", "hello.py"}
    assert json.loads(result.transcript.splitlines()[0])["type"] == "session"


def test_the_first_prompt_is_the_same_bytes_in_eight_parallel_sessions(parts):
    with (
        ScriptedEngine(always(DONE)) as engine,
        Gateway(engine.url) as gateway,
        ThreadPoolExecutor(8) as pool,
    ):
        jobs = [
            pool.submit(
                run_session, task(), policy(seed=i), gateway=gateway, settings=SETTINGS,
                arm="test", **parts,
            )
            for i in range(8)
        ]  # fmt: skip
        logs = [job.result().log for job in jobs]
    prompts = {json.dumps(log.first_request, sort_keys=True) for log in logs}
    assert len(prompts) == 1
    prompt = prompts.pop()
    assert "/work" in prompt
    for foreign in (*(log.key for log in logs), os.getcwd(), "bwrap", str(os.getpid())):
        assert foreign not in prompt
    # and so are its tokens, on which the engine's prefix cache works
    assert len({tuple(log.turns[0].prompt_token_ids) for log in logs}) == 1


def test_settings_reach_the_prompt(parts):
    given = HarnessSettings(system_prompt="You are terse.", tools=("bash", "write"))
    default = probe(**parts, settings=SETTINGS)
    short = probe(**parts, settings=SessionSettings(given))
    assert short["system"].startswith("You are terse.")
    assert [t["function"]["name"] for t in short["tools"]] == ["bash", "write"]
    assert sorted(t["function"]["name"] for t in default["tools"]) == [
        "bash", "edit", "read", "write",
    ]  # fmt: skip
    assert default["version"] == "1.6.0" and len(default["system"]) > len(short["system"])


@pytest.mark.parametrize(
    ("script", "status", "reason", "calls"),
    [
        (by_step([Scripted("", [("write", '{"path": "a", "content": "x')]), DONE]),
         "completed", "stop", 1),
        (by_step([Scripted("", [("no_such_tool", {"a": 1})]), DONE]), "completed", "stop", 1),
        (by_step([Scripted("", [("write", '{"path": "a", "cont')], "length"), DONE]),
         "completed", "stop", 1),
        (always(Scripted("I will")), "completed", "stop", 0),
        (always(Scripted("I will", finish_reason="length")), "completed", "length", 0),
        (always(Scripted("")), "completed", "stop", 0),
        (by_step([WRITE, Scripted("x", fault="overflow")]), "completed", "context_overflow", 1),
        (fault("500"), "engine_error", "engine answered 500", 0),
        (fault("429"), "engine_error", "engine answered 429", 0),
        (fault("cut"), "engine_error", "engine connection failed", 0),
        (fault("400"), "harness_error", "the gateway refused a request", 0),
        (once("500", by_step([WRITE, DONE])), "completed", "stop", 1),
    ],
    ids=["bad json", "unknown tool", "cut call", "text", "cut text", "empty", "overflow", "500",
         "429", "cut", "400", "500 once"],
)  # fmt: skip
def test_faults(parts, script, status, reason, calls):
    record = play(parts, script).record
    assert (record.status, record.calls) == (status, calls), record
    assert record.reason.startswith(reason)
    assert (record.score is None) == (status != "completed")
    assert (record.reward is None) == (status != "completed")


def test_an_engine_that_hangs_is_no_zero(parts):
    settings = SessionSettings(timeout_s=30)
    record = play(parts, fault("hang"), settings=settings, engine_timeout_s=1).record
    assert record.status == "engine_error" and "no answer within 1 s" in record.reason


def test_an_endless_loop_ends_at_the_budget(parts):
    result = play(parts, always(bash("true")))
    record = result.record
    assert (record.status, record.reason) == ("completed", "budget")
    assert record.budget_exhausted and record.turns == record.calls == 15
    assert record.score == 0.0


@pytest.mark.parametrize("moment", ["in a tool", "waiting for the model"])
def test_kill_9_of_pi_is_a_harness_error_with_a_reason(parts, moment):
    if moment == "in a tool":
        script = by_step([bash("echo x > started; sleep 60"), DONE])
    else:
        script = by_step([bash("true"), Scripted("late", delay_s=60)])
    results = []
    with ScriptedEngine(script) as engine, Gateway(engine.url) as gateway:
        thread = threading.Thread(
            target=lambda: results.append(
                run_session(
                    task(), policy(), gateway=gateway, settings=SETTINGS,
                    arm="test", **parts,
                )
            )
        )  # fmt: skip
        thread.start()
        wanted = 1 if moment == "in a tool" else 2
        eventually(lambda: len(engine.requests) >= wanted)
        # pi writes over its command line; its program file tells it from bubblewrap and tools
        family = descendants(launcher().process.pid)
        pids = [p for p in family if Path(f"/proc/{p}/exe").readlink().name == "node"]
        assert len(pids) == 1
        if moment == "in a tool":
            eventually(lambda: processes(lambda line: line.startswith("sleep 60")))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        thread.join(30)
    record = results[0].record
    assert record.status == "harness_error" and "killed by signal 9" in record.reason
    assert ("during a call of bash" in record.reason) == (moment == "in a tool")
    assert record.score is None and record.reward is None
    assert descendants(launcher().process.pid) == []


def test_a_time_limit_kills_pi_and_its_tools_and_grades_what_stands(parts):
    mark = f"{uuid.uuid4().int % 10**9 + 10**9}"
    script = by_step([WRITE, bash(f"setsid sleep {mark} & sleep {mark}")])
    record = play(parts, script, settings=SessionSettings(timeout_s=8)).record
    assert record.status == "timed_out" and record.score == 1.0 and record.reward > 1.0
    assert not processes(lambda line: mark in line)


def test_a_compile_cache_is_made_once_and_used(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTKIT_CACHE", str(tmp_path))
    harness, kit = parts["harness"], parts["backend"]
    assert len(harness.mounts()) == 2
    harness.prepare(kit)
    made = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(made) > 10 and len(harness.mounts()) == 3
    inode = harness.mounts()[-1].source.stat().st_ino
    harness.prepare(kit)
    assert harness.mounts()[-1].source.stat().st_ino == inode
    # Node accepts it: nothing is compiled anew and written out, as it would be to a cache of /tmp
    with kit.open(limits=Limits(memory_mb=1024), mounts=harness.mounts()) as box:
        settings = HarnessSettings()
        box.put(harness.home_files("http://127.0.0.1:9/v1", settings), "/home/agent")
        argv, _ = harness.command("x", settings)
        env = {**harness.environment(settings), "NODE_DEBUG_NATIVE": "COMPILE_CACHE"}
        said = box.exec(argv, timeout_s=60, env=env).stderr.decode(errors="replace")
    assert said.count("was accepted") > 10 and "was rejected" not in said
