"""Layer: pure logic. The write-up's interval, reconstructed from its printed digits.

The write-up prints 69% → 79% pass@1 and +9.4 ± 6.3 points on 150 held-out tasks; it ships no
per-task records. Integers that round to all four printed numbers at once can be enumerated.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from agentkit.statistics.proportions import TwoByTwo, mcnemar

STATEMENT = (
    "This is a reconstruction from the write-up's printed digits, not its data: no per-task "
    "records were published."
)


@dataclass(frozen=True)
class Published:
    """Digits as printed: percentages without decimals, points with one."""

    base_percent: int = 69
    trained_percent: int = 79
    difference_points: float = 9.4
    half_width_points: float = 6.3
    tasks: int = 150


@dataclass(frozen=True)
class Reconstruction:
    """Integers that give every printed digit. ``both`` and ``neither`` follow from them."""

    n: int
    base: int
    trained: int
    gained: int
    lost: int
    difference_points: float
    half_width_points: float
    mcnemar_p: float

    @property
    def table(self) -> TwoByTwo:
        both = self.base - self.lost
        return TwoByTwo(both, self.gained, self.lost, self.n - both - self.gained - self.lost)


def _half_width(n: int, gained: int, lost: int) -> float:
    """1.96 standard errors of a paired difference, in points."""
    difference = (gained - lost) / n
    return 196.0 * sqrt(((gained + lost) / n - difference**2) / n)


def reconstruct_published(
    digits: Published = Published(), smallest_n: int = 1
) -> list[Reconstruction]:
    """All (n, base, trained, gained, lost), n <= digits.tasks, that print as ``digits``.

    Nearest to the stated number of tasks first: n = 149 (one task dropped). Of the sizes down to
    128 it is the only one; n = 127 and 117 would print alike with 23 and 33 tasks dropped.

    Half-width: 1.96 × sqrt((discordance − difference²) / n), the normal form that a paired
    bootstrap of one task for each source approaches. ``STATEMENT`` goes with every use of it.
    """
    found = []
    for n in range(smallest_n, digits.tasks + 1):
        base = [k for k in range(n + 1) if round(100 * k / n) == digits.base_percent]
        trained = [k for k in range(n + 1) if round(100 * k / n) == digits.trained_percent]
        for before in base:
            for after in trained:
                points = 100 * (after - before) / n
                if round(points, 1) != digits.difference_points:
                    continue
                for lost in range(min(before, n - after) + 1):
                    gained = lost + after - before
                    half = _half_width(n, gained, lost)
                    if round(half, 1) == digits.half_width_points:
                        p = mcnemar(gained, lost)[0]
                        found.append(
                            Reconstruction(n, before, after, gained, lost, points, half, p)
                        )
    return sorted(found, key=lambda r: digits.tasks - r.n)
