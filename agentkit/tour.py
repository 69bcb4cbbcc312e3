"""Layer: work. Stage 00: one session on the running stack."""

from __future__ import annotations

from pathlib import Path

from agentkit.params import TourParams
from agentkit.runs import append_jsonl
from agentkit.seeds import derive_seed
from agentkit.serving.adapters import AdapterStore
from agentkit.serving.engine import BASE
from agentkit.sessions import SessionResult, run_session
from agentkit.stack import Stack, adapter_folder
from agentkit.types import Task


def tour_session(params: TourParams, stack: Stack, task: Task) -> SessionResult:
    """Serve ``params.adapter``, run ``task`` once under it, append the record and return all of it.

    Raises:
        ModelError: the adapter is missing or does not fit the engine.
        EngineError: engine and trainer do not mean the same distribution.
    """
    # Loads torch, which nothing else of a tour needs.
    from agentkit.serving.agreement import check_agreement

    folder = adapter_folder(params.adapter, stack.run)
    served = BASE
    folders: dict[str, Path | None] = {BASE: None}
    if folder is not None:
        store = AdapterStore(stack.engine.url, stack.run.path("served"), "tour-")
        served = store.publish(folder, 0)
        folders[served] = folder
    report = check_agreement(
        stack.engine.url, stack.model_path, folders, params.agreement_tolerance, dtype=params.dtype
    )
    stack.run.update_manifest(agreement=report)
    seed = derive_seed(params.seed, "tour", task.task_id, 0)
    result = run_session(
        **stack.job(
            task=task,
            policy=stack.policy(served, seed),
            arm="tour",
            adapter=None if folder is None else folder.name,
            attempt=0,
        )
    )
    append_jsonl(stack.run.path("sessions.jsonl"), result.record.model_dump(mode="json"))
    return result
