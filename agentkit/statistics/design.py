"""Layer: pure logic. What a paired design of a given size can show, before it is run.

Normal approximations of the paired difference of proportions: Connor 1987 (Biometrics 43);
exact power of McNemar's test by enumeration.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, norm


def paired_half_width(
    n: int, discordance: float, difference: float = 0.0, level: float = 0.95
) -> float:
    """Half-width of the normal interval: ``z × sqrt((discordance − difference²) / n)``."""
    z = float(norm.ppf((1 + level) / 2))
    return z * sqrt(max(0.0, discordance - difference**2) / n)


def unpaired_half_width(n: int, base: float, other: float, level: float = 0.95) -> float:
    """The same for independent arms of n tasks each: what pairing saves."""
    z = float(norm.ppf((1 + level) / 2))
    return z * sqrt((base * (1 - base) + other * (1 - other)) / n)


def minimum_detectable_effect(
    n: int, discordance: float, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """Smallest true difference that a two-sided paired test finds with ``power``.

    Solves ``difference × sqrt(n) = z(1−α/2) × sqrt(d) + z(power) × sqrt(d − difference²)`` for a
    discordance d (Connor 1987, equation 3.1 turned around). None where even a difference as large
    as the discordance itself would be missed.
    """
    z_test, z_power = float(norm.ppf(1 - alpha / 2)), float(norm.ppf(power))

    def shortfall(difference: float) -> float:
        spread = sqrt(max(0.0, discordance - difference**2))
        return difference * sqrt(n) - z_test * sqrt(discordance) - z_power * spread

    if discordance <= 0 or shortfall(discordance) < 0:
        return None
    return float(brentq(shortfall, 0.0, discordance))


def mcnemar_power(n: int, gain: float, loss: float, alpha: float = 0.05) -> float:
    """Exact power of McNemar's exact test when a pair is gained or lost with these chances.

    Sums over the number of discordant pairs, binomial(n, gain + loss), and the gains among them.
    """
    discordance = gain + loss
    if discordance <= 0:
        return 0.0
    pairs = np.arange(n + 1)[:, None]
    gains = np.arange(n + 1)[None, :]
    smaller = np.minimum(gains, pairs - gains)
    p_value = np.minimum(1.0, 2 * binom.cdf(smaller, pairs, 0.5))
    chance = binom.pmf(pairs, n, discordance) * binom.pmf(gains, pairs, gain / discordance)
    return float(chance[(gains <= pairs) & (p_value <= alpha)].sum())


@dataclass(frozen=True)
class Equivalence:
    """Outcome of two one-sided tests (Schuirmann 1987) with a margin stated in advance.

    ``low``/``high`` is the (1 − 2α) percentile interval. ``equivalent``: it lies inside ±margin.
    ``not_worse``: its lower end lies above −margin. ``p_value``: the larger of the two one-sided
    bootstrap p-values.
    """

    margin: float
    alpha: float
    low: float
    high: float
    equivalent: bool
    not_worse: bool
    p_value: float


def equivalence(values: NDArray[np.float64], margin: float, alpha: float = 0.05) -> Equivalence:
    """Test "the difference is smaller than ``margin``" on resampled values, shape (B,).

    Unchanged accuracy is a claim that needs this test: an interval that holds 0 does not show it.
    """
    if margin <= 0 or len(values) == 0:
        raise ValueError(f"margin {margin!r} with {len(values)} values: both must be positive")
    low, high = (float(x) for x in np.quantile(values, [alpha, 1 - alpha]))
    count = len(values)
    p_low = (int((values <= -margin).sum()) + 1) / (count + 1)
    p_high = (int((values >= margin).sum()) + 1) / (count + 1)
    return Equivalence(
        margin,
        alpha,
        low,
        high,
        -margin < low and high < margin,
        -margin < low,
        max(p_low, p_high),
    )
