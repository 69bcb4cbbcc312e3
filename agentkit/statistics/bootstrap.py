"""Layer: pure logic. The paired cluster bootstrap, percentile and BCa, vectorised.

The unit that is resampled is the whole source trajectory (``source_id``): tasks that were cut out
of one trajectory, and all attempts at a task, move together, because their outcomes are not
independent (Miller 2024, arXiv 2411.00640, section 3.2). Both arms move together too, which is
what makes the interval a paired one.

Every statistic is a function of column totals, so one matrix of resampling weights serves them
all: ``totals = weights @ cluster_sums``. Formulas: Efron & Tibshirani 1993, chapters 13 and 14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[Any]
Statistic = Callable[[Array], Array]
"""Maps column totals ``(..., k)`` to a value ``(...)``."""

BLOCK = 1 << 22
"""Weights turned into floats at a time: bounds the memory at 32 MiB whatever the data's size."""
DECIMALS = 12
"""Resampled values are rounded here, so that ties with the estimate are ties on every machine."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its percentile and BCa limits, in the estimate's own unit.

    Where the statistic is undefined (no both-solved pair, say) all values are None.
    """

    estimate: float | None
    low: float | None
    high: float | None
    bca_low: float | None
    bca_high: float | None
    level: float = 0.95

    @property
    def half_width(self) -> float | None:
        """Half the width of the percentile interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Draws:
    """Column totals: observed (k,), of every resample (B, k), with one cluster left out (C, k)."""

    total: Array
    drawn: Array
    left_out: Array

    def part(self, start: int, stop: int) -> Draws:
        """The columns ``start`` to ``stop``; statistics number theirs from 0."""
        return Draws(
            self.total[start:stop], self.drawn[:, start:stop], self.left_out[:, start:stop]
        )

    def interval(self, statistic: Statistic, level: float = 0.95) -> Interval:
        """Estimate ``statistic`` of the column totals, with both kinds of limits.

        Args:
            statistic: function of totals ``(..., k)``.
            level: confidence level in (0, 1).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            observed = float(statistic(self.total))
            if not np.isfinite(observed):
                return Interval(None, None, None, None, None, level)
            left_out = np.asarray(statistic(self.left_out), dtype=float)
        return _interval(observed, self.values(statistic), left_out, level)

    def values(self, statistic: Statistic) -> Array:
        """Resampled values of ``statistic``, at most (B,); undefined resamples are left out."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.asarray(statistic(self.drawn), dtype=float)
        return values[np.isfinite(values)]


class ClusterBootstrap:
    """Resamples clusters with replacement, each as a whole.

    Args:
        clusters: label of each row, shape (n,).
        rng: seeded generator; used once, here.
        resamples: number of bootstrap samples B.

    Raises:
        ValueError: no rows, or fewer than one resample.
    """

    def __init__(
        self, clusters: Sequence[str] | Array, rng: np.random.Generator, resamples: int = 10_000
    ) -> None:
        labels, self.index = np.unique(np.asarray(clusters), return_inverse=True)
        if len(labels) == 0 or resamples < 1:
            raise ValueError(f"{len(labels)} clusters and {resamples} resamples cannot be used")
        self.size, self.resamples = len(labels), resamples
        self.weights = np.empty((resamples, self.size), dtype=np.uint8)
        step = max(1, BLOCK // self.size)
        for start in range(0, resamples, step):
            rows = min(step, resamples - start)
            drawn = rng.integers(0, self.size, size=(rows, self.size))
            drawn += np.arange(rows)[:, None] * self.size
            counts = np.bincount(drawn.ravel(), minlength=rows * self.size)
            self.weights[start : start + rows] = counts.reshape(rows, self.size)

    def cluster_sums(self, columns: Array) -> Array:
        """Sum rows ``(n, k)`` within clusters: ``(clusters, k)``."""
        sums = np.zeros((self.size, columns.shape[1]))
        np.add.at(sums, self.index, columns)
        return sums

    def draw(self, columns: Array) -> Draws:
        """Totals of all columns at once: statistics of the same resamples share one product.

        Args:
            columns: rows in the order of ``clusters``, shape (n, k), finite.
        """
        sums = self.cluster_sums(np.asarray(columns, dtype=float))
        step = max(1, BLOCK // self.size)
        blocks = [
            self.weights[start : start + step].astype(float) @ sums
            for start in range(0, self.resamples, step)
        ]
        total = sums.sum(axis=0)
        return Draws(total, np.concatenate(blocks), total - sums)

    def interval(self, columns: Array, statistic: Statistic, level: float = 0.95) -> Interval:
        """``draw(columns).interval(statistic, level)``, for a single statistic."""
        return self.draw(columns).interval(statistic, level)


def _interval(observed: float, values: Array, left_out: Array, level: float) -> Interval:
    values = np.round(values, DECIMALS)
    if len(values) == 0:
        return Interval(observed, None, None, None, None, level)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    levels = bca_levels(observed, values, left_out[np.isfinite(left_out)], level)
    bca_low, bca_high = np.quantile(values, levels)
    return Interval(observed, float(low), float(high), float(bca_low), float(bca_high), level)


def bca_levels(
    observed: float, values: Array, left_out: Array, level: float = 0.95
) -> tuple[float, float]:
    """Quantile levels of the bias-corrected and accelerated interval.

    Efron & Tibshirani 1993, equations 14.10 (limits), 14.14 (bias correction; a value that ties
    with the estimate counts one half) and 14.15 (acceleration from leave-one-cluster-out values).

    Args:
        observed: the estimate.
        values: resampled values, shape (B,).
        left_out: estimates with one cluster left out, shape (clusters,).
    """
    centre = np.round(observed, DECIMALS)
    below = ((values < centre).sum() + (values == centre).sum() / 2) / len(values)
    bias = ndtri(np.clip(below, 0.5 / len(values), 1 - 0.5 / len(values)))
    gaps = left_out.mean() - left_out if len(left_out) else np.zeros(1)
    spread = float((gaps**2).sum()) ** 1.5
    acceleration = float((gaps**3).sum()) / (6 * spread) if spread > 1e-30 else 0.0
    edges = ndtri(np.array([(1 - level) / 2, (1 + level) / 2]))
    low, high = ndtr(bias + (bias + edges) / (1 - acceleration * (bias + edges)))
    return float(low), float(high)
