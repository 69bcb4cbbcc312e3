"""Layer: work. Which sessions an evaluation consists of, and what became of each of them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentkit.errors import ParamsError, RunError
from agentkit.params import EvaluateParams
from agentkit.runs import append_jsonl, read_jsonl, write_atomic
from agentkit.seeds import derive_seed
from agentkit.types import SessionRecord, Task

Key = tuple[str, str, int]
"""(task_id, arm, attempt)."""


@dataclass(frozen=True)
class Planned:
    """One session of the plan. The seed does not depend on the arm: that makes the pair."""

    task: Task
    arm: str
    attempt: int
    seed: int

    @property
    def key(self) -> Key:
        return (self.task.task_id, self.arm, self.attempt)


@dataclass(frozen=True)
class Finished:
    """What a run of one planned session gives back."""

    planned: Planned
    record: SessionRecord
    transcript: bytes = b""


class Execute(Protocol):
    """Runs planned sessions side by side and yields them in the order in which they end."""

    def __call__(self, planned: Sequence[Planned]) -> Iterator[Finished]: ...


def parse_arms(arms: Sequence[str]) -> dict[str, str]:
    """``["warm_start=warm-start", …]`` to name -> adapter; refuses doubled or single arms."""
    pairs = [entry.partition("=") for entry in arms]
    names = [name for name, _, _ in pairs]
    for entry, (name, sign, value) in zip(arms, pairs, strict=True):
        if not (name and sign and value):
            raise ParamsError("arms", repr(entry), "name=adapter", "e.g. warm_start=warm-start")
    if len(set(names)) != len(names):
        raise ParamsError("arms", f"{names}", "names that differ")
    return {name: value for name, _, value in pairs}


def plan_sessions(
    tasks: Sequence[Task], arms: Sequence[str], attempts: int, seed: int
) -> list[Planned]:
    """All sessions, arms innermost: drift of the machine hits the arms alike, and the two prompts
    of a task follow each other, so that the engine's prefix cache serves the second."""
    return [
        Planned(task, arm, attempt, derive_seed(seed, "evaluate", task.task_id, attempt))
        for attempt in range(attempts)
        for task in tasks
        for arm in arms
    ]


def plan_line(params: EvaluateParams, tasks: Sequence[Task]) -> str:
    """The size of the plan in one line, for before the start."""
    arms = parse_arms(params.arms)
    total = len(tasks) * len(arms) * params.attempts
    sources = len({task.source_id for task in tasks})
    return (
        f"{total:,} sessions: {len(tasks)} held-out tasks from {sources} sources × "
        f"{len(arms)} arms ({', '.join(arms)}) × {params.attempts} attempts, "
        f"{params.concurrency} at a time"
    )


@dataclass
class SessionLedger:
    """The records of a plan on disk: what is final, what broke, what is still to do."""

    folder: Path
    plan: Sequence[Planned]
    broken_retries: int
    keep_transcripts: bool = False

    def __post_init__(self) -> None:
        self.final_path = self.folder / "sessions.jsonl"
        self.broken_path = self.folder / "broken.jsonl"
        wanted = {p.key for p in self.plan}
        self.final: dict[Key, dict[str, Any]] = {}
        for record in read_jsonl(self.final_path):
            key = _key(record)
            if key in self.final or key not in wanted:
                raise RunError(
                    str(self.final_path),
                    f"a {'second' if key in self.final else 'foreign'} record of {key}",
                    "one record for each planned session",
                    "move the file away; the stage then redoes it",
                )
            self.final[key] = record
        self.tries: dict[Key, int] = {}
        for record in read_jsonl(self.broken_path):
            self._count_try(record)

    def _count_try(self, record: dict[str, Any]) -> None:
        """Count a broken try; the last one allowed makes the session final as broken.

        Also on reading: a process killed between the two appends is made good here.
        """
        key = _key(record)
        self.tries[key] = self.tries.get(key, 0) + 1
        if self.tries[key] > self.broken_retries and key not in self.final:
            self._make_final(key, record)

    def _make_final(self, key: Key, record: dict[str, Any]) -> None:
        append_jsonl(self.final_path, record)
        self.final[key] = record

    def pending(self) -> list[Planned]:
        """Planned sessions without a final record, those that broke least often first."""
        left = [p for p in self.plan if p.key not in self.final]
        return sorted(left, key=lambda p: self.tries.get(p.key, 0))

    def add(self, finished: Finished) -> bool:
        """Keep one result; returns whether it is final. The transcript comes before the record."""
        key = finished.planned.key
        if key in self.final:
            raise RunError(str(self.final_path), f"a second result of {key}", "one")
        record = finished.record.model_dump(mode="json")
        if self.keep_transcripts and finished.transcript:
            folder = self.folder / "transcripts"
            folder.mkdir(exist_ok=True)
            packed = gzip.compress(finished.transcript, mtime=0)
            write_atomic(folder / f"{finished.record.session_id}.gz", packed)
        if not finished.record.broken:
            self._make_final(key, record)
        else:
            append_jsonl(self.broken_path, record)
            self._count_try(record)
        return key in self.final

    def records(self) -> list[dict[str, Any]]:
        """Final records in the order of the plan."""
        return [self.final[p.key] for p in self.plan if p.key in self.final]


def _key(record: dict[str, Any]) -> Key:
    return (record["task_id"], record["arm"], record["attempt"])
