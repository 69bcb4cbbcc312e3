"""Sessions from task to record: what is graded, what is broken, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentkit import harnesses, sandboxes
from agentkit.rewards import reward
from agentkit.sandboxes.base import Limits
from agentkit.sandboxes.launching import launcher
from agentkit.serving.gateway import Gateway
from agentkit.sessions import SessionSettings, run_session, run_sessions, validate
from agentkit.types import SessionRecord
from tests.integration.session_parts import (
    CHECK,
    DONE,
    WRITE,
    WRONG,
    bash,
    children,
    eventually,
    policy,
    processes,
    task,
)
from tests.scripted_engine import Scripted, ScriptedEngine, always, by_step

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(memory_mb=1024)
SETTINGS = SessionSettings(timeout_s=60, limits=LIMITS, reward_coefficient=0.3, model="m")
SOLVED = {"README.md": b"", "hello.py": b"print(42)\n"}


@pytest.fixture(scope="module")
def parts():
    return {
        "harness": harnesses.get("pi"),
        "backend": sandboxes.backend("bubblewrap"),
        "settings": SETTINGS,
        "arm": "test",
    }


@pytest.fixture(scope="module")
def kit():
    return sandboxes.backend("bubblewrap")


def play(parts, script, **fields):
    job = {**parts, "task": task(), "policy": policy(), **fields}
    with ScriptedEngine(script) as engine, Gateway(engine.url) as gateway:
        return run_session(**job, gateway=gateway)


def test_a_record_says_what_happened(parts):
    result = play(parts, by_step([WRITE, bash("sleep 0.5"), DONE]), adapter="v1", attempt=2, step=3)
    record = result.record
    assert record.model_dump(include={
        "task_id", "kind", "source_id", "harness", "model", "arm", "adapter", "attempt", "step",
        "seed", "status", "reason", "score", "correct", "calls", "turns", "budget_exhausted",
    }) == {
        "task_id": "hello", "kind": "build", "source_id": "d:s", "harness": "pi", "model": "m",
        "arm": "test", "adapter": "v1", "attempt": 2, "step": 3, "seed": 1,
        "status": "completed", "reason": "stop", "score": 1.0, "correct": True, "calls": 2,
        "turns": 3, "budget_exhausted": False,
    }  # fmt: skip
    assert record.reward == reward(1.0, 2, True, 0.3)
    assert record.sampled_tokens == sum(len(t.token_ids) for t in result.log.turns) > 0
    assert record.prompt_tokens == sum(len(t.prompt_token_ids) for t in result.log.turns)
    timing = record.timing
    assert timing["tool_s"] >= 0.5 and timing["harness_s"] < record.duration_s
    spent = timing["overhead_s"] + timing["tool_s"] + timing["model_s"]
    assert spent == pytest.approx(record.duration_s, abs=0.01)
    # it is one line of JSON and comes back the same
    assert SessionRecord.model_validate_json(record.model_dump_json()) == record


def test_a_wrong_answer_scores_zero(parts):
    record = play(parts, by_step([WRONG, DONE])).record
    assert (record.status, record.score, record.correct, record.reward) == (
        "completed", 0.0, False, 0.0,
    )  # fmt: skip


def test_the_hidden_tests_are_absent_while_the_agent_works(parts):
    job = task(CHECK + "# HIDDEN-MARK\n")
    look = (
        "ls -A /tests /logs /solution; find / -xdev -name test.sh 2>/dev/null;"
        "grep -rl HIDDEN-MAR[K] /work /home /tmp /run /etc /dev/shm /tests /logs /solution"
    )
    result = play(parts, by_step([bash(f"{look}; cat /proc/*/environ"), DONE]), task=job)
    [text] = [
        line["message"]["content"][0]["text"]
        for line in map(json.loads, result.transcript.splitlines())
        if line.get("message", {}).get("role") == "toolResult"
    ]
    assert "HIDDEN" not in text and "test.sh" not in text and "/solution:" in text


def test_what_the_agent_left_in_its_sandbox_does_not_reach_the_validator(parts):
    """A planted reward, a changed PATH program and compiled Python stay behind."""
    plant = (
        "mkdir -p /logs/verifier __pycache__; echo 1 > /logs/verifier/reward.txt;"
        "echo 'exit 0' > /tests/test.sh; echo x > __pycache__/hello.cpython-311.pyc;"
        "ln -s /tests/test.sh link; echo 'print(42)' > ~/hello.py; cp ~/hello.py /tmp"
    )
    result = play(parts, by_step([bash(plant), DONE]))
    assert result.record.score == 0.0
    assert "link" not in result.workspace


def test_a_workspace_beyond_the_limit_scores_zero(parts):
    record = play(parts, by_step([WRITE, bash("truncate -s 1G big"), DONE])).record
    assert (record.status, record.score) == ("completed", 0.0)
    assert record.reason == "stop; workspace too large"


@pytest.mark.parametrize(
    ("check", "workspace", "score", "reason"),
    [
        (CHECK, SOLVED, 1.0, ""),
        (CHECK, {}, 0.0, ""),
        # a validator that writes nothing is broken, whatever it is given
        ("exit 0\n", SOLVED, None, "test.sh wrote no number in [0, 1]"),
        ("echo nan > /logs/verifier/reward.txt\n", SOLVED, None,
         "test.sh wrote no number in [0, 1]"),
        ("echo 1.5 > /logs/verifier/reward.txt\n", SOLVED, None,
         "test.sh wrote no number in [0, 1]"),
        ("ln -sf /etc/passwd /logs/verifier/reward.txt\n", SOLVED, None,
         "test.sh wrote no number in [0, 1]"),
        ("echo 0.25 > /logs/verifier/reward.txt\n", SOLVED, 0.25, ""),
        # a submission that breaks a validator which works on the task's own workspace
        ("[ -f lib.sh ] && . ./lib.sh; echo 0 > /logs/verifier/reward.txt\n",
         {"lib.sh": b"exit 0\n"}, 0.0, "the submission broke the validator"),
        # a submission that hangs
        ("echo 0 > /logs/verifier/reward.txt; python3 hello.py\n",
         {"hello.py": b"while True: pass\n"}, 0.0, "validator time limit"),
        # an exit in imported code does not help
        (CHECK, {"hello.py": b"import os; os._exit(0)\n"}, 0.0, ""),
        ("echo 0.5 > /logs/verifier/reward.txt; kill -9 $$\n", SOLVED, 0.5, ""),
    ],
)  # fmt: skip
def test_the_validators_contract(kit, check, workspace, score, reason):
    found = validate(task(check, verifier_timeout_s=3.0), workspace, kit, LIMITS)
    assert (found.score, found.reason) == (score, reason)


def test_a_validator_without_a_number_makes_a_broken_session(parts):
    record = play(parts, by_step([WRITE, DONE]), task=task("true\n")).record
    assert record.status == "validator_error" and record.reward is None and record.score is None


def test_a_sandbox_killed_in_mid_session_is_a_sandbox_error(parts):
    results = []
    script = by_step([bash("sleep 60"), DONE])
    with ScriptedEngine(script) as engine, Gateway(engine.url) as gateway:
        thread = threading.Thread(
            target=lambda: results.append(run_session(task(), policy(), gateway=gateway, **parts))
        )
        thread.start()
        eventually(lambda: processes(lambda line: line.startswith("sleep 60")))
        for child in children(launcher().process.pid):
            os.kill(child, signal.SIGKILL)
        thread.join(30)
    record = results[0].record
    assert record.status == "sandbox_error" and record.score is None and record.reason
    assert not processes(lambda line: line.startswith("sleep 60"))


def test_an_engine_that_is_gone_is_an_engine_error(parts):
    with Gateway("http://127.0.0.1:9") as gateway:
        record = run_session(task(), policy(), gateway=gateway, **parts).record
    assert record.status == "engine_error" and "connection failed" in record.reason


def test_a_gateway_that_is_gone_is_an_engine_error(parts):
    with ScriptedEngine(always(DONE)) as engine:
        gateway = Gateway(engine.url).start()
        gateway.stop()
        record = run_session(task(), policy(), gateway=gateway, **parts).record
    assert record.status in ("engine_error", "sandbox_error") and record.score is None


def test_eight_at_once_are_all_whole(parts):
    script = by_step([WRITE, bash("python3 hello.py"), DONE])
    with ScriptedEngine(script) as engine, Gateway(engine.url) as gateway:
        jobs = [
            {**parts, "gateway": gateway, "task": task(), "policy": policy(seed=i), "attempt": i}
            for i in range(8)
        ]
        told = []
        results = list(run_sessions(jobs, concurrency=8, on_result=lambda j, r: told.append(j)))
    assert sorted(r.record.attempt for r in results) == list(range(8))
    assert {(r.record.status, r.record.score, r.record.calls) for r in results} == {
        ("completed", 1.0, 2)
    }
    assert len(told) == 8
    assert children(launcher().process.pid) == []


def test_leaving_the_loop_early_leaves_nothing_behind(parts):
    script = by_step([Scripted("", [("bash", {"command": "sleep 120"})])])
    quick = task(instruction="quick", agent_timeout_s=0.2)
    settings = SessionSettings(limits=LIMITS)
    with ScriptedEngine(script) as engine, Gateway(engine.url) as gateway:
        common = {**parts, "settings": settings, "gateway": gateway, "policy": policy()}
        jobs = [{**common, "task": quick}] + [{**common, "task": task()} for _ in range(20)]
        started = time.monotonic()
        for _ in run_sessions(jobs, concurrency=3):
            break
        assert time.monotonic() - started < 30
    assert children(launcher().process.pid) == []
    assert not processes(lambda line: line.startswith("sleep 120"))
    assert not [t for t in threading.enumerate() if t.name.startswith("session")]


CHILD = """
import sys
from agentkit import harnesses, sandboxes
from agentkit.serving.gateway import Gateway
from agentkit.sessions import SessionSettings, run_sessions
from tests.integration.session_parts import bash, policy, task
from tests.scripted_engine import ScriptedEngine, always
parts = {"harness": harnesses.get("pi"), "backend": sandboxes.backend("bubblewrap"), "arm": "a",
         "settings": SessionSettings(timeout_s=100), "task": task(), "policy": policy()}
with ScriptedEngine(always(bash("sleep " + sys.argv[1]))) as engine, Gateway(engine.url) as gateway:
    for _ in run_sessions([{**parts, "gateway": gateway}] * 4, concurrency=2):
        pass
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_or_a_kill_takes_all_sessions_down(how):
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, mark], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as child:
        eventually(lambda: len(processes(lambda line: line.startswith(f"sleep {mark}"))) == 2, 60)
        child.send_signal(how)
        eventually(lambda: not processes(lambda line: line.startswith(f"sleep {mark}")))
        _, said = child.communicate(timeout=30)
    assert child.returncode != 0
    if how == signal.SIGINT:
        assert said.strip().endswith("KeyboardInterrupt")
