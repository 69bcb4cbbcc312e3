"""Layer: pure logic. Everything that is said about one pair of arms, from one paired table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentkit.statistics.bootstrap import ClusterBootstrap, Draws, Interval
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
    flips = int(rng.integers(1 << 31))
    views = _views(table, usable)
    draws = boot.draw(np.concatenate([_columns(*view) for view in views.values()], axis=1))
    quantities = _quantities(draws, views, level)
    missing = _accuracy(table, boot, "missing", usable, quantities["missing"], flips, level)
    everything = np.ones(len(table), dtype=bool)
    failures = _accuracy(table, boot, "failures", everything, quantities["failures"], flips, level)
    counts = missing.table
    gaps = draws.part(*_place(views, "missing")).values(_difference)
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
        calls=quantities["calls"],
        calls_both_solved=quantities.get("calls_both_solved"),
        reward=quantities["reward"],
        by_kind={
            name.removeprefix(KIND): quantity
            for name, quantity in quantities.items()
            if name.startswith(KIND)
        },
        equivalence=equivalence(gaps, margin),
        pass_at_k=_pass_at_k(table, usable),
        discordance=counts.discordance,
        detectable=minimum_detectable_effect(counts.n, counts.discordance),
        unpaired_half_width=unpaired_half_width(
            counts.n, counts.base / counts.n, counts.other / counts.n, level
        ),
        level=level,
        resamples=resamples,
    )


KIND = "kind:"
View = tuple[Array, Array, Array]
"""(weight of each pair, base values, other values), each (pairs,)."""


def _views(table: PairTable, usable: Array) -> dict[str, View]:
    """Everything that gets a mean under both arms, by name."""
    correct = (table.base.correct.astype(float), table.other.correct.astype(float))
    calls = (table.base.columns["calls"], table.other.columns["calls"])
    rewards = (table.base.columns["reward"], table.other.columns["reward"])
    both = usable & table.base.correct & table.other.correct
    weights = table.task_weights(usable)
    views: dict[str, View] = {
        "missing": (weights, *correct),
        "failures": (table.task_weights(np.ones(len(table), dtype=bool)), *correct),
        "calls": (_known(usable, *calls), *calls),
        "reward": (_known(usable, *rewards), *rewards),
    }
    if both.any():
        views["calls_both_solved"] = (_known(both, *calls), *calls)
    for kind in np.unique(table.kind[usable]):
        views[f"{KIND}{kind}"] = (weights * (table.kind == kind), *correct)
    return views


def _place(views: Mapping[str, View], name: str) -> tuple[int, int]:
    """Where a view's three columns stand among all."""
    index = list(views).index(name)
    return 3 * index, 3 * index + 3


def _quantities(draws: Draws, views: Mapping[str, View], level: float) -> dict[str, Quantity]:
    out = {}
    for name, (weights, _, _) in views.items():
        part = draws.part(*_place(views, name))
        intervals = [part.interval(statistic, level) for statistic in STATISTICS]
        out[name] = Quantity(int((weights > 0).sum()), *intervals)
    return out


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


def _accuracy(
    table: PairTable,
    boot: ClusterBootstrap,
    broken_as: Broken,
    mask: Array,
    quantity: Quantity,
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
        quantity=quantity,
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
