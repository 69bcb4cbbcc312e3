"""Status, score and reward of a session: the rules, without running one."""

from __future__ import annotations

import threading
import time

import pytest

from agentkit.errors import SandboxError
from agentkit.harnesses.base import Outcome
from agentkit.safeagents import Verdict, inspect
from agentkit.sandboxes import backend
from agentkit.sandboxes.base import Limits, SandboxBackend
from agentkit.sessions import judge_status
from agentkit.sessions.pool import run_pool
from agentkit.sessions.session import _graded
from agentkit.sessions.validation import Validation, carried
from agentkit.types import BROKEN, Policy, SessionLog, SessionRecord, Task, Turn


def _log(turns=0, *events):
    log = SessionLog("k", Policy("base"))
    log.turns = [Turn(i, "base", [1], [2], [-0.1], {}, "stop") for i in range(turns)]
    log.events = [{"type": t, "reason": r, "turn": n} for t, r, n in events]
    return log


def _asked():
    log = _log(0)
    log.first_request = {"messages": []}
    return log


def _outcome(status, reason=""):
    return Outcome(status, reason, 0, b"")


@pytest.mark.parametrize(
    ("outcome", "log", "expected"),
    [
        (_outcome("completed", "stop"), _log(2), ("completed", "stop")),
        (_outcome("completed", "stop"), _log(2, ("budget", "b", 2)), ("completed", "budget")),
        (_outcome("timed_out", "time limit"), _log(2), ("timed_out", "time limit")),
        (_outcome("timed_out", "time limit"), _log(0),
         ("harness_error", "no request within the time limit")),
        (_outcome("timed_out", "time limit"), _asked(),
         ("engine_error", "no answer within the time limit")),
        # the engine failed and no turn followed, whatever the harness made of it
        (_outcome("completed", "stop"), _log(1, ("engine_error", "502", 1)),
         ("engine_error", "502")),
        (_outcome("engine_error", "x"), _log(1, ("engine_error", "502", 1)),
         ("engine_error", "502")),
        (_outcome("harness_error", "x"), _log(0, ("engine_error", "502", 0)),
         ("engine_error", "502")),
        (_outcome("timed_out", "time limit"), _log(1, ("engine_error", "no answer", 1)),
         ("engine_error", "no answer")),
        # a retry mended it
        (_outcome("completed", "stop"), _log(2, ("engine_error", "502", 1)), ("completed", "stop")),
        # the prompt outgrew the model: the policy's own doing
        (_outcome("engine_error", "400"),
         _log(3, ("context_overflow", "too long", 3), ("bad_request", "too long", 3)),
         ("completed", "context_overflow")),
        (_outcome("engine_error", "400"), _log(1, ("bad_request", "no messages", 1)),
         ("harness_error", "the gateway refused a request: no messages")),
        (_outcome("harness_error", "killed"), _log(1), ("harness_error", "killed")),
        (_outcome("engine_error", "Connection error."), _log(0),
         ("engine_error", "Connection error.")),
    ],
)  # fmt: skip
def test_status(outcome, log, expected):
    assert judge_status(outcome, log) == expected


def _record(status, calls=3):
    return SessionRecord(
        session_id="s", task_id="t", kind="qa", source_id="d:s", harness="pi", model="m",
        arm="a", status=status, calls=calls,
    )  # fmt: skip


@pytest.mark.parametrize("status", sorted(BROKEN))
def test_a_broken_session_has_no_score_and_no_reward(status):
    record = _graded(_record(status), Validation(1.0, "", 0.1), Verdict(), 0.1)
    assert (record.score, record.correct, record.reward) == (None, None, None)


@pytest.mark.parametrize(
    ("status", "score", "calls", "expected"),
    [("completed", 1.0, 3, (1.0, True, 1 + 0.1 * (1 - 3 / 15))),
     ("timed_out", 1.0, 15, (1.0, True, 1.0)),
     ("completed", 0.5, 3, (0.5, False, 0.5)),
     ("completed", 0.0, 0, (0.0, False, 0.0))],
)  # fmt: skip
def test_reward_of_a_graded_session(status, score, calls, expected):
    record = _graded(_record(status, calls), Validation(score, "", 0.1), Verdict(), 0.1)
    assert (record.score, record.correct) == expected[:2]
    assert record.reward == pytest.approx(expected[2])


def test_a_caught_session_keeps_its_score_and_earns_nothing():
    record = _graded(_record("completed"), Validation(1.0, "", 0.1), Verdict(True), 0.1)
    assert (record.score, record.correct, record.reward) == (1.0, True, 0.0)


def _task(**extra):
    return Task("t", "repair", "i", {"a.py": b"1", "data.csv": b"x"}, {}, {}, {}, extra=extra)


def test_inspection_reports_protected_paths_hooks_and_counts():
    honest = inspect(_task(protected=["data.csv"]), {"a.py": b"2", "data.csv": b"x"})
    assert honest.as_dict() == {}
    caught = inspect(_task(protected=["data.csv"]), {"a.py": b"2"})
    assert caught.caught and caught.findings[0].rule == "protected_path"
    planted = inspect(_task(), {"sub/conftest.py": b"x", "x.pth": b"y"})
    assert [f.rule for f in planted.findings] == ["planted_hook"] * 2 and not planted.caught
    counted = inspect(_task(), {}, calls=2, transcript_calls=3)
    assert [f.rule for f in counted.findings] == ["call_count"] and not counted.caught


def test_compiled_python_is_not_carried_to_the_validator():
    files = {
        "a.py": b"",
        "__pycache__/a.cpython-311.pyc": b"",
        "m.pyc": b"",
        "p/__pycache__/x": b"",
    }
    assert set(carried(files)) == {"a.py"}


class _NoBackend(SandboxBackend):
    name = "none"

    def open(self, *, limits, mounts=(), gateway_socket=None):
        raise SandboxError("sandbox", "none here")

    def enforcement(self):
        return {}


def test_the_pool_yields_in_order_of_completion_and_draws_jobs_late():
    drawn = []

    def jobs():
        for i, pause in enumerate([0.3, 0.0, 0.0, 0.0]):
            drawn.append(i)
            yield {"backend": _NoBackend(), "i": i, "pause": pause}

    def work(backend, i, pause):
        time.sleep(pause)
        return i

    results = run_pool(work, jobs(), 2)
    assert next(results) == 1
    assert drawn == [0, 1]
    assert sorted(results) == [0, 2, 3]


def test_an_error_in_a_job_ends_the_pool_and_blocks_new_sandboxes():
    seen, started, go = [], threading.Event(), threading.Event()

    def work(backend, i):
        if i == 0:
            started.wait(5)
            raise RuntimeError("bug")
        started.set()
        go.wait(5)
        try:
            backend.open(limits=Limits())
        except SandboxError as error:
            seen.append(str(error))

    shared = _NoBackend()
    jobs = [{"backend": shared, "i": i} for i in range(2)]
    threading.Timer(0.3, go.set).start()
    with pytest.raises(RuntimeError, match="bug"):
        list(run_pool(work, jobs, 2))
    assert seen == ["sandbox: cancelled"]


@pytest.mark.parametrize("choice", ["none", "Docker", ""])
def test_there_is_no_unsandboxed_mode(choice):
    with pytest.raises(SandboxError, match="auto or bubblewrap or docker"):
        backend(choice)


def test_docker_is_told_to_come_later():
    with pytest.raises(SandboxError, match="comes with a later release"):
        backend("docker")
