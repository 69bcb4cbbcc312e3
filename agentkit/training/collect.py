"""Layer: work. The sessions of a training step: which tasks, under which policy, kept on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentkit.errors import TrainingError
from agentkit.params import GrpoParams
from agentkit.runs import append_jsonl, read_jsonl
from agentkit.seeds import derive_seed
from agentkit.training.rollout_log import Key, Rollout, RolloutLog
from agentkit.types import Policy, Task


def step_tasks(tasks: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """The ``count`` different tasks of ``step`` (counted from 0), a pure function of the arguments.

    The tasks are gone through in shuffled epochs without replacement; a task that the next epoch
    would repeat within the same step waits for its turn in the following step.

    Raises:
        TrainingError: fewer than ``count`` tasks.
    """
    if len(tasks) < count:
        raise TrainingError(
            "tasks_per_step", f"{count} of {len(tasks)} tasks", "no more than there are tasks"
        )
    waiting: list[int] = []
    chosen: list[int] = []
    epoch = 0
    for _ in range(step + 1):
        chosen = []
        later: list[int] = []
        while len(chosen) < count:
            if not waiting:
                order = np.random.default_rng(derive_seed(seed, "train", "epoch", epoch))
                waiting, epoch = order.permutation(len(tasks)).tolist(), epoch + 1
            index = waiting.pop(0)
            (later if index in chosen else chosen).append(index)
        waiting = later + waiting
    return [tasks[i] for i in chosen]


@dataclass
class ServedPolicy:
    """The adapter version that answers now: its served name, number and weights' digest."""

    name: str
    version: int
    sha256: str


RunJobs = Callable[[list[dict[str, Any]], Callable[[dict[str, Any], Any], None]], None]
"""``run_jobs(jobs, on_result)``: run ``run_session(**job)`` for each job, in parallel, and call
``on_result(job, SessionResult)`` as each one ends."""


@dataclass
class StepCollector:
    """Runs the sessions of a step and returns them as groups, task by task.

    A session that an interrupted step had finished under the same policy is taken from
    ``rollouts.jsonl``; ``sessions.jsonl`` gets its lines when the whole step is there, in order of
    task and attempt, each (step, task, attempt) once.
    """

    params: GrpoParams
    tasks: Sequence[Task]
    served: Callable[[], ServedPolicy]
    run_jobs: RunJobs
    rollouts: RolloutLog
    sessions_path: Path
    on_session: Callable[[Rollout], None] = lambda rollout: None
    check_engine: Callable[[], None] = lambda: None
    seconds: float = 0.0
    reused: int = 0
    groups: list[list[Rollout]] = field(default_factory=list)

    def __call__(self, step: int) -> list[list[Rollout]]:
        """``collect(step) -> groups``; raises TrainingError where every session broke."""
        started = time.monotonic()
        served = self.served()
        if served.version > step:
            raise TrainingError(
                f"step {step}", f"adapter version {served.version} is served", f"version <= {step}"
            )
        chosen = step_tasks(self.tasks, step, self.params.tasks_per_step, self.params.seed)
        keys: list[Key] = [
            (step, task.task_id, attempt)
            for task in chosen
            for attempt in range(self.params.sessions_per_task)
        ]
        done = self.rollouts.finished(step, served.sha256)
        self.reused = len(done)
        for rollout in done.values():
            self.on_session(rollout)
        by_id = {task.task_id: task for task in chosen}
        jobs = [self._job(by_id[key[1]], key, served) for key in keys if key not in done]
        if jobs:
            self.run_jobs(jobs, lambda job, result: self._keep(job, result, served, done))
        self.groups = [
            [done[step, t.task_id, a] for a in range(self.params.sessions_per_task)] for t in chosen
        ]
        self._check_not_all_broken(step)
        self._write_sessions(step, keys, done)
        self.seconds = time.monotonic() - started
        return self.groups

    def _job(self, task: Task, key: Key, served: ServedPolicy) -> dict[str, Any]:
        step, task_id, attempt = key
        p = self.params
        policy = Policy(
            model=served.name,
            temperature=p.temperature,
            top_p=p.top_p,
            max_tokens=p.max_tokens,
            max_turns=p.max_turns,
            seed=derive_seed(p.seed, "train", step, task_id, attempt),
        )
        return {
            "task": task,
            "policy": policy,
            "arm": "train",
            "adapter": f"v{served.version:04d}",
            "attempt": attempt,
            "step": step,
        }

    def _keep(
        self, job: dict[str, Any], result: Any, served: ServedPolicy, done: dict[Key, Rollout]
    ) -> None:
        rollout = Rollout(result.record, result.log)
        key = (job["step"], job["task"].task_id, job["attempt"])
        self.rollouts.add(key, served.sha256, rollout)
        done[key] = rollout
        self.on_session(rollout)

    def _check_not_all_broken(self, step: int) -> None:
        records = [r.record for group in self.groups for r in group]
        if any(record.status == "engine_error" for record in records):
            self.check_engine()
        if any(not record.broken for record in records):
            return
        first = records[0]
        raise TrainingError(
            f"step {step}",
            f"all {len(records)} sessions broke; the first: {first.status}, {first.reason}",
            "sessions that end",
            "see rollouts.jsonl and the engine's log",
        )

    def _write_sessions(self, step: int, keys: Sequence[Key], done: dict[Key, Rollout]) -> None:
        present = {
            (line["step"], line["task_id"], line["attempt"])
            for line in read_jsonl(self.sessions_path)
            if line["step"] == step
        }
        for key in keys:
            if key not in present:
                append_jsonl(self.sessions_path, done[key].record.model_dump(mode="json"))


def session_metrics(groups: Sequence[Sequence[Rollout]]) -> dict[str, Any]:
    """Means over unbroken sessions, sums over all; None where there is nothing to average.

    ``reward`` and ``pass_rate`` are dimensionless; ``calls`` and ``turns_per_session`` are a
    session's means;
    ``session_s`` is the mean wall time of a session in seconds.
    """
    records = [r.record for group in groups for r in group]
    held = [r for r in records if r.reward is not None]

    def mean(values: list[float]) -> float | None:
        return float(np.mean(values)) if values else None

    return {
        "sessions": len(records),
        "broken": len(records) - len(held),
        "timed_out": sum(r.status == "timed_out" for r in records),
        "budget_exhausted": sum(r.budget_exhausted for r in records),
        "reward": mean([float(r.reward) for r in held if r.reward is not None]),
        "pass_rate": mean([float(bool(r.correct)) for r in held]),
        "calls": mean([float(r.calls) for r in held]),
        "turns_per_session": mean([float(r.turns) for r in held]),
        "session_s": mean([r.duration_s for r in held]),
        "prompt_tokens": sum(r.prompt_tokens for r in records),
        "cached_tokens": sum(r.cached_tokens for r in records),
    }
