"""Layer: pure logic. Exact tests and closed-form intervals for solved or not solved.

Sources: McNemar 1947; Fagerland, Lydersen & Laake 2013 (mid-p); Wilson 1927; Newcombe 1998
(paired, method 10); Holm 1979; Chen et al. 2021 (unbiased pass@k).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm


@dataclass(frozen=True)
class TwoByTwo:
    """Paired outcomes. ``gained`` is unsolved by the base arm and solved by the other."""

    both: int
    gained: int
    lost: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.gained + self.lost + self.neither

    @property
    def base(self) -> int:
        """Solved by the base arm."""
        return self.both + self.lost

    @property
    def other(self) -> int:
        """Solved by the other arm."""
        return self.both + self.gained

    @property
    def difference(self) -> float:
        """Difference of proportions, other minus base."""
        return (self.gained - self.lost) / self.n

    @property
    def discordance(self) -> float:
        """Share of pairs on which the arms differ."""
        return (self.gained + self.lost) / self.n

    @classmethod
    def count(cls, base: NDArray[np.bool_], other: NDArray[np.bool_]) -> TwoByTwo:
        """Count paired outcomes of equal-length boolean arrays."""
        return cls(
            int((base & other).sum()),
            int((~base & other).sum()),
            int((base & ~other).sum()),
            int((~base & ~other).sum()),
        )


def mcnemar(gained: int, lost: int) -> tuple[float, float]:
    """Two-sided exact p and mid-p of "gains and losses are equally likely".

    Exact: twice the binomial(gained + lost, 1/2) tail, at most 1. Mid-p: exact p minus the point
    probability of the observed count, half of it where gains equal losses (Fagerland et al. 2013,
    equation 4). Assumes independent
    pairs; with several tasks of a source, or several attempts, read ``sign_flip`` beside it.
    """
    n, smaller = gained + lost, min(gained, lost)
    if n == 0:
        return 1.0, 1.0
    if gained == lost:
        return 1.0, float(1.0 - binom.pmf(smaller, n, 0.5) / 2)
    exact = min(1.0, 2.0 * float(binom.cdf(smaller, n, 0.5)))
    return exact, exact - float(binom.pmf(smaller, n, 0.5))


def sign_flip(
    differences: NDArray[np.float64], rng: np.random.Generator, resamples: int = 10_000
) -> float:
    """Two-sided permutation p of "no difference" that keeps clusters whole.

    Args:
        differences: summed paired difference of each cluster, shape (clusters,).
        rng: seeded generator.

    Under the null the arms' labels can be exchanged within a cluster, so its sum may change sign.
    The observed labelling counts as one permutation, hence p is never 0. With one pair in each
    cluster this is McNemar's exact test, drawn at random.
    """
    held = differences[np.abs(differences) > 1e-12]
    observed, extreme = abs(float(held.sum())), 1
    step = max(1, (1 << 22) // max(1, len(held)))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        signs = rng.integers(0, 2, size=(rows, len(held)), dtype=np.int8) * 2.0 - 1.0
        extreme += int((np.abs(signs @ held) >= observed - 1e-9).sum())
    return extreme / (resamples + 1)


def wilson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of one proportion (Wilson 1927), for independent trials; n > 0."""
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is not a proportion")
    z = float(norm.ppf((1 + level) / 2))
    p = successes / n
    centre, spread = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def newcombe_paired(table: TwoByTwo, level: float = 0.95) -> tuple[float, float]:
    """Square-and-add interval of a paired difference (Newcombe 1998, method 10).

    Combines the arms' Wilson intervals with the correlation phi of the 2×2 table; phi's numerator
    is continuity-corrected where it is positive, and phi is 0 where a margin is empty.
    """
    a, b, c, d, n = table.both, table.gained, table.lost, table.neither, table.n
    base_low, base_high = wilson(table.base, n, level)
    other_low, other_high = wilson(table.other, n, level)
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    excess = a * d - b * c
    corrected = max(excess - n / 2, 0) if excess > 0 else excess
    phi = corrected / sqrt(margins) if margins else 0.0
    p, q = table.other / n, table.base / n
    down, up = (p - other_low, base_high - q), (other_high - p, q - base_low)
    low, high = (sqrt(max(0.0, x * x - 2 * phi * x * y + y * y)) for x, y in (down, up))
    return p - q - low, p - q + high


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values, by name (Holm 1979)."""
    order = sorted(p_values, key=lambda name: p_values[name])
    adjusted, running = {}, 0.0
    for rank, name in enumerate(order):
        running = max(running, min(1.0, (len(order) - rank) * p_values[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of "at least one of k attempts is correct" from n >= k attempts.

    ``1 − C(n − c, k) / C(n, k)`` (Chen et al. 2021, equation 1).
    """
    if not 0 < k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@{k} cannot be estimated from {correct} of {n} attempts")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def mean_pass_at_k(attempts: Sequence[Sequence[bool]], k: int) -> float | None:
    """Mean of ``pass_at_k`` over tasks with at least k attempts; None where there is none."""
    values = [pass_at_k(len(task), sum(task), k) for task in attempts if len(task) >= k]
    return float(np.mean(values)) if values else None
