"""Checkpoints, rollout log, task order: the files of a training run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agentkit.errors import TrainingError
from agentkit.runs import append_jsonl, read_jsonl
from agentkit.training.checkpoint import MARKER, complete_metrics, latest, mark_complete
from agentkit.training.collect import step_tasks
from agentkit.training.rollout_log import Rollout, RolloutLog, pack_log, unpack_log
from agentkit.types import Policy, SessionLog, SessionRecord, Task, Turn


def checkpoint(folder: Path, step: int, marked: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "optimizer.pt").write_bytes(b"x" * 100)
    if marked:
        mark_complete(path, {"step": step - 1})
    return path


def test_the_newest_whole_checkpoint_counts_and_torn_ones_go(tmp_path: Path) -> None:
    checkpoint(tmp_path, 9)
    wanted = checkpoint(tmp_path, 10)
    unmarked = checkpoint(tmp_path, 11, marked=False)
    cut = checkpoint(tmp_path, 12)
    (cut / "optimizer.pt").write_bytes(b"x" * 99)
    broken = checkpoint(tmp_path, 13)
    (broken / MARKER).write_text('{"files": ')
    assert latest(tmp_path) == (wanted, {"step": 9})
    assert not unmarked.exists() and not cut.exists() and not broken.exists()
    assert latest(tmp_path / "none") is None


def test_metrics_have_one_line_for_each_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    complete_metrics(path, None)
    for step in (0, 0, 1, 1):
        complete_metrics(path, {"step": step})
    assert [line["step"] for line in read_jsonl(path)] == [0, 1]
    with pytest.raises(TrainingError, match="last whole checkpoint is after step 0"):
        complete_metrics(path, {"step": 0})


def rollout(status: str = "completed") -> Rollout:
    record = SessionRecord(
        session_id="s", task_id="t", kind="qa", source_id="x", harness="pi", model="m",
        arm="train", status=status, reward=1.0 if status == "completed" else None,
    )  # fmt: skip
    turns = [Turn(0, "m", [1, 2], [3], [-0.1234567890123], {"role": "assistant"}, "stop")]
    log = SessionLog("k", Policy("m", seed=5), turns, [{"type": "budget"}], 1, {"big": "request"})
    return Rollout(record, log)


def test_rollouts_come_back_exactly_and_only_for_their_policy(tmp_path: Path) -> None:
    log = RolloutLog(tmp_path / "rollouts.jsonl")
    good = rollout()
    log.add((3, "t", 0), "sha", good)
    log.add((3, "t", 1), "sha", rollout("engine_error"))
    log.add((3, "t", 2), "other", good)
    log.add((4, "t", 0), "sha", good)
    found = log.finished(3, "sha")
    assert list(found) == [(3, "t", 0)]
    back = found[3, "t", 0]
    assert back.record == good.record and back.log.turns == good.log.turns
    assert back.log.policy == good.log.policy and back.log.events == good.log.events
    assert unpack_log(pack_log(good.log)).first_request is None


def test_a_torn_last_rollout_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    log = RolloutLog(path)
    log.add((0, "t", 0), "sha", rollout())
    log.add((0, "t", 1), "sha", rollout())
    path.write_bytes(path.read_bytes()[:-20])
    assert list(log.finished(0, "sha")) == [(0, "t", 0)]
    append_jsonl(path, {"step": 9, "policy_sha256": ""})
    assert len(read_jsonl(path)) == 2


def tasks(count: int) -> list[Task]:
    return [Task(f"t{i:02d}", "qa", "", {}, {}, {}, {}) for i in range(count)]


@pytest.mark.parametrize(("total", "count"), [(10, 4), (7, 3), (8, 8), (5, 4)])
def test_task_order_goes_through_epochs_without_repeats_in_a_step(total: int, count: int) -> None:
    steps = [step_tasks(tasks(total), s, count, seed=1) for s in range(3 * total)]
    for step in steps:
        assert len({t.task_id for t in step}) == count
    seen = Counter(t.task_id for step in steps for t in step)
    assert max(seen.values()) - min(seen.values()) <= 1
    assert steps[5] == step_tasks(tasks(total), 5, count, seed=1)
    assert steps != [step_tasks(tasks(total), s, count, seed=2) for s in range(3 * total)] or (
        total == count
    )


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(TrainingError, match="4 of 3 tasks"):
        step_tasks(tasks(3), 0, 4, 0)
