"""Layer: work. Runs a plan to its end, and an evaluation of adapters on the running stack."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.errors import RunError
from agentkit.evaluation.plan import (
    Execute,
    Finished,
    Planned,
    SessionLedger,
    parse_arms,
    plan_sessions,
)
from agentkit.params import EvaluateParams, SessionParams
from agentkit.runs import Run, tree_hashes
from agentkit.types import SessionRecord, Task

if TYPE_CHECKING:
    from agentkit.stack import Stack


def run_plan(
    ledger: SessionLedger,
    execute: Execute,
    *,
    check_engine: Callable[[], None] = lambda: None,
    label: str = "sessions",
) -> list[dict[str, Any]]:
    """Run what is pending until every planned session has its final record.

    ``check_engine`` raises where the engine is gone. Sessions that failed because of that are not
    counted as tries: the stage stops, and goes on where it stopped when it is run again.

    Raises:
        EngineError: the engine is gone.
        RunError: no space left; the records that are there are whole.
    """
    from tqdm.auto import tqdm

    rates = _Rates()
    with tqdm(
        total=len(ledger.plan),
        initial=len(ledger.final),
        desc=label,
        unit="session",
        smoothing=0.1,
        mininterval=0.5,
    ) as bar:
        while pending := ledger.pending():
            for finished in execute(pending):
                if finished.record.status == "engine_error":
                    check_engine()
                final = ledger.add(finished)
                rates.add(finished.record if final else None)
                bar.set_postfix_str(str(rates), refresh=False)
                bar.update(int(final))
    return ledger.records()


@dataclass
class _Rates:
    """Pass rate by arm since the start of this process, and broken tries, for the bar."""

    solved: dict[str, list[int]] = field(default_factory=dict)
    broken: int = 0

    def add(self, record: SessionRecord | None) -> None:
        if record is None or record.correct is None:
            self.broken += 1
            return
        counts = self.solved.setdefault(record.arm, [0, 0])
        counts[0] += int(record.correct)
        counts[1] += 1

    def __str__(self) -> str:
        parts = [f"{arm} {100 * k / n:.0f}%" for arm, (k, n) in sorted(self.solved.items())]
        return " ".join([*parts, *([f"{self.broken} broken"] if self.broken else [])])


def evaluate(
    params: EvaluateParams, run: Run, stack: Stack, tasks: Sequence[Task]
) -> list[dict[str, Any]]:
    """Run every task under every arm of ``params.arms``; returns the final records.

    Raises:
        ModelError: an arm's adapter is missing or does not fit the engine.
        EngineError: the engine died; run again to resume.
        RunError: no space left, or an arm's adapter is another one than before.
    """
    from agentkit.stack import adapter_folder

    adapters = {name: adapter_folder(value, run) for name, value in parse_arms(params.arms).items()}
    return evaluate_arms(
        params,
        run,
        stack,
        tasks,
        adapters,
        attempts=params.attempts,
        broken_retries=params.broken_retries,
        keep_transcripts=params.keep_transcripts,
    )


def evaluate_arms(
    params: SessionParams,
    run: Run,
    stack: Stack,
    tasks: Sequence[Task],
    adapters: Mapping[str, Path | None],
    *,
    attempts: int,
    broken_retries: int,
    keep_transcripts: bool,
) -> list[dict[str, Any]]:
    """The same for adapters given by folder (None: the base model), for 03 and 04 alike."""
    plan = plan_sessions(tasks, list(adapters), attempts, params.seed)
    ledger = SessionLedger(run.folder, plan, broken_retries, keep_transcripts)
    _check_arms(run, adapters)
    print(f"{len(plan):,} sessions planned, {len(ledger.final):,} of them finished before")
    if ledger.pending():
        with ExitStack() as cleanup:
            served = _serve(run, stack, adapters, cleanup)
            run_plan(
                ledger,
                stack_executor(stack, served, adapters),
                check_engine=stack.engine.check,
                label=params.stage,
            )
    records = ledger.records()
    broken = sum(SessionRecord.model_validate(r).broken for r in records)
    run.update_manifest(
        sessions={
            "expected": len(plan),
            "finished": len(records),
            "broken": broken,
            "broken_tries": sum(ledger.tries.values()),
        }
    )
    return records


def _check_arms(run: Run, adapters: Mapping[str, Path | None]) -> None:
    """Note each arm's adapter by hash; a resumed run must not mix two adapters in one arm."""
    found: dict[str, Any] = {}
    for name, folder in adapters.items():
        hashes = {} if folder is None else tree_hashes([folder])
        found[name] = {
            "adapter": "none" if folder is None else folder.name,
            "sha256": next((entry["sha256"] for entry in hashes.values()), None),
        }
    before = run.manifest.get("arms", found)
    changed = [name for name in found if before.get(name) != found[name]]
    if changed:
        raise RunError(
            str(run.folder),
            f"arm {changed[0]!r} has another adapter than the sessions that are there",
            "the adapter that the run began with",
            "restore it or choose another run_dir",
        )
    run.update_manifest(arms=found)


def _serve(
    run: Run, stack: Stack, adapters: Mapping[str, Path | None], cleanup: ExitStack
) -> dict[str, str]:
    """Publish the arms' adapters; returns arm -> served name. ``cleanup`` takes them back."""
    from agentkit.serving.adapters import AdapterStore
    from agentkit.serving.agreement import check_agreement
    from agentkit.serving.engine import BASE

    # The random part: an engine that is attached to may still know the names of a killed run.
    store = AdapterStore(
        stack.engine.url,
        run.path("served"),
        f"{run.params.stage}-{uuid.uuid4().hex[:6]}",
        model_path=stack.model_path,
        max_loras=stack.params.max_loras,
        max_rank=stack.params.max_lora_rank,
    )

    def retire(name: str) -> None:
        if stack.engine.alive():  # a dead engine serves nothing, and its own error should be seen
            store.retire(name)

    served = {}
    for version, (arm, folder) in enumerate(adapters.items()):
        if folder is None:
            served[arm] = BASE
            continue
        served[arm] = store.publish(folder, version)
        cleanup.callback(retire, served[arm])
        run.log(f"arm {arm}: {folder.name} served as {served[arm]}")
    folders = {served[arm]: folder for arm, folder in adapters.items()}
    report = check_agreement(
        stack.engine.url,
        stack.model_path,
        folders,
        stack.params.agreement_tolerance,
        dtype=stack.params.dtype,
    )
    run.update_manifest(agreement=report)
    return served


def stack_executor(
    stack: Stack, served: Mapping[str, str], adapters: Mapping[str, Path | None]
) -> Execute:
    """Runs planned sessions on the stack, ``params.concurrency`` at a time."""

    def execute(planned: Sequence[Planned]) -> Iterator[Finished]:
        by_key = {p.key: p for p in planned}

        def job(p: Planned) -> Any:
            folder = adapters[p.arm]
            return stack.job(
                task=p.task,
                policy=stack.policy(served[p.arm], p.seed),
                arm=p.arm,
                adapter=None if folder is None else folder.name,
                attempt=p.attempt,
            )

        for result in stack.run_sessions(job(p) for p in planned):
            record = result.record
            planned_one = by_key[record.task_id, record.arm, record.attempt]
            yield Finished(planned_one, record, result.transcript)

    return execute
