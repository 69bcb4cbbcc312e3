"""Pairing and the cluster bootstrap: refusals, identities, scipy as a second opinion, coverage."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap

from agentkit.statistics import (
    ClusterBootstrap,
    PairingError,
    compare,
    pair_records,
)

Row = dict[str, Any]


def row(task: str, arm: str, correct: bool | None, **more: Any) -> Row:
    status = "completed" if correct is not None else "sandbox_error"
    score = None if correct is None else float(correct)
    return {
        "task_id": task, "source_id": f"source-{task}", "kind": "repair", "harness": "pi",
        "arm": arm, "attempt": 0, "status": status, "correct": correct, "score": score,
        "calls": 4, "reward": score, "duration_s": 1.0, **more,
    }  # fmt: skip


def rows_of(both: int, gained: int, lost: int, neither: int) -> list[Row]:
    outcomes = (
        [(True, True)] * both + [(False, True)] * gained
        + [(True, False)] * lost + [(False, False)] * neither
    )  # fmt: skip
    out = []
    for i, (base, other) in enumerate(outcomes):
        out += [row(f"t{i:03}", "base", base), row(f"t{i:03}", "trained", other)]
    return out


def mean_difference(totals: np.ndarray) -> np.ndarray:
    return totals[..., 1] / totals[..., 0]


# --- pairing ---------------------------------------------------------------------------------


def test_pairing_does_not_depend_on_the_order_of_records() -> None:
    rows = rows_of(5, 3, 2, 1)
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    one, two = pair_records(rows, "base", "trained"), pair_records(shuffled, "base", "trained")
    assert (one.task_id == two.task_id).all()
    assert (one.other.correct == two.other.correct).all()


def test_unpaired_arms_are_refused_with_the_task_named() -> None:
    rows = rows_of(3, 0, 0, 0)[:-1]
    with pytest.raises(PairingError, match=r"1 sessions have no partner \(t002 attempt 0\)"):
        pair_records(rows, "base", "trained")


def test_other_refusals() -> None:
    rows = rows_of(3, 0, 0, 0)
    with pytest.raises(PairingError, match="no session of arm 'nobody'"):
        pair_records(rows, "base", "nobody")
    with pytest.raises(PairingError, match="two final sessions of task t000"):
        pair_records([*rows, rows[0]], "base", "trained")
    with pytest.raises(PairingError, match="sources"):
        pair_records([*rows[:-1], {**rows[-1], "source_id": "x"}], "base", "trained")
    with pytest.raises(PairingError, match="without a result"):
        pair_records([*rows[:-1], {**rows[-1], "correct": None}], "base", "trained")


def test_same_task_under_two_harnesses_makes_two_pairs() -> None:
    rows = rows_of(2, 1, 0, 0)
    rows += [{**r, "harness": "opencode"} for r in rows]
    assert len(pair_records(rows, "base", "trained")) == 6
    assert len(pair_records(rows, "base", "trained", harness="pi")) == 3


# --- bootstrap -------------------------------------------------------------------------------


def test_bootstrap_agrees_with_scipy_percentile_and_bca() -> None:
    values = np.random.default_rng(1).gamma(2.0, 1.0, size=60)
    boot = ClusterBootstrap([str(i) for i in range(60)], np.random.default_rng(2), 40_000)
    ours = boot.interval(np.stack([np.ones(60), values], axis=1), mean_difference)
    for method, low, high in [
        ("percentile", ours.low, ours.high),
        ("BCa", ours.bca_low, ours.bca_high),
    ]:
        theirs = scipy_bootstrap(
            (values,), np.mean, n_resamples=40_000, method=method,
            rng=np.random.default_rng(3), batch=2000,
        ).confidence_interval  # fmt: skip
        assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_bootstrap_agrees_with_full_enumeration_of_a_small_case() -> None:
    # Four clusters have 4^4 equally likely resamples: the percentiles can be had exactly.
    sums, sizes = np.array([2.0, -1.0, 0.0, 1.0]), np.array([2.0, 1.0, 3.0, 1.0])
    exact = [
        sums[list(draw)].sum() / sizes[list(draw)].sum() for draw in product(range(4), repeat=4)
    ]
    labels = np.repeat(["a", "b", "c", "d"], sizes.astype(int))
    rows = np.repeat(sums / sizes, sizes.astype(int))
    boot = ClusterBootstrap(labels, np.random.default_rng(0), 60_000)
    drawn = boot.draw(np.stack([np.ones(7), rows], axis=1)).values(mean_difference)
    for value in np.unique(np.round(exact, 9)):
        share = np.mean(np.round(exact, 9) == value)
        assert np.mean(np.round(drawn, 9) == value) == pytest.approx(share, abs=0.01)


def test_bootstrap_moves_whole_clusters() -> None:
    # Ten copies of a task inside one source carry no more information than one.
    outcomes = np.random.default_rng(5).integers(-1, 2, size=40).astype(float)
    one = ClusterBootstrap(np.arange(40).astype(str), np.random.default_rng(7), 8000)
    ten = ClusterBootstrap(np.repeat(np.arange(40), 10).astype(str), np.random.default_rng(7), 8000)
    narrow = one.interval(np.stack([np.ones(40), outcomes], 1), mean_difference)
    copied = ten.interval(np.stack([np.ones(400), np.repeat(outcomes, 10)], 1), mean_difference)
    assert (copied.low, copied.high) == pytest.approx((narrow.low, narrow.high))
    assert (copied.bca_low, copied.bca_high) == pytest.approx((narrow.bca_low, narrow.bca_high))
    apart = ClusterBootstrap(np.arange(400).astype(str), np.random.default_rng(7), 8000)
    wrong = apart.interval(np.stack([np.ones(400), np.repeat(outcomes, 10)], 1), mean_difference)
    assert wrong.half_width is not None and narrow.half_width is not None
    assert wrong.half_width < 0.45 * narrow.half_width


def test_bootstrap_is_deterministic_and_blocks_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = [str(i) for i in range(30)]
    whole = ClusterBootstrap(labels, np.random.default_rng(9), 500).weights
    monkeypatch.setattr("agentkit.statistics.bootstrap.BLOCK", 70)
    assert (ClusterBootstrap(labels, np.random.default_rng(9), 500).weights == whole).all()
    assert (whole.sum(axis=1) == 30).all()


def test_bootstrap_without_spread_and_without_value() -> None:
    boot = ClusterBootstrap(["a", "b"], np.random.default_rng(0), 100)
    flat = boot.interval(np.ones((2, 2)), mean_difference)
    assert (flat.low, flat.high, flat.bca_low, flat.bca_high) == (1, 1, 1, 1)
    with np.errstate(invalid="ignore"):
        empty = boot.interval(np.zeros((2, 2)), mean_difference)
    assert empty.estimate is None
    assert empty.low is None


@pytest.mark.parametrize("copies", [1, 2])
def test_coverage_of_95_percent_intervals(copies: int) -> None:
    # 150 pairs: one for each source, or 75 sources of two tasks that turn out alike.
    rng, units, experiments = np.random.default_rng(11), 150 // copies, 2000
    labels = np.repeat(np.arange(units), copies).astype(str)
    whole = ClusterBootstrap(labels, np.random.default_rng(12), 2000)
    single = ClusterBootstrap(np.arange(150).astype(str), np.random.default_rng(12), 2000)
    truth, hits = 0.10, np.zeros(3)
    for _ in range(experiments):
        drawn = rng.choice([1.0, -1.0, 0.0], p=[0.16, 0.06, 0.78], size=units)
        columns = np.stack([np.ones(150), np.repeat(drawn, copies)], axis=1)
        found, naive = (b.interval(columns, mean_difference) for b in (whole, single))
        limits = [(found.low, found.high), (found.bca_low, found.bca_high), (naive.low, naive.high)]
        hits += [low - 1e-9 <= truth <= high + 1e-9 for low, high in limits]  # type: ignore[operator]
    coverage = hits / experiments
    assert ((coverage[:2] >= 0.93) & (coverage[:2] <= 0.97)).all()
    if copies == 2:  # tasks taken as independent: the interval is too narrow, and it shows
        assert coverage[2] < 0.90


# --- compare ---------------------------------------------------------------------------------


def test_compare_on_the_reconstructed_table_gives_the_published_digits() -> None:
    table = pair_records(rows_of(98, 19, 5, 27), "base", "trained")
    found = compare(table, np.random.default_rng(0))
    difference = found.missing.quantity.difference
    assert difference.estimate == pytest.approx(14 / 149)
    assert difference.half_width is not None
    assert 100 * difference.half_width == pytest.approx(6.3, abs=0.2)
    assert found.missing.mcnemar_exact == pytest.approx(0.00661, abs=1e-5)
    assert found.missing == found.missing.__class__(
        **{**found.failures.__dict__, "broken_as": "missing"}
    )


def test_compare_ten_thousand_resamples_within_a_second_and_repeatable() -> None:
    table = pair_records(rows_of(98, 19, 5, 27), "base", "trained")
    start = time.process_time()
    first = compare(table, np.random.default_rng(4))
    assert time.process_time() - start < 1.0
    assert first == compare(table, np.random.default_rng(4))
    assert first != compare(table, np.random.default_rng(5))


def test_broken_sessions_as_missing_and_as_failures() -> None:
    rows = rows_of(6, 2, 1, 1)
    rows[1] = row("t000", "trained", None)
    found = compare(pair_records(rows, "base", "trained"), np.random.default_rng(0), resamples=200)
    assert found.other_status == {"completed": 9, "sandbox_error": 1}
    assert found.missing.quantity.n == 9
    assert found.missing.quantity.difference.estimate == pytest.approx((2 - 1) / 9)
    assert found.failures.quantity.n == 10
    assert found.failures.quantity.difference.estimate == pytest.approx((2 - 2) / 10)
    assert found.calls.n == 9


def test_all_broken_cannot_be_compared() -> None:
    rows = [row("t", "base", None), row("t", "trained", None)]
    with pytest.raises(ValueError, match="nothing can be compared"):
        compare(pair_records(rows, "base", "trained"), np.random.default_rng(0), resamples=10)


def test_calls_on_all_and_on_both_solved() -> None:
    rows = rows_of(2, 1, 0, 1)
    calls = [(10, 6), (8, 6), (20, 5), (15, 15)]
    for i, (base, other) in enumerate(calls):
        rows[2 * i]["calls"], rows[2 * i + 1]["calls"] = base, other
    found = compare(pair_records(rows, "base", "trained"), np.random.default_rng(0), resamples=200)
    assert found.calls.difference.estimate == pytest.approx((32 - 53) / 4)
    assert found.calls.relative.estimate == pytest.approx(32 / 53 - 1)
    assert found.calls_both_solved is not None
    assert found.calls_both_solved.n == 2
    assert found.calls_both_solved.difference.estimate == pytest.approx(-3.0)


def test_each_task_counts_once_whatever_its_attempts() -> None:
    rows = []
    # Task a: gained in every attempt; task b: one attempt is left, unchanged.
    for attempt in range(4):
        broken = attempt > 0
        rows += [
            row("a", "base", False, attempt=attempt),
            row("a", "trained", True, attempt=attempt),
        ]
        rows += [
            row("b", "base", None if broken else True, attempt=attempt),
            row("b", "trained", True, attempt=attempt),
        ]
    found = compare(pair_records(rows, "base", "trained"), np.random.default_rng(0), resamples=200)
    assert found.missing.quantity.difference.estimate == pytest.approx(0.5)
    assert found.attempts == 4
    assert found.pass_at_k[4] == {"base": 0.0, "trained": 1.0}
    assert found.pass_at_k[1] == {"base": 0.5, "trained": 1.0}


def test_kinds_add_up_to_the_whole() -> None:
    rows = rows_of(20, 8, 3, 9)
    for i, r in enumerate(rows):
        r["kind"] = ["repair", "build", "qa"][(i // 2) % 3]
    found = compare(pair_records(rows, "base", "trained"), np.random.default_rng(0), resamples=300)
    total = sum((q.difference.estimate or 0) * q.n for q in found.by_kind.values())
    assert total / 40 == pytest.approx(found.missing.quantity.difference.estimate)
