"""Layer: pure logic. Session records to a paired table.

A pair is one (model, harness, task, attempt) under two arms. An estimate over pairs is only worth
its interval when nothing was left out in silence, so arms that do not pair are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentkit.errors import KitError
from agentkit.types import BROKEN

Record = Mapping[str, Any]
Key = tuple[str, str, str, int]
Broken = Literal["missing", "failures"]

COLUMNS = (
    "score",
    "calls",
    "reward",
    "duration_s",
    "prompt_tokens",
    "cached_tokens",
    "sampled_tokens",
)
"""Numeric fields that a table carries for each arm; NaN where a record has none."""


class PairingError(KitError):
    """Records of two arms cannot be paired."""


@dataclass(frozen=True)
class Arm:
    """One arm's side of the table; every array has shape (pairs,)."""

    name: str
    status: NDArray[np.str_]
    broken: NDArray[np.bool_]
    correct: NDArray[np.bool_]
    """False where broken: read it together with ``broken``."""
    columns: dict[str, NDArray[np.float64]]

    def status_counts(self) -> dict[str, int]:
        names, counts = np.unique(self.status, return_counts=True)
        return {str(name): int(count) for name, count in zip(names, counts, strict=True)}


@dataclass(frozen=True)
class PairTable:
    """Pairs sorted by (model, harness, task, attempt); every array has shape (pairs,)."""

    base: Arm
    other: Arm
    model: NDArray[np.str_]
    harness: NDArray[np.str_]
    task_id: NDArray[np.str_]
    attempt: NDArray[np.int64]
    source_id: NDArray[np.str_]
    kind: NDArray[np.str_]
    extra: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.task_id)

    def usable(self) -> NDArray[np.bool_]:
        """Pairs that neither arm broke."""
        return ~(self.base.broken | self.other.broken)

    def task_weights(self, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Weight of each pair such that the pairs of a task that ``mask`` keeps sum to 1."""
        _, index = np.unique(self.task_id, return_inverse=True)
        kept = np.bincount(index, weights=mask.astype(float))[index]
        return np.divide(mask, kept, out=np.zeros(len(self)), where=kept > 0)


def arms_of(records: Iterable[Record]) -> list[str]:
    """Arms that occur, in order of first appearance."""
    return list(dict.fromkeys(str(r["arm"]) for r in records))


def cells_of(records: Iterable[Record]) -> list[tuple[str, str]]:
    """(model, harness) that occur, sorted."""
    return sorted({(str(r.get("model", "")), str(r["harness"])) for r in records})


def pair_records(
    records: Sequence[Record],
    base: str,
    other: str,
    *,
    harness: str | None = None,
    model: str | None = None,
) -> PairTable:
    """Pair the sessions of two arms by (model, harness, task, attempt).

    Args:
        records: session records with at least ``task_id, source_id, harness, arm, attempt, status,
            correct``; unknown values are None. Others of ``COLUMNS`` and ``kind`` where known.
        base: arm that is subtracted.
        other: arm that it is compared with.
        harness: keep one harness.
        model: keep one model.

    Raises:
        PairingError: an arm is absent, a session is doubled, a task has no partner, or the two
            arms disagree about a task's source.
    """
    kept = [
        r
        for r in records
        if (harness is None or r["harness"] == harness)
        and (model is None or r.get("model", "") == model)
    ]
    sides = {name: _by_key(kept, name) for name in (base, other)}
    where = f"records of arms {base!r} and {other!r}"
    for name, side in sides.items():
        if not side:
            raise PairingError(
                where, f"no session of arm {name!r}", f"one of {arms_of(kept)}", "run notebook 03"
            )
    lonely = sorted(sides[base].keys() ^ sides[other].keys())
    if lonely:
        shown = ", ".join(f"{task} attempt {attempt}" for _, _, task, attempt in lonely[:3])
        raise PairingError(
            where,
            f"{len(lonely)} sessions have no partner ({shown}{', …' if len(lonely) > 3 else ''})",
            "every (model, harness, task, attempt) under both arms",
            "resume the evaluation until both arms are complete",
        )
    keys = sorted(sides[base])
    rows = [(sides[base][key], sides[other][key]) for key in keys]
    for left, right in rows:
        if left.get("source_id") != right.get("source_id"):
            raise PairingError(
                where,
                f"task {left['task_id']} has sources {left.get('source_id')!r} and "
                f"{right.get('source_id')!r}",
                "one source",
            )
    return _table(base, other, keys, rows)


def _by_key(records: Sequence[Record], arm: str) -> dict[Key, Record]:
    found: dict[Key, Record] = {}
    for record in records:
        if record["arm"] != arm:
            continue
        key = (
            str(record.get("model", "")),
            str(record["harness"]),
            str(record["task_id"]),
            int(record.get("attempt", 0)),
        )
        if key in found:
            raise PairingError(
                f"records of arm {arm!r}",
                f"two final sessions of task {key[2]} attempt {key[3]} under {key[1]}",
                "one for each planned session",
            )
        found[key] = record
    return found


def _table(base: str, other: str, keys: list[Key], rows: list[tuple[Record, Record]]) -> PairTable:
    return PairTable(
        base=_arm(base, [left for left, _ in rows]),
        other=_arm(other, [right for _, right in rows]),
        model=np.array([key[0] for key in keys]),
        harness=np.array([key[1] for key in keys]),
        task_id=np.array([key[2] for key in keys]),
        attempt=np.array([key[3] for key in keys]),
        source_id=np.array([str(left.get("source_id") or left["task_id"]) for left, _ in rows]),
        kind=np.array([str(left.get("kind", "")) for left, _ in rows]),
    )


def _arm(name: str, records: list[Record]) -> Arm:
    def column(field_name: str) -> NDArray[np.float64]:
        values = (r.get(field_name) for r in records)
        return np.array([np.nan if v is None else float(v) for v in values])

    broken = np.array([r["status"] in BROKEN for r in records])
    unknown = [
        r for r, out in zip(records, broken, strict=True) if not out and r.get("correct") is None
    ]
    if unknown:
        raise PairingError(
            f"records of arm {name!r}",
            f"task {unknown[0]['task_id']} has status {unknown[0]['status']!r} without a result",
            "correct true or false",
        )
    return Arm(
        name=name,
        status=np.array([str(r["status"]) for r in records]),
        broken=broken,
        correct=np.array([bool(r.get("correct")) for r in records]) & ~broken,
        columns={field_name: column(field_name) for field_name in COLUMNS},
    )
