"""Layer: work. The warm start: supervised learning of the tool format on the training split.

A small model cannot call tools untrained, and one that is taught too long solves everything and
leaves reinforcement learning nothing to do. So checkpoints are kept while TRL's SFTTrainer runs,
and the one whose pass rate on tasks of the training split (not among the demonstrations) falls
into a given window is chosen, by measurement in the real harness.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentkit.errors import TrainingError
from agentkit.params import WarmStartParams
from agentkit.runs import Run, append_jsonl, environment, read_jsonl, write_atomic
from agentkit.seeds import derive_seed
from agentkit.serving.adapters import AdapterStore
from agentkit.serving.agreement import check_agreement
from agentkit.serving.engine import BASE
from agentkit.serving.models import model_hashes, model_name
from agentkit.sessions import probe
from agentkit.stack import Stack
from agentkit.training.demonstrations import (
    Demonstration,
    data_sha256,
    demonstrations,
    probe_form,
)
from agentkit.training.lora import load_policy
from agentkit.training.supervised import supervise
from agentkit.types import Task, Trajectory

DEMONSTRATION_TOKENS = 2048


@dataclass(frozen=True)
class Measured:
    """One checkpoint in the real harness: unbroken sessions, share solved, mean calls."""

    step: int
    sessions: int
    broken: int
    pass_rate: float
    calls: float


def choose_step(
    steps: Sequence[int], measure: Callable[[int], float], low: float, high: float
) -> int | None:
    """A step whose pass rate lies in [``low``, ``high``]; None where none was met.

    The last step first, since a training that falls short shows there at once; then bisection. The
    pass rate grows with the steps but for noise, so that a rate below the window sends the search
    to later steps, one above it to earlier ones.
    """
    start, end, at = 0, len(steps) - 1, len(steps) - 1
    while start <= end:
        rate = measure(steps[at])
        if low <= rate <= high:
            return steps[at]
        if rate < low:
            start = at + 1
        else:
            end = at - 1
        at = (start + end) // 2
    return None


def measure_step(
    params: WarmStartParams,
    run: Run,
    stack: Stack,
    store: AdapterStore,
    step: int,
    dev: Sequence[Task],
) -> Measured:
    """One session for each dev task under the checkpoint of ``step``, in the real harness.

    Raises:
        EngineError: engine and trainer do not mean the same distribution.
        TrainingError: most sessions broke.
    """
    folder = run.path("checkpoints", f"s{step:04d}")
    served = store.publish(folder, step)
    report = check_agreement(
        stack.engine.url,
        stack.model_path,
        {BASE: None, served: folder},
        params.agreement_tolerance,
        dtype=params.dtype,
    )
    run.update_manifest(agreement=report)
    jobs = [
        stack.job(
            task=task,
            policy=stack.policy(served, derive_seed(params.seed, "warm_start", task.task_id)),
            arm="warm_start_dev",
            adapter=f"s{step:04d}",
            attempt=0,
        )
        for task in dev
    ]
    records = []
    for result in stack.run_sessions(jobs):
        append_jsonl(run.path("sessions.jsonl"), result.record.model_dump(mode="json"))
        records.append(result.record)
    store.retire(served)
    held = [r for r in records if not r.broken]
    if len(held) < len(records) / 2:
        stack.engine.check()
        reason = next(r.reason for r in records if r.broken)
        raise TrainingError(
            f"checkpoint s{step:04d}", f"{len(records) - len(held)} sessions broke: {reason}", "few"
        )
    return Measured(
        step,
        len(held),
        len(records) - len(held),
        float(np.mean([bool(r.correct) for r in held])),
        float(np.mean([r.calls for r in held])),
    )


def split_tasks(tasks: Sequence[Task], params: WarmStartParams) -> tuple[list[Task], list[Task]]:
    """(tasks to measure on, tasks to demonstrate), disjoint by source trajectory.

    Raises:
        TrainingError: too few tasks.
    """
    order = np.random.default_rng(derive_seed(params.seed, "warm_start", "split"))
    shuffled = [tasks[i] for i in order.permutation(len(tasks))]
    dev, rest = shuffled[: params.dev_tasks], shuffled[params.dev_tasks :]
    sources = {task.source_id for task in dev}
    rest = [task for task in rest if task.source_id not in sources]
    if len(dev) < params.dev_tasks or not rest:
        raise TrainingError(
            "dev_tasks", f"{params.dev_tasks} of {len(tasks)} training tasks", "fewer"
        )
    return dev, rest


def warm_start(
    params: WarmStartParams,
    run: Run,
    stack: Stack,
    tasks: Sequence[Task],
    trajectories: Sequence[Trajectory],
    install: Path,
) -> dict[str, Any]:
    """Build the warm-start adapter and install it with its manifest below ``install``.

    Args:
        tasks: the training split only; the held-out tasks are never looked at.
        trajectories: those that the tasks were made from.

    Returns the manifest. Raises TrainingError where no checkpoint fell into the window.
    """
    dev, rest = split_tasks(tasks, params)
    name = model_name(stack.model_path)
    model, tokenizer = load_policy(
        stack.model_path,
        None,
        rank=params.lora_rank,
        alpha=params.lora_alpha,
        targets=params.lora_targets,
        seed=derive_seed(params.seed, "warm_start", "lora"),
        dtype=params.dtype,
    )
    form = probe_form(
        lambda text: probe(stack.harness, stack.backend, stack.settings, text), dev[0].instruction
    )
    by_id = {t.session_id: t for t in trajectories}
    rest = rest[: params.demonstrations]
    rows, refused = demonstrations(rest, by_id, form, tokenizer, max_tokens=DEMONSTRATION_TOKENS)
    for copy in range(1, params.copies):
        names = np.random.default_rng(derive_seed(params.seed, "warm_start", "names", copy))
        rows += demonstrations(
            rest, by_id, form, tokenizer, max_tokens=DEMONSTRATION_TOKENS, renamed=names
        )[0]
    run.log(f"{len(rows)} demonstrations of {len(rest)} tasks; refused: {dict(refused)}")
    if len(rows) < params.sft_batch:
        raise TrainingError("demonstrations", f"{len(rows)}", f"at least {params.sft_batch}")
    steps = _supervised(params, run, rows, model, tokenizer, name)
    del model
    store = AdapterStore(stack.engine.url, run.path("served"), "warm-start")
    table = [Measured(**line) for line in read_jsonl(run.path("measured.jsonl"))]

    def measure(step: int) -> float:
        known = [m for m in table if m.step == step]
        found = known[0] if known else measure_step(params, run, stack, store, step, dev)
        if not known:
            table.append(found)
            append_jsonl(run.path("measured.jsonl"), asdict(found))
        line = (
            f"step {step}: {100 * found.pass_rate:.0f}% of {found.sessions} solved, "
            f"{found.calls:.2f} calls"
        )
        run.log(line)
        print(line, flush=True)
        return found.pass_rate

    chosen = choose_step(steps, measure, params.target_low, params.target_high)
    manifest = {
        "name": params.name,
        "base_model": {"name": params.model, **model_hashes(stack.model_path)},
        "harness": {"name": stack.harness.name, "version": stack.harness.version},
        "prompt_sha256": form.sha256(),
        "train_tasks": len(tasks),
        "demonstrations": len(rows),
        "demonstrated_sources": sorted({task.source_id for task in rest}),
        "demonstrations_sha256": data_sha256(rows),
        "demonstration_tokens": sum(len(r.input_ids) for r in rows),
        "refused": dict(refused),
        "measured": [asdict(m) for m in table],
        "chosen_step": chosen,
        "params": {k: v for k, v in params.model_dump(mode="json").items() if k != "run_dir"},
        "packages": environment()["packages"],
        "licence": "Apache-2.0",
    }
    write_atomic(run.path("warm_start.json"), json.dumps(manifest, indent=1) + "\n")
    if chosen is None:
        rates = ", ".join(f"{m.step}: {100 * m.pass_rate:.0f}%" for m in table)
        raise TrainingError(
            "warm start",
            f"pass rates by step {rates}",
            f"one in {100 * params.target_low:.0f} to {100 * params.target_high:.0f}%",
            "lower save_every, or change sft_steps or learning_rate",
        )
    _install(run.path("checkpoints", f"s{chosen:04d}"), install / params.name, manifest)
    return manifest


def _supervised(
    params: WarmStartParams,
    run: Run,
    rows: Sequence[Demonstration],
    model: Any,
    tokenizer: Any,
    base_name: str,
) -> list[int]:
    """The supervised steps, once: a resumed run finds their checkpoints."""
    done, digest = run.path("supervised.json"), data_sha256(rows)
    if done.exists():
        found = json.loads(done.read_text())
        if found["demonstrations_sha256"] == digest:
            return list(found["steps"])
    steps = supervise(
        params,
        rows,
        model,
        tokenizer,
        folder=run.path("checkpoints"),
        base_name=base_name,
        log=run.log,
    )
    data = {"demonstrations_sha256": digest, "steps": steps}
    write_atomic(done, json.dumps(data) + "\n")
    return steps


def _install(source: Path, target: Path, manifest: dict[str, Any]) -> None:
    draft = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft)
    (draft / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    draft.replace(target)
