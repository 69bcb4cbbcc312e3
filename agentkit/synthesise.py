"""Layer: work. Stage 01: public trajectories -> verified tasks, with every refusal counted.

``<run_dir>/01_synthesise/`` gets ``tasks/{train,heldout}/<task_id>/`` (Harbor task directories),
``tasks.parquet``, ``refused.jsonl`` and ``summary.json``. Work in progress stands in ``pool/`` and
``outcomes.jsonl``, one line for each trajectory, so that a stopped run goes on where it was.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentkit.corpus import seed_folder
from agentkit.errors import SandboxError, TaskError, TraceError
from agentkit.params import SynthesiseParams
from agentkit.runs import Run, append_jsonl, read_jsonl, write_atomic
from agentkit.sandboxes.base import Limits, SandboxBackend
from agentkit.sessions import validate
from agentkit.synthesis.builder import BuildSettings, NotBuilt, build_task
from agentkit.synthesis.executor import Executor
from agentkit.synthesis.gates import run_gates
from agentkit.synthesis.parquet import to_dataset
from agentkit.synthesis.replay import ReplayRefused, replay
from agentkit.synthesis.splits import split_tasks
from agentkit.synthesis.units import NoUnit, find_unit
from agentkit.tasks import read_task, write_task
from agentkit.trajectories import Refusal, read_trajectories
from agentkit.types import KINDS, Files, Task, Trajectory

SEED_LICENCE = "Apache-2.0"
Progress = Callable[[int, int], None]
"""Called with (trajectories done, trajectories in all)."""


@dataclass(frozen=True)
class SynthesisSummary:
    """What the stage made.

    Attributes:
        traces: trajectories read.
        tasks: split -> kind -> number of tasks.
        refused: rows ``stage, category, count, example``, most frequent first.
        gates: gate -> number of validations that held for the tasks which passed them all.
        similarity: threshold of near-duplicates.
        seconds: wall time of this call; finished work of an earlier call takes none.
    """

    traces: int
    tasks: dict[str, dict[str, int]]
    refused: list[dict[str, Any]]
    gates: dict[str, int]
    similarity: float
    seconds: float

    def total(self, split: str) -> int:
        return sum(self.tasks[split].values())


def load_source(params: SynthesiseParams) -> tuple[list[Trajectory], list[Refusal]]:
    """Trajectories of ``params.dataset``. Raises TraceError where there are none."""
    if params.dataset == "seed":
        found = read_trajectories(
            seed_folder(), params.max_traces, dataset="seed", licence=SEED_LICENCE
        )
    else:
        found = read_trajectories(params.dataset, params.max_traces)
    if not found[0]:
        reason = f"no usable trace among {len(found[1])} files"
        first = f"; the first: {found[1][0].reason}" if found[1] else ""
        raise TraceError(params.dataset, reason + first, "sessions of a known format")
    return found


def synthesise(
    params: SynthesiseParams,
    run: Run,
    backend: SandboxBackend,
    *,
    progress: Progress | None = None,
) -> SynthesisSummary:
    """Make the tasks; a finished trajectory is not done again.

    Raises:
        TraceError: the source cannot be read at all.
        TaskError: fewer tasks survive than asked for; the refusals are written all the same.
        SandboxError: the sandbox broke.
    """
    started = time.monotonic()
    trajectories, refusals = load_source(params)
    trajectories, repeated = _distinct(trajectories)
    run.log(f"read {len(trajectories)} traces, refused {len(refusals)} files")
    outcomes = _work(trajectories, params, run, backend, progress)
    tasks = [read_task(run.path("pool", "train", o["task_id"])) for o in outcomes if o["task_id"]]
    refusals += repeated + [Refusal(**o["refusal"]) for o in outcomes if o["refusal"]]
    train, heldout, dropped = split_tasks(
        tasks,
        seed=params.seed,
        share=params.heldout_share,
        heldout=params.heldout_tasks,
        threshold=params.near_duplicate_threshold,
    )
    refusals += dropped
    summary = SynthesisSummary(
        traces=len(trajectories),
        tasks={"train": _by_kind(train), "heldout": _by_kind(heldout)},
        refused=refusal_table(refusals),
        gates=dict(Counter(g for o in outcomes if o["task_id"] for g in o["gates"])),
        similarity=params.near_duplicate_threshold,
        seconds=round(time.monotonic() - started, 1),
    )
    _write_refusals(run, refusals, summary)
    _require(params, summary)
    _write_tasks(run, [*train, *heldout])
    return summary


def _distinct(found: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Refusal]]:
    """Sessions that stand in several files count once."""
    seen: dict[str, str] = {}
    kept, repeated = [], []
    for trajectory in found:
        if trajectory.session_id in seen:
            line = f"the session also stands in {seen[trajectory.session_id]}"
            repeated.append(_refusal(trajectory, "read", "session repeated", line))
        else:
            seen[trajectory.session_id] = trajectory.path
            kept.append(trajectory)
    return kept, repeated


def _work(
    trajectories: Sequence[Trajectory],
    params: SynthesiseParams,
    run: Run,
    backend: SandboxBackend,
    progress: Progress | None,
) -> list[dict[str, Any]]:
    """One outcome for each trajectory, in their order; unfinished ones in parallel."""
    record = run.path("outcomes.jsonl")
    done = {o["session_id"]: o for o in read_jsonl(record)}
    left = [t for t in trajectories if t.session_id not in done]
    finished = len(trajectories) - len(left)
    with ThreadPoolExecutor(params.concurrency, thread_name_prefix="synthesise") as pool:
        futures = [pool.submit(_one, t, params, run, backend) for t in left]
        try:
            for future in as_completed(futures):
                outcome = future.result()
                append_jsonl(record, outcome)
                done[outcome["session_id"]] = outcome
                finished += 1
                if progress:
                    progress(finished, len(trajectories))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [done[t.session_id] for t in trajectories]


def _one(
    trajectory: Trajectory, params: SynthesiseParams, run: Run, backend: SandboxBackend
) -> dict[str, Any]:
    """Replay, find the unit, build and gate; a sandbox that broke is tried once more."""
    try:
        task, gates, refusal = make_task(trajectory, params, backend)
    except SandboxError as error:
        run.log(f"{trajectory.path}: {error}; tried once more")
        task, gates, refusal = make_task(trajectory, params, backend)
    if task is not None:
        write_task(run.path("pool"), task)
    return {
        "session_id": trajectory.session_id,
        "task_id": task.task_id if task else "",
        "gates": gates,
        "refusal": refusal.as_row() if refusal else None,
    }


def make_task(
    trajectory: Trajectory, params: SynthesiseParams, backend: SandboxBackend
) -> tuple[Task | None, list[str], Refusal | None]:
    """(task, names of the gates that held, None) or (None, [], why not). Raises SandboxError."""
    limits = Limits(params.memory_mb, params.disk_mb, params.processes)

    def executor() -> Any:
        return backend.open(limits=limits)

    try:
        with executor() as box:
            unit = find_unit(replay(trajectory, box))
            if unit.kind not in params.kinds:
                raise NoUnit("kind not asked for", unit.kind)
            task = build_task(unit, box, BuildSettings(params.verifier_timeout_s))
    except ReplayRefused as error:
        return None, [], _refusal(trajectory, "replay", error.category, str(error))
    except NoUnit as error:
        return None, [], _refusal(trajectory, "unit", error.category, str(error))
    except NotBuilt as error:
        return None, [], _refusal(trajectory, "build", error.category, str(error))
    return _gate(trajectory, task, executor, params, backend, limits)


def _gate(
    trajectory: Trajectory,
    task: Task,
    executor: Executor,
    params: SynthesiseParams,
    backend: SandboxBackend,
    limits: Limits,
) -> tuple[Task | None, list[str], Refusal | None]:
    def grade(task: Task, workspace: Files) -> float | None:
        return validate(task, workspace, backend, limits).score

    report = run_gates(task, executor, grade, params.gate_repeats)
    if not report.passed:
        category = report.fault.split(" in repeat")[0].split(":")[0]
        refusal = _refusal(trajectory, "gate", category, report.fault)
        return None, [], replace(refusal, task_id=task.task_id)
    held = [gate for gate, scores in report.scores.items() for _ in scores]
    return replace(task, extra={**task.extra, "gates": report.scores}), held, None


def _refusal(trajectory: Trajectory, stage: str, category: str, reason: str) -> Refusal:
    return Refusal(stage, category, reason, trajectory.path, 0, trajectory.session_id)


def refusal_table(refusals: Iterable[Refusal]) -> list[dict[str, Any]]:
    """Rows ``stage, category, count, example``, most frequent first."""
    groups: dict[tuple[str, str], list[Refusal]] = {}
    for refusal in refusals:
        groups.setdefault((refusal.stage, refusal.category), []).append(refusal)
    rows = [
        {"stage": stage, "category": category, "count": len(group), "example": group[0].reason}
        for (stage, category), group in groups.items()
    ]
    return sorted(rows, key=lambda r: (-r["count"], r["stage"], r["category"]))


def _by_kind(tasks: Iterable[Task]) -> dict[str, int]:
    counts = Counter(t.kind for t in tasks)
    return {kind: counts[kind] for kind in KINDS}


def _require(params: SynthesiseParams, summary: SynthesisSummary) -> None:
    for split, wanted in (("heldout", params.heldout_tasks), ("train", params.train_tasks)):
        if summary.total(split) < wanted:
            reasons = "; ".join(f"{r['count']} {r['category']}" for r in summary.refused[:4])
            raise TaskError(
                params.dataset,
                f"{summary.total(split)} {split} tasks from {summary.traces} traces"
                + (f" ({reasons})" if reasons else ""),
                f"at least {wanted}",
                "give more traces, or lower heldout_tasks or train_tasks",
            )


def _write_refusals(run: Run, refusals: Sequence[Refusal], summary: SynthesisSummary) -> None:
    rows = sorted(
        (r.as_row() for r in refusals), key=lambda r: (r["stage"], r["path"], r["task_id"])
    )
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    write_atomic(run.path("refused.jsonl"), lines)
    write_atomic(run.path("summary.json"), json.dumps(asdict(summary), indent=1) + "\n")


def _write_tasks(run: Run, tasks: Sequence[Task]) -> None:
    """Task directories and the parquet file; the set appears by one rename."""
    draft, target = run.path("tasks.tmp"), run.path("tasks")
    shutil.rmtree(draft, ignore_errors=True)
    for task in tasks:
        write_task(draft, task)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    to_dataset(tasks).to_parquet(str(run.path("tasks.parquet")))
