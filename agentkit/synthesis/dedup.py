"""Layer: sources. Near-duplicates by Jaccard similarity of word shingles, exactly.

Shingles keep names and numbers: two tasks of one family that differ in all their names are two
tasks. Candidate pairs come from prefix filtering (Chaudhuri et al. 2006; Bayardo et al. 2007),
which misses no pair at or above the threshold, so that no hashing error decides about a split.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from agentkit.types import Task

SHINGLE_WORDS = 3
Shingle = tuple[str, ...]
T = TypeVar("T")


def shingles(text: str, width: int = SHINGLE_WORDS) -> frozenset[Shingle]:
    """Runs of ``width`` words or signs, letter case kept."""
    words = re.findall(r"\w+|[^\w\s]", text)
    if len(words) < width:
        return frozenset([tuple(words)])
    return frozenset(tuple(words[i : i + width]) for i in range(len(words) - width + 1))


def task_text(task: Task) -> str:
    """Instruction, workspace and solution: what a policy would have to learn by heart."""
    parts = [task.instruction]
    for files in (task.workspace, task.solution):
        for path in sorted(files):
            parts += [path, files[path].decode(errors="replace")]
    return "\n".join(parts)


def jaccard(a: frozenset[Shingle], b: frozenset[Shingle]) -> float:
    """|a & b| / |a | b|; two empty sets are equal."""
    union = len(a | b)
    return len(a & b) / union if union else 1.0


class DuplicateIndex:
    """Tells for each added set which earlier one it is a near-duplicate of.

    Args:
        threshold: Jaccard similarity from which two sets count as near-duplicates, in (0, 1].
        frequencies: how many sets hold each shingle, for the common order of prefix filtering.
    """

    def __init__(self, threshold: float, frequencies: Mapping[Shingle, int]) -> None:
        self.threshold, self.frequencies = threshold, frequencies
        self._prefixes: dict[Shingle, list[int]] = defaultdict(list)
        self._sets: list[frozenset[Shingle]] = []

    def _prefix(self, items: frozenset[Shingle]) -> list[Shingle]:
        """Rarest shingles, of which a pair at the threshold must share at least one."""
        ordered = sorted(items, key=lambda s: (self.frequencies.get(s, 0), s))
        # The tolerance keeps a product like 0.7 * 10 from being rounded up past an integer.
        return ordered[: len(items) - math.ceil(self.threshold * len(items) - 1e-9) + 1]

    def nearest(self, items: frozenset[Shingle]) -> tuple[int, float] | None:
        """(index, similarity) of the most similar kept set at or above the threshold, or None."""
        candidates = {i for s in self._prefix(items) for i in self._prefixes.get(s, ())}
        scored = [(jaccard(items, self._sets[i]), -i) for i in candidates]
        best = max(scored, default=(0.0, 0))
        return (-best[1], best[0]) if scored and best[0] >= self.threshold else None

    def keep(self, items: frozenset[Shingle]) -> int:
        index = len(self._sets)
        self._sets.append(items)
        for shingle in self._prefix(items):
            self._prefixes[shingle].append(index)
        return index


def drop_near_duplicates(
    tasks: Sequence[Task], threshold: float
) -> tuple[list[Task], list[tuple[Task, Task, float]]]:
    """Keep the first of each group of near-duplicates.

    Returns (kept, dropped), dropped as (task, the kept one that it repeats, similarity).
    """
    sets = [shingles(task_text(t)) for t in tasks]
    index = DuplicateIndex(threshold, Counter(_flatten(sets)))
    kept: list[Task] = []
    dropped: list[tuple[Task, Task, float]] = []
    for task, items in zip(tasks, sets, strict=True):
        found = index.nearest(items)
        if found is None:
            index.keep(items)
            kept.append(task)
        else:
            dropped.append((task, kept[found[0]], found[1]))
    return kept, dropped


def _flatten(sets: Iterable[Iterable[T]]) -> Iterable[T]:
    for items in sets:
        yield from items
