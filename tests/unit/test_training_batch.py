"""Selection of rows for a step: who is in the loss, and with which advantage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from agentkit.training.batch import WeightedRow, pad_rows, select_rows
from agentkit.training.rows import Row
from agentkit.types import Policy, SessionLog, SessionRecord, Turn


@dataclass
class Session:
    record: SessionRecord
    log: SessionLog


def session(name: str, reward: float | None, turns: int = 1, **extra: Any) -> Session:
    record = SessionRecord(
        session_id=name, task_id="t", kind="qa", source_id="s", harness="pi", model="m",
        arm="train", status="completed" if reward is not None else "engine_error", reward=reward,
        **extra,
    )  # fmt: skip
    # Prompts that do not extend one another: one row for each turn.
    log = SessionLog(name, Policy("m"))
    log.turns = [Turn(i, "m", [i], [7, 8], [-1.0, -2.0], {}, "stop") for i in range(turns)]
    return Session(record, log)


def test_advantages_stand_on_all_rows_of_a_session() -> None:
    chosen = select_rows([[session("a", 1.0, turns=3), session("b", 0.0)]])
    assert [(x.session_id, x.advantage) for x in chosen.rows] == [("a", 0.5)] * 3 + [("b", -0.5)]
    assert chosen.tokens == 8
    assert chosen.counts["sessions_in_loss"] == 2
    assert chosen.counts["rows_in_loss"] == 4


def test_broken_sessions_are_out_of_loss_and_baseline() -> None:
    group = [session("a", 1.0), session("b", 0.5), session("broken", None)]
    chosen = select_rows([group])
    assert [x.advantage for x in chosen.rows] == pytest.approx([0.25, -0.25])
    assert "broken" not in {x.session_id for x in chosen.rows}
    assert chosen.counts["broken_sessions"] == 1
    assert chosen.counts["sessions"] == 2


def test_equal_and_small_groups_are_dropped_and_counted() -> None:
    equal = [session("a", 1.0), session("b", 1.0)]
    small = [session("c", 1.0), session("d", None)]
    mixed = [session("e", 1.0), session("f", 0.0), session("g", 0.5)]
    chosen = select_rows([equal, small, mixed])
    assert [x.session_id for x in chosen.rows] == ["e", "f"]
    assert chosen.counts["groups_equal"] == 1 and chosen.counts["groups_small"] == 1
    assert chosen.counts["zero_advantage_sessions"] == 4  # a, b, c and g


def test_optimal_baseline_weighs_sessions_by_their_tokens_probabilities() -> None:
    likely, unlikely = session("a", 1.0), session("b", 0.0)
    likely.log.turns = [Turn(0, "m", [1], [7, 8], [-0.1, 0.0], {}, "stop")]
    unlikely.log.turns = [Turn(0, "m", [1], [7, 8], [-9.0, -0.5], {}, "stop")]
    chosen = select_rows([[likely, unlikely]], baseline="optimal")
    good, bad = (x.advantage for x in chosen.rows)
    short, long = (1 - math.exp(-0.1)) ** 2, (1 - math.exp(-9)) ** 2 + (1 - math.exp(-0.5)) ** 2
    assert good - bad == pytest.approx(1)
    assert good * short + bad * long == pytest.approx(0)


def test_scaling_by_the_standard_deviation() -> None:
    chosen = select_rows([[session("a", 1.0), session("b", 0.0)]], scale_by_std=True)
    assert [x.advantage for x in chosen.rows] == pytest.approx([0.5**0.5, -(0.5**0.5)])


@pytest.mark.parametrize(
    ("count", "multiple", "total"), [(0, 4, 4), (3, 4, 4), (4, 4, 4), (5, 4, 8)]
)
def test_padding_rows_divide_the_batch_and_weigh_nothing(
    count: int, multiple: int, total: int
) -> None:
    rows = [WeightedRow(Row([1] * (k + 1), [2], [1], [-1.0]), 1.0) for k in range(count)]
    padded = pad_rows(rows, multiple, 0)
    assert len(padded) == total
    assert [len(x.row) for x in padded[:count]] == sorted((len(x.row) for x in rows), reverse=True)
    assert all(x.advantage == 0.0 and x.row.sampled == 0 for x in padded[count:])
