"""Layer: sources. Held-out and train split by source, stratified by kind, without an order.

Whether a source may be held out is a function of the seed and the source alone
(``SynthesiseParams.heldout_share``), so that a small profile's held-out tasks are never a larger
profile's training tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from agentkit.seeds import derive_seed
from agentkit.synthesis.dedup import drop_near_duplicates
from agentkit.trajectories import Refusal
from agentkit.types import Task


def split_value(seed: int, source_id: str) -> float:
    """Place of a source in [0, 1)."""
    return derive_seed(seed, "split", source_id) / 2**31


def quotas(counts: dict[str, int], total: int) -> dict[str, int]:
    """``total`` places shared out in proportion to ``counts`` (largest remainder), none beyond."""
    whole = sum(counts.values())
    if total > whole:
        raise ValueError("more places than tasks")
    exact = {k: total * n / whole for k, n in counts.items()}
    given = {k: int(v) for k, v in exact.items()}
    by_remainder = sorted(counts, key=lambda k: (given[k] - exact[k], k))
    for kind in by_remainder[: total - sum(given.values())]:
        given[kind] += 1
    return given


def split_tasks(
    tasks: Sequence[Task], *, seed: int, share: float, heldout: int, threshold: float
) -> tuple[list[Task], list[Task], list[Refusal]]:
    """(train, held-out, refusals). Held-out may be shorter than ``heldout`` if too few survive.

    Near-duplicates are dropped within and across splits; of a pair across splits the training
    task goes.
    """
    ordered = sorted(tasks, key=lambda t: (split_value(seed, t.source_id), t.task_id))
    candidates = [t for t in ordered if split_value(seed, t.source_id) < share]
    rest = [t for t in ordered if split_value(seed, t.source_id) >= share]
    unique, dropped = drop_near_duplicates(candidates, threshold)
    held = _stratified(unique, heldout)
    held_ids = {t.task_id for t in held}
    # All candidates, also those beyond the quota: another profile may hold them out.
    reserved = {t.task_id for t in unique}
    both, dropped_train = drop_near_duplicates([*unique, *rest], threshold)
    train = [t for t in both if t.task_id not in reserved]
    refusals = [
        Refusal(
            "duplicate",
            "near-duplicate",
            f"similarity {similarity:.2f} with {other.task_id}",
            path=str(task.extra.get("trace_path", "")),
            session_id=task.source["session_id"],
            task_id=task.task_id,
        )
        for task, other, similarity in [*dropped, *dropped_train]
    ]
    refusals += [
        Refusal(
            "split",
            "held-out candidate beyond the quota",
            "kept out of both splits: its source is reserved for held-out sets",
            path=str(t.extra.get("trace_path", "")),
            session_id=t.source["session_id"],
            task_id=t.task_id,
        )
        for t in unique
        if t.task_id not in held_ids
    ]
    return (
        [replace(t, split="train") for t in train],
        [replace(t, split="heldout") for t in held],
        refusals,
    )


def _stratified(tasks: Sequence[Task], total: int) -> list[Task]:
    """The first tasks of each kind, as many as its share; ``tasks`` are in split order."""
    if len(tasks) <= total:
        return list(tasks)
    left = quotas(dict(Counter(t.kind for t in tasks)), total)
    chosen = []
    for task in tasks:
        if left[task.kind] > 0:
            left[task.kind] -= 1
            chosen.append(task)
    return chosen
