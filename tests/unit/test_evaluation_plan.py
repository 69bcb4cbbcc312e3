"""The plan and its ledger: pairing, one final record each, retries, resume, refusals."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentkit.errors import EngineError, ParamsError, RunError
from agentkit.evaluation import (
    Finished,
    Planned,
    SessionLedger,
    parse_arms,
    plan_sessions,
    run_plan,
)
from agentkit.runs import read_jsonl
from agentkit.types import SessionRecord, Task

ARMS = ("base", "trained")


def task(index: int) -> Task:
    source = {"dataset": "d", "session_id": f"s{index}", "licence": "x"}
    return Task(f"t{index}", "repair", "do it", {}, {"test.sh": b""}, {}, source)


def record(p: Planned, status: str = "completed", name: str = "") -> SessionRecord:
    broken = status not in ("completed", "timed_out")
    return SessionRecord(
        session_id=name or f"{p.task.task_id}-{p.arm}-{p.attempt}",
        task_id=p.task.task_id,
        kind=p.task.kind,
        source_id=p.task.source_id,
        harness="pi",
        model="m",
        arm=p.arm,
        attempt=p.attempt,
        seed=p.seed,
        status=status,  # type: ignore[arg-type]
        score=None if broken else 1.0,
        correct=None if broken else True,
        reward=None if broken else 1.0,
    )


def plan(tasks: int = 3, attempts: int = 1) -> list[Planned]:
    return plan_sessions([task(i) for i in range(tasks)], ARMS, attempts, 0)


def test_arms_are_parsed_and_refused() -> None:
    assert parse_arms(["a=none", "b=/x=y"]) == {"a": "none", "b": "/x=y"}
    for bad in (["a"], ["a="], ["=b"], ["a=none", "a=trained"]):
        with pytest.raises(ParamsError, match="arms"):
            parse_arms(bad)


def test_both_arms_get_the_same_seed_and_stand_next_to_each_other() -> None:
    planned = plan(4, attempts=2)
    assert len({p.key for p in planned}) == len(planned) == 16
    for left, right in zip(planned[::2], planned[1::2], strict=True):
        assert (left.arm, right.arm) == ARMS
        assert (left.task, left.attempt, left.seed) == (right.task, right.attempt, right.seed)
    assert len({p.seed for p in planned}) == 8


def test_a_larger_plan_keeps_the_seeds_of_a_smaller_one() -> None:
    small = {p.key: p.seed for p in plan(2)}
    large = {p.key: p.seed for p in plan(5, attempts=3)}
    assert small.items() <= large.items()


def test_one_final_record_each_and_resume_skips_them(tmp_path: Path) -> None:
    planned, ran = plan(), []

    def execute(pending: Sequence[Planned]) -> Iterator[Finished]:
        for p in pending:
            ran.append(p.key)
            yield Finished(p, record(p))

    first = SessionLedger(tmp_path, planned, 2)
    first.add(Finished(planned[4], record(planned[4])))
    records = run_plan(SessionLedger(tmp_path, planned, 2), execute)
    assert [(r["task_id"], r["arm"], r["attempt"]) for r in records] == [p.key for p in planned]
    assert planned[4].key not in ran
    assert len(ran) == 5
    again = run_plan(SessionLedger(tmp_path, planned, 2), execute)
    assert again == records
    assert len(ran) == 5


def test_broken_sessions_are_retried_to_the_limit_and_kept_apart(tmp_path: Path) -> None:
    planned = plan(2)
    unlucky, recovering = planned[0].key, planned[3].key
    tries: dict[tuple[str, str, int], int] = {}

    def execute(pending: Sequence[Planned]) -> Iterator[Finished]:
        for p in pending:
            tries[p.key] = n = tries.get(p.key, 0) + 1
            bad = p.key == unlucky or (p.key == recovering and n == 1)
            yield Finished(p, record(p, "harness_error" if bad else "completed", f"{p.key}-{n}"))

    records = run_plan(SessionLedger(tmp_path, planned, broken_retries=2), execute)
    by_key = {(r["task_id"], r["arm"], r["attempt"]): r for r in records}
    assert tries == {planned[0].key: 3, planned[1].key: 1, planned[2].key: 1, planned[3].key: 2}
    assert by_key[unlucky]["status"] == "harness_error"
    assert by_key[unlucky]["session_id"] == f"{unlucky}-3"
    assert by_key[recovering]["status"] == "completed"
    assert len(read_jsonl(tmp_path / "sessions.jsonl")) == 4
    assert len(read_jsonl(tmp_path / "broken.jsonl")) == 4


def test_timed_out_is_a_result_and_not_retried(tmp_path: Path) -> None:
    planned = plan(1)
    ledger = SessionLedger(tmp_path, planned, 3)
    assert ledger.add(Finished(planned[0], record(planned[0], "timed_out")))
    assert [p.key for p in ledger.pending()] == [planned[1].key]


def test_tries_are_remembered_over_a_restart(tmp_path: Path) -> None:
    planned = plan(1)
    assert not SessionLedger(tmp_path, planned, 1).add(
        Finished(planned[0], record(planned[0], "sandbox_error"))
    )
    assert SessionLedger(tmp_path, planned, 1).add(
        Finished(planned[0], record(planned[0], "sandbox_error"))
    )


def test_killed_between_the_last_try_and_its_final_record(tmp_path: Path) -> None:
    planned = plan(1)
    broken = record(planned[0], "sandbox_error").model_dump(mode="json")
    (tmp_path / "broken.jsonl").write_text((json.dumps(broken) + "\n") * 2)
    ledger = SessionLedger(tmp_path, planned, broken_retries=1)
    assert [p.key for p in ledger.pending()] == [planned[1].key]
    assert len(read_jsonl(tmp_path / "sessions.jsonl")) == 1
    assert len(SessionLedger(tmp_path, planned, 1).final) == 1


def test_a_torn_last_line_is_run_again(tmp_path: Path) -> None:
    planned = plan(2)
    ledger = SessionLedger(tmp_path, planned, 0)
    for p in planned[:2]:
        ledger.add(Finished(p, record(p)))
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    ledger = SessionLedger(tmp_path, planned, 0)
    assert [p.key for p in ledger.pending()] == [p.key for p in planned[1:]]
    for p in ledger.pending():
        ledger.add(Finished(p, record(p)))
    assert len(read_jsonl(path)) == 4


def test_second_and_foreign_records_are_refused(tmp_path: Path) -> None:
    planned = plan(2)
    ledger = SessionLedger(tmp_path, planned, 0)
    ledger.add(Finished(planned[0], record(planned[0])))
    with pytest.raises(RunError, match="second result"):
        ledger.add(Finished(planned[0], record(planned[0])))
    with pytest.raises(RunError, match="foreign record"):
        SessionLedger(tmp_path, planned[1:], 0)
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(RunError, match="second record"):
        SessionLedger(tmp_path, planned, 0)


def test_a_dead_engine_stops_the_stage_and_costs_no_try(tmp_path: Path) -> None:
    planned = plan(3)

    def dying(pending: Sequence[Planned]) -> Iterator[Finished]:
        yield Finished(pending[0], record(pending[0]))
        yield Finished(pending[1], record(pending[1], "engine_error"))

    def check() -> None:
        raise EngineError("engine", "it died")

    with pytest.raises(EngineError, match="it died"):
        run_plan(SessionLedger(tmp_path, planned, 2), dying, check_engine=check)
    assert len(read_jsonl(tmp_path / "sessions.jsonl")) == 1
    assert read_jsonl(tmp_path / "broken.jsonl") == []


def test_an_engine_error_under_a_living_engine_is_a_try(tmp_path: Path) -> None:
    planned = plan(1)

    def execute(pending: Sequence[Planned]) -> Iterator[Finished]:
        yield from (Finished(p, record(p, "engine_error")) for p in pending)

    records = run_plan(SessionLedger(tmp_path, planned, 1), execute)
    assert {r["status"] for r in records} == {"engine_error"}
    assert len(read_jsonl(tmp_path / "broken.jsonl")) == 4


def test_transcripts_are_kept_beside_the_records(tmp_path: Path) -> None:
    planned = plan(1)
    ledger = SessionLedger(tmp_path, planned, 0, keep_transcripts=True)
    for p in planned:
        ledger.add(Finished(p, record(p), p.arm.encode()))
    kept = {path.name: gzip.decompress(path.read_bytes()) for path in tmp_path.glob("*/*.gz")}
    assert kept == {"t0-base-0.gz": b"base", "t0-trained-0.gz": b"trained"}
