"""The ablation's comparison and its closing statement, from records alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentkit.ablation import Ablation, ablation_of, arm_of
from agentkit.statistics import PairingError


def records(n: int, outcomes: dict[float, tuple[float, float]]) -> list[dict[str, Any]]:
    """``coefficient -> (share solved, calls)``; the first share of the tasks is solved."""
    out = []
    for coefficient, (share, calls) in outcomes.items():
        for i in range(n):
            solved = i < share * n
            out.append(
                {
                    "task_id": f"t{i}", "source_id": f"s{i}", "kind": "qa", "harness": "pi",
                    "model": "m", "arm": arm_of(coefficient), "attempt": 0,
                    "status": "completed", "correct": solved, "score": float(solved),
                    "calls": calls + i % 2, "reward": float(solved), "duration_s": 1.0,
                }
            )  # fmt: skip
    return out


def ablation(n: int, outcomes: dict[float, tuple[float, float]]) -> Ablation:
    return ablation_of(records(n, outcomes), list(outcomes), 0)


def test_points_hold_each_coefficients_own_means_and_the_paired_difference() -> None:
    found = ablation(40, {0.0: (0.5, 6), 0.1: (0.55, 5), 0.3: (0.2, 2)})
    assert [p.coefficient for p in found.points] == [0.0, 0.1, 0.3]
    assert [p.accuracy.estimate for p in found.points] == pytest.approx([0.5, 0.55, 0.2])
    assert [p.calls.estimate for p in found.points] == pytest.approx([6.5, 5.5, 2.5])
    assert found.points[0].comparison is None
    third = found.points[2].comparison
    assert third is not None
    assert third.missing.quantity.difference.estimate == pytest.approx(-0.3)


def test_statement_tells_worse_from_unknown_and_from_unchanged() -> None:
    found = ablation(200, {0.0: (0.7, 6), 0.1: (0.7, 5), 0.3: (0.3, 2)})
    _, first, second, last = found.statement.split("\n\n")
    assert first.startswith("c=0.1") and "unchanged within ±5 points" in first
    assert "fewer calls" in first
    assert second.startswith("c=0.3") and ": worse;" in second
    assert "trained once" in last
    noisy = ablation(8, {0.0: (0.5, 6), 0.1: (0.625, 6)})
    assert "neither a change nor its absence" in noisy.statement
    assert "no difference in calls is shown" in noisy.statement


def test_summary_repeats_digit_by_digit_and_needs_pairs() -> None:
    outcomes = {0.0: (0.5, 6.0), 0.1: (0.6, 5.0)}
    assert ablation(20, outcomes).summary == ablation(20, outcomes).summary
    rows = records(20, outcomes)
    assert ablation_of(rows[::-1], [0.0, 0.1], 0).summary == ablation(20, outcomes).summary
    with pytest.raises(PairingError):
        ablation_of(rows[:-1], [0.0, 0.1], 0)
    assert not np.isnan(ablation(20, outcomes).points[0].calls.estimate or np.nan)
