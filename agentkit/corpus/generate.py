"""Layer: sources. All scenarios: every family in turn, from one seed, without near copies."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from agentkit.corpus import build, extend, qa, refused, repair
from agentkit.corpus.scenario import Family, Scenario
from agentkit.seeds import derive_seed

GOOD: dict[str, tuple[Family, ...]] = {
    "repair": repair.FAMILIES,
    "build": build.FAMILIES,
    "extend": extend.FAMILIES,
    "qa": qa.FAMILIES,
}
REFUSED: tuple[Family, ...] = refused.FAMILIES

SIMILARITY = 0.6
"""Largest Jaccard index over 3-word shingles between two good scenarios of one family."""
SIMILARITY_REFUSED = 0.6
REFUSED_SHARE = 0.08
ATTEMPTS = 400


def shingles(text: str, size: int = 3) -> frozenset[tuple[str, ...]]:
    """Word shingles of a text; punctuation counts as words."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return frozenset(tuple(words[i : i + size]) for i in range(max(1, len(words) - size + 1)))


def jaccard(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    return len(a & b) / len(a | b)


def _fresh(
    family: Family, seed: int, index: int, seen: list[frozenset[tuple[str, ...]]]
) -> Scenario:
    """The first draw of ``family`` that is no near copy of what its own family gave before."""
    for attempt in range(ATTEMPTS):
        rng = random.Random(derive_seed(seed, "corpus", family.__name__, index, attempt))
        scenario = family(rng)
        mine = shingles(scenario.text())
        limit = SIMILARITY_REFUSED if scenario.refusal else SIMILARITY
        if all(jaccard(mine, other) <= limit for other in seen):
            seen.append(mine)
            return scenario
    raise ValueError(f"{family.__name__}: no new scenario in {ATTEMPTS} draws; ask for fewer")


def near_copy(scenario: Scenario) -> Scenario:
    """The same session once more, asked for with one more word."""
    return replace(
        scenario,
        family="near_duplicate",
        wish=f"{scenario.wish} Please.",
        refusal="a near copy of another session",
    )


def generate(count: int, seed: int = 0) -> list[Scenario]:
    """``count`` scenarios in a random order that depends on ``seed`` alone.

    About 8 % are ones that synthesis must refuse (an eighth or so of these are near copies of
    good ones); the rest is spread evenly over the good families.

    Raises:
        ValueError: a family cannot give so many scenarios without near copies.
    """
    n_refused = round(count * REFUSED_SHARE)
    n_copies = n_refused // (len(REFUSED) + 1)
    families = [family for kind in GOOD.values() for family in kind]
    rng = random.Random(derive_seed(seed, "corpus", "order"))
    found: list[Scenario] = []
    for pool, total in ((families, count - n_refused), (list(REFUSED), n_refused - n_copies)):
        seen: dict[str, list[frozenset[tuple[str, ...]]]] = {f.__name__: [] for f in pool}
        start = rng.randrange(len(pool))
        for i in range(total):
            family = pool[(start + i) % len(pool)]
            found.append(_fresh(family, seed, i, seen[family.__name__]))
    good = [s for s in found if not s.refusal]
    found += [near_copy(s) for s in rng.sample(good, n_copies)]
    rng.shuffle(found)
    return found
