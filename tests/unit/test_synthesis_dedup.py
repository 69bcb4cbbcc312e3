"""Near-duplicates and splits, against brute force."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.synthesis.dedup import (
    DuplicateIndex,
    drop_near_duplicates,
    jaccard,
    shingles,
    task_text,
)
from agentkit.synthesis.splits import quotas, split_tasks, split_value
from agentkit.types import Task


def task(number: int, text: str, kind: str = "qa", source: str = "") -> Task:
    return Task(
        task_id=f"{kind}-{number:04d}",
        kind=kind,  # type: ignore[arg-type]
        instruction=text,
        workspace={},
        tests={"test.sh": b""},
        solution={},
        source={"dataset": "d", "session_id": source or f"s{number}", "licence": "x"},
    )


def words(seed: int, count: int = 30) -> str:
    return " ".join(f"w{(seed * 7919 + i * i) % 997}" for i in range(count))


_ITEM = st.sampled_from("abcdefghij").map(lambda c: (c,))


@settings(max_examples=200, deadline=None)
@given(
    sets=st.lists(st.frozensets(_ITEM, min_size=1), min_size=1, max_size=10),
    threshold=st.sampled_from([0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
)
def test_the_index_finds_exactly_what_all_pairs_find(
    sets: list[frozenset[tuple[str]]], threshold: float
) -> None:
    index = DuplicateIndex(threshold, Counter(s for items in sets for s in items))
    kept: list[frozenset[tuple[str]]] = []
    for items in sets:
        truth = any(jaccard(items, k) >= threshold for k in kept)
        found = index.nearest(items)
        assert (found is not None) == truth
        if found is None:
            index.keep(items)
            kept.append(items)
        else:
            assert found[1] == max(jaccard(items, k) for k in kept)


def test_names_make_a_difference_and_rewording_does_not() -> None:
    body = "def {}(x):\n    return x + {}\n" * 3
    first = shingles(body.format("a", 1, "b", 2, "c", 3))
    other = shingles(body.format("p", 7, "q", 8, "r", 9))
    assert jaccard(first, other) < 0.5
    assert jaccard(first, shingles(body.format("a", 1, "b", 2, "c", 3) + "Thanks.")) >= 0.9


def test_the_first_of_a_group_is_kept() -> None:
    tasks = [task(1, words(1)), task(2, words(2)), task(3, words(1) + " please")]
    kept, dropped = drop_near_duplicates(tasks, 0.8)
    assert [t.task_id for t in kept] == ["qa-0001", "qa-0002"]
    ((gone, of, similarity),) = dropped
    assert (gone.task_id, of.task_id) == ("qa-0003", "qa-0001")
    assert similarity == pytest.approx(
        jaccard(shingles(task_text(tasks[0])), shingles(task_text(tasks[2])))
    )


@given(
    counts=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 60), min_size=1),
    share=st.floats(0, 1),
)
def test_quotas_fill_exactly_and_stay_in_proportion(counts: dict[str, int], share: float) -> None:
    total = int(share * sum(counts.values()))
    given_places = quotas(counts, total)
    assert sum(given_places.values()) == total
    for kind, n in counts.items():
        assert abs(given_places[kind] - total * n / sum(counts.values())) < 1
        assert given_places[kind] <= n


def split(tasks: list[Task], heldout: int = 40) -> tuple[list[Task], list[Task], list[object]]:
    train, held, refused = split_tasks(tasks, seed=0, share=0.4, heldout=heldout, threshold=0.85)
    return train, held, list(refused)


def test_sources_lie_on_one_side_and_kinds_are_shared_out() -> None:
    kinds = ["repair", "build", "extend", "qa"]
    tasks = [task(i, words(i), kinds[i % 4], f"s{i // 2}") for i in range(300)]
    train, held, refused = split(tasks)
    assert len(held) == 40
    assert {t.source_id for t in train} & {t.source_id for t in held} == set()
    assert {t.split for t in train} == {"train"}
    assert {t.split for t in held} == {"heldout"}
    assert all(split_value(0, t.source_id) < 0.4 for t in held)
    assert all(split_value(0, t.source_id) >= 0.4 for t in train)
    counts = Counter(t.kind for t in held)
    candidates = Counter(t.kind for t in tasks if split_value(0, t.source_id) < 0.4)
    assert all(abs(counts[k] - 40 * candidates[k] / sum(candidates.values())) < 1 for k in kinds)
    assert len(train) + len(held) + len(refused) == 300


def test_a_split_depends_on_neither_order_nor_number_of_tasks() -> None:
    tasks = [task(i, words(i)) for i in range(200)]
    train, held, _ = split(tasks)
    back = split(tasks[::-1])
    assert {t.task_id for t in back[1]} == {t.task_id for t in held}
    small_train, small_held, _ = split(tasks[:80], heldout=10)
    assert not {t.task_id for t in small_held} & {t.task_id for t in train}
    assert not {t.task_id for t in small_train} & {t.task_id for t in held}


def test_a_near_duplicate_across_the_split_leaves_the_training_side() -> None:
    tasks = [task(i, words(i)) for i in range(100)]
    _, held, _ = split(tasks, heldout=30)
    number = next(n for n in range(1000, 2000) if split_value(0, task(n, "").source_id) >= 0.4)
    copy = task(number, held[0].instruction + " thanks")
    train, held_again, refused = split([*tasks, copy], heldout=30)
    assert held_again == held
    assert copy.task_id not in {t.task_id for t in train}
    assert any(getattr(r, "task_id", "") == copy.task_id for r in refused)
