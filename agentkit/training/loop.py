"""Layer: work. The steps of a training run around TRL's loop: publish, checkpoint, metrics.

Order within a step: sessions under version ``v`` → optimizer step → version ``v + 1`` published →
checkpoint → marker → metrics line. A process may be killed between any two: on the next start the
newest whole checkpoint decides, a missing metrics line is completed from its marker, and its policy
is published anew, under a name that the engine has never seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from transformers import TrainerCallback

from agentkit.errors import TrainingError
from agentkit.params import GrpoParams
from agentkit.training.checkpoint import complete_metrics, latest, mark_complete
from agentkit.training.collect import ServedPolicy, StepCollector, session_metrics
from agentkit.training.lora import adapter_sha256, save_adapter
from agentkit.training.trainer import SessionGRPOTrainer, grpo_config

Log = Callable[[str], None]


class Publisher(Protocol):
    """Puts adapter versions before the engine and takes them back."""

    def publish(self, model: Any, version: int) -> str:
        """Serve the adapter of ``model``; return its served name, new at every call."""

    def retire(self, name: str) -> None:
        """Stop serving ``name`` once no session uses it."""


@dataclass
class Paths:
    """Files of a training run below its stage folder."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def sessions(self) -> Path:
        return self.folder / "sessions.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.folder / "rollouts.jsonl"

    def adapter(self, version: int) -> Path:
        return self.folder / "adapters" / f"v{version:04d}"


@dataclass
class StepLoop(TrainerCallback):
    """The callback that surrounds each of TRL's steps; see the module's text for the order."""

    params: GrpoParams
    paths: Paths
    publisher: Publisher
    base_name: str
    log: Log = lambda line: None
    on_ready: Callable[[ServedPolicy, Any], None] = lambda served, model: None
    on_metrics: Callable[[dict[str, Any]], None] = lambda metrics: None
    served: ServedPolicy | None = None
    collector: StepCollector | None = None
    trainer: SessionGRPOTrainer | None = None
    _marks: dict[str, float] = field(default_factory=dict)

    def current(self) -> ServedPolicy:
        """The version that answers now."""
        if self.served is None:
            raise TrainingError("training", "no adapter is served yet", "a published one")
        return self.served

    def _publish(self, model: Any, version: int) -> None:
        old = self.served
        name = self.publisher.publish(model, version)
        self.served = ServedPolicy(name, version, adapter_sha256(model))
        if old is not None:
            self.publisher.retire(old.name)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        self._publish(model, state.global_step)
        if state.global_step == 0:
            save_adapter(model, self.paths.adapter(0), base_name=self.base_name)
        self.on_ready(self.current(), model)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # TRL has not yet run the sessions: they are run when it asks for the first micro-batch.
        self._marks = {"begin": time.monotonic()}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._marks["trained"] = time.monotonic()
        if self.trainer is not None and self.trainer.selection.rows:
            self._publish(model, state.global_step)
        self._marks["published"] = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        version, keep = state.global_step, self.params.keep_every
        if version % keep == 0 or version == state.max_steps:
            save_adapter(model, self.paths.adapter(version), base_name=self.base_name)
        metrics = self._metrics(state)
        mark_complete(self.paths.checkpoints / f"checkpoint-{version}", metrics)
        complete_metrics(self.paths.metrics, metrics)
        self.on_metrics(metrics)

    def _metrics(self, state: Any) -> dict[str, Any]:
        assert self.trainer is not None and self.collector is not None
        marks, collected = self._marks, self.collector.seconds
        logged = state.log_history[-1]
        skipped = not self.trainer.selection.rows
        if skipped:
            self.log(f"step {state.global_step - 1}: no group with unequal rewards, no update")
        return {
            "step": state.global_step - 1,
            **session_metrics(self.collector.groups),
            **self.trainer.selection.counts,
            "skipped": skipped,
            # Without a row there is nothing that the loss or the gradient could be of.
            "loss": None if skipped else logged["loss"],
            "grad_norm": None if skipped else logged["grad_norm"],
            "learning_rate": logged["learning_rate"],
            **self.trainer.token_statistics(),
            "reused_sessions": self.collector.reused,
            "rollout_s": collected,
            "train_s": marks["trained"] - marks["begin"] - collected,
            "publish_s": marks["published"] - marks["trained"],
            "save_s": time.monotonic() - marks["published"],
            "served": self.current().name,
            "version": self.current().version,
            "adapter_sha256": self.current().sha256,
        }


def run_steps(
    params: GrpoParams,
    model: Any,
    tokenizer: Any,
    *,
    loop: StepLoop,
    collector: StepCollector,
) -> Path:
    """Train ``params.steps`` steps, from the newest whole checkpoint on; return the last adapter.

    Raises:
        TrainingError: see :func:`agentkit.training.checkpoint.complete_metrics` and the collector.
    """
    paths = loop.paths
    found = latest(paths.checkpoints)
    complete_metrics(paths.metrics, found[1] if found else None)
    config = grpo_config(
        paths.checkpoints,
        steps=params.steps,
        sessions_per_step=params.tasks_per_step * params.sessions_per_task,
        micro_batch_rows=params.micro_batch_rows,
        learning_rate=params.learning_rate,
        temperature=params.temperature,
        clip_low=params.clip_low,
        clip_high=params.clip_high,
        max_grad_norm=params.max_grad_norm,
        dtype=params.train_dtype,
        gradient_checkpointing=params.gradient_checkpointing,
        seed=params.seed,
    )
    trainer = SessionGRPOTrainer(
        model,
        collect=collector,
        args=config,
        tokenizer=tokenizer,
        baseline=params.baseline,
        scale_by_std=params.scale_by_std,
        max_row_tokens=params.max_row_tokens,
        callbacks=[loop],
    )
    loop.trainer, loop.collector = trainer, collector
    if found:
        loop.log(f"resuming after step {found[1]['step']} from {found[0].name}")
    if found is None or found[1]["step"] + 1 < params.steps:
        trainer.train(resume_from_checkpoint=str(found[0]) if found else None)
    return paths.adapter(params.steps)
