"""Layer: pure logic. Everything that is said about one pair of arms, from one paired table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentkit.statistics.bootstrap import ClusterBootstrap, Interval
from agentkit.statistics.design import (
    Equivalence,
    equivalence,
    minimum_detectable_effect,
    unpaired_half_width,
)
from agentkit.statistics.pairing import Broken, PairTable
from agentkit.statistics.proportions import (
    TwoByTwo,
    mcnemar,
    mean_pass_at_k,
    newcombe_paired,
    sign_flip,
    wilson,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Quantity:
    """A mean under both arms, their difference, and the difference relative to the base mean."""

    n: int
    base: Interval
    other: Interval
    difference: Interval
    relative: Interval


@dataclass(frozen=True)
class Accuracy:
    """Paired accuracy. Proportions in [0, 1]; ``difference`` is other minus base.

    ``quantity.n`` counts pairs. ``wilson`` and ``newcombe`` are the closed-form neighbours of the
    bootstrap intervals and take pairs as independent.
    """

    broken_as: Broken
    quantity: Quantity
    table: TwoByTwo
    mcnemar_exact: float
    mcnemar_mid: float
    sign_flip: float
    base_wilson: tuple[float, float]
    other_wilson: tuple[float, float]
    newcombe: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """One cell: two arms on the same tasks. ``missing`` is the headline, ``failures`` beside it."""

    base_arm: str
    other_arm: str
    pairs: int
    tasks: int
    sources: int
    attempts: int
    base_status: dict[str, int]
    other_status: dict[str, int]
    missing: Accuracy
    failures: Accuracy
    calls: Quantity
    calls_both_solved: Quantity | None
    reward: Quantity
    by_kind: dict[str, Quantity]
    equivalence: Equivalence
    pass_at_k: dict[int, dict[str, float | None]]
    discordance: float
    detectable: float | None
    unpaired_half_width: float
    level: float
    resamples: int


def compare(
    table: PairTable,
    rng: np.random.Generator,
    *,
    resamples: int = 10_000,
    level: float = 0.95,
    margin: float = 0.05,
) -> Comparison:
    """Compare two arms.

    Args:
        table: pairs of one cell (model, harness).
        rng: seeded generator; the result is a pure function of table and seed.
        resamples: bootstrap samples.
        level: confidence level of all intervals.
        margin: equivalence margin as a proportion, stated before the run.

    Raises:
        ValueError: no pair in which both arms ended in order.
    """
    usable = table.usable()
    if not usable.any():
        raise ValueError("every pair has a broken session: nothing can be compared")
    boot = ClusterBootstrap(table.source_id, rng, resamples)
    everything = np.ones(len(table), dtype=bool)
    flips = int(rng.integers(1 << 31))
    missing = _accuracy(table, boot, "missing", usable, flips, level)
    failures = _accuracy(table, boot, "failures", everything, flips, level)
    both = usable & table.base.correct & table.other.correct
    correct = (table.base.correct.astype(float), table.other.correct.astype(float))
    calls = (table.base.columns["calls"], table.other.columns["calls"])
    rewards = (table.base.columns["reward"], table.other.columns["reward"])
    weights = table.task_weights(usable)
    drawn = boot.values(_columns(weights, *correct), _difference)
    counts = missing.table
    return Comparison(
        base_arm=table.base.name,
        other_arm=table.other.name,
        pairs=len(table),
        tasks=len(np.unique(table.task_id)),
        sources=boot.size,
        attempts=int(np.bincount(np.unique(table.task_id, return_inverse=True)[1]).max()),
        base_status=table.base.status_counts(),
        other_status=table.other.status_counts(),
        missing=missing,
        failures=failures,
        calls=_quantity(boot, _known(usable, *calls), *calls, level),
        calls_both_solved=_quantity(boot, _known(both, *calls), *calls, level)
        if both.any()
        else None,
        reward=_quantity(boot, _known(usable, *rewards), *rewards, level),
        by_kind={
            str(kind): _quantity(boot, weights * (table.kind == kind), *correct, level)
            for kind in np.unique(table.kind[usable])
        },
        equivalence=equivalence(drawn, margin),
        pass_at_k=_pass_at_k(table, usable),
        discordance=counts.discordance,
        detectable=minimum_detectable_effect(counts.n, counts.discordance),
        unpaired_half_width=unpaired_half_width(
            counts.n, counts.base / counts.n, counts.other / counts.n, level
        ),
        level=level,
        resamples=resamples,
    )


def _known(mask: Array, base: Array, other: Array) -> Array:
    """Weight 1 for each pair that ``mask`` keeps and whose values are known."""
    return (mask & np.isfinite(base) & np.isfinite(other)).astype(float)


def _columns(weights: Array, base: Array, other: Array) -> Array:
    """Columns (Σw, Σw·base, Σw·other), of which every statistic here is a function."""
    kept = weights > 0
    return np.stack(
        [weights, weights * np.where(kept, base, 0.0), weights * np.where(kept, other, 0.0)],
        axis=1,
    )


def _base_mean(totals: Array) -> Array:
    return totals[..., 1] / totals[..., 0]


def _other_mean(totals: Array) -> Array:
    return totals[..., 2] / totals[..., 0]


def _difference(totals: Array) -> Array:
    return (totals[..., 2] - totals[..., 1]) / totals[..., 0]


def _relative(totals: Array) -> Array:
    return (totals[..., 2] - totals[..., 1]) / totals[..., 1]


STATISTICS: tuple[Callable[[Array], Array], ...] = (_base_mean, _other_mean, _difference, _relative)


def _quantity(
    boot: ClusterBootstrap, weights: Array, base: Array, other: Array, level: float
) -> Quantity:
    intervals = boot.intervals(_columns(weights, base, other), STATISTICS, level)
    return Quantity(int((weights > 0).sum()), *intervals)


def _accuracy(
    table: PairTable,
    boot: ClusterBootstrap,
    broken_as: Broken,
    mask: Array,
    flips: int,
    level: float,
) -> Accuracy:
    base, other = table.base.correct, table.other.correct
    counts = TwoByTwo.count(base[mask], other[mask])
    weights = table.task_weights(mask)
    exact, mid = mcnemar(counts.gained, counts.lost)
    gaps = boot.cluster_sums((weights * (other.astype(float) - base))[:, None])[:, 0]
    return Accuracy(
        broken_as=broken_as,
        quantity=_quantity(boot, weights, base.astype(float), other.astype(float), level),
        table=counts,
        mcnemar_exact=exact,
        mcnemar_mid=mid,
        sign_flip=sign_flip(gaps, np.random.default_rng(flips), boot.resamples),
        base_wilson=wilson(counts.base, counts.n, level),
        other_wilson=wilson(counts.other, counts.n, level),
        newcombe=newcombe_paired(counts, level),
    )


def _pass_at_k(table: PairTable, usable: Array) -> dict[int, dict[str, float | None]]:
    """pass@k under both arms for k = 1, 2, 4, … up to the number of attempts."""
    out: dict[int, dict[str, float | None]] = {}
    _, index = np.unique(table.task_id[usable], return_inverse=True)
    order, ends = np.argsort(index, kind="stable"), np.cumsum(np.bincount(index))[:-1]
    attempts = {
        arm.name: [x.tolist() for x in np.split(arm.correct[usable][order], ends)]
        for arm in (table.base, table.other)
    }
    most = int(np.bincount(index).max())
    k = 1
    while k <= most:
        out[k] = {name: mean_pass_at_k(tasks, k) for name, tasks in attempts.items()}
        k *= 2
    return out
