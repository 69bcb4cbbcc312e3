"""Layer: work. TRL's GRPOTrainer on recorded sessions.

TRL keeps the loss, LoRA, the optimizer, logging and checkpoints. Two of its methods are
overridden:

- ``_generate_and_score_completions``: the sessions are run by a *collector*, and the returned
  tensors come from the gateway's record. TRL's own hook (``rollout_func``) wants exactly one row
  for each prompt and ignores the sampler's logprobs, which rules out forked histories.
- ``_get_per_token_logps_and_entropies``: the same numbers, computed without work on padding, on
  prompt positions and on prefixes that rows share (:mod:`agentkit.training.forward`).

Both are private methods: the version is pinned, and :func:`check_contract` and the tests say what
must hold of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from agentkit.training.trl_quiet import trl_import

with trl_import():
    from trl import GRPOConfig, GRPOTrainer

from agentkit.errors import TrainingError
from agentkit.training.batch import (
    FinishedSession,
    Selection,
    collate,
    pad_rows,
    select_rows,
)
from agentkit.training.forward import choose_mode, token_logps
from agentkit.types import Baseline

TRL_VERSION = "1.16.0"
Collector = Callable[[int], Sequence[Sequence[FinishedSession]]]
"""``collect(step) -> groups``; a group holds the finished sessions of one task."""


def check_contract() -> None:
    """Raise TrainingError where the installed TRL is not the one whose private methods we know."""
    version = metadata.version("trl")
    wanted = {
        "_generate_and_score_completions": ["self", "inputs"],
        "_get_per_token_logps_and_entropies": [
            "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size",
            "compute_entropy", "compute_aux_loss",
        ],
        "_compute_loss": ["self", "model", "inputs"],
    }  # fmt: skip
    for name, parameters in wanted.items():
        method = getattr(GRPOTrainer, name, None)
        found = list(inspect.signature(method).parameters)[: len(parameters)] if method else []
        if version != TRL_VERSION or found != parameters:
            raise TrainingError(
                "trl",
                f"version {version}, {name}({', '.join(found)})",
                f"version {TRL_VERSION}",
                f"pip install trl=={TRL_VERSION}",
            )


def grpo_config(
    output_dir: Path,
    *,
    steps: int,
    sessions_per_step: int,
    micro_batch_rows: int,
    learning_rate: float,
    temperature: float,
    clip_low: float,
    clip_high: float,
    max_grad_norm: float,
    dtype: str,
    gradient_checkpointing: bool,
    seed: int,
    keep_checkpoints: int = 2,
) -> GRPOConfig:
    """The TRL configuration for one optimizer step for each batch of sessions.

    ``micro_batch_rows`` rows are forwarded at once when every session gives one row in the loss;
    with fewer or more rows a step still has the same number of micro-batches.
    """
    parts = max(1, -(-sessions_per_step // micro_batch_rows))
    # TRL wants a batch that is a multiple of num_generations >= 2. Our groups do not depend on it.
    if (micro_batch_rows * parts) % 2:
        parts += 1
    on_gpu = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output_dir),
        max_steps=steps,
        per_device_train_batch_size=micro_batch_rows,
        gradient_accumulation_steps=parts,
        num_generations=2,
        num_iterations=1,
        loss_type="dapo",
        beta=0.0,
        epsilon=clip_low,
        epsilon_high=clip_high,
        temperature=temperature,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=max_grad_norm,
        optim="adamw_torch",
        bf16=dtype == "bfloat16",
        fp16=False,
        use_cpu=not on_gpu,
        gradient_checkpointing=gradient_checkpointing,
        disable_dropout=True,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=keep_checkpoints,
        ignore_data_skip=True,
        dataloader_pin_memory=on_gpu,
        report_to=[],
        disable_tqdm=True,
        seed=seed,
    )


def _no_reward(prompts: list[Any], **_: Any) -> list[float]:
    """TRL asks for a reward function; ours come with the sessions, and this is never called."""
    raise TrainingError("trainer", "TRL asked for a reward", "recorded sessions")


class _SkipEmptyStep(TrainerCallback):
    """Leave weights and optimizer state untouched where no row carries an advantage.

    AdamW moves weights on zero gradients (momentum); without gradients it passes them over.
    """

    def __init__(self, trainer: SessionGRPOTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.trainer.selection.rows:
            self.trainer.model.zero_grad(set_to_none=True)


class SessionGRPOTrainer(GRPOTrainer):
    """GRPO on groups of recorded agent sessions.

    Args:
        model: a ``peft`` model whose adapter is trainable.
        collect: runs the sessions of a step (counted from 0) under the current policy.
        baseline: what a group's rewards are measured from.
        scale_by_std: divide advantages by the group's standard deviation.
        max_row_tokens: see :func:`agentkit.training.rows.build_rows`.
        share_prefixes: forward common prefixes once, where the architecture allows it (exact).
    """

    def __init__(
        self,
        model: Any,
        *,
        collect: Collector,
        args: GRPOConfig,
        tokenizer: Any,
        baseline: Baseline = "mean",
        scale_by_std: bool = False,
        max_row_tokens: int | None = None,
        share_prefixes: bool = True,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        from datasets import Dataset

        check_contract()
        places = args.generation_batch_size // args.num_generations
        super().__init__(
            model=model,
            reward_funcs=_no_reward,
            args=args,
            # One generation batch of placeholders: an "epoch" is a step, and the tasks of a step
            # are chosen by the collector from (seed, step), not by a data loader's state.
            train_dataset=Dataset.from_dict({"prompt": [""] * places}),
            processing_class=tokenizer,
            callbacks=[_SkipEmptyStep(self), *(callbacks or [])],
        )
        self.remove_callback(PrinterCallback)
        self._collect = collect
        self._baseline: Baseline = baseline
        self._scale_by_std, self._max_row_tokens = scale_by_std, max_row_tokens
        self._mode = choose_mode(self.model, share_prefixes)
        self.selection = Selection([])
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _generate_and_score_completions(
        self, inputs: list[dict[str, Any]]
    ) -> dict[str, torch.Tensor]:
        """Run the step's sessions; the placeholders in ``inputs`` are ignored."""
        groups = self._collect(self.state.global_step)
        self.selection = select_rows(
            groups,
            baseline=self._baseline,
            scale_by_std=self._scale_by_std,
            max_row_tokens=self._max_row_tokens,
        )
        self._seen = []
        pad_id = self._tokenizer.pad_token_id
        rows = pad_rows(self.selection.rows, self.args.steps_per_generation, pad_id)
        device = self.accelerator.device
        return {key: value.to(device) for key, value in collate(rows, pad_id).items()}

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **images: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities and entropies (B, ``logits_to_keep``) of the last tokens, in nats.

        Equal to TRL's own wherever ``attention_mask`` is 1; see ``training.forward`` for how.
        Several processes need DDP's hooks, and an auxiliary loss the whole model: TRL's way.
        """
        if self._mode == "trl" or compute_aux_loss or self.accelerator.num_processes > 1:
            logps, entropies, aux = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size,
                True, compute_aux_loss, **images,
            )  # fmt: skip
        else:
            aux = None
            with self.accelerator.autocast():
                logps, entropies = token_logps(
                    self.accelerator.unwrap_model(model),
                    input_ids,
                    attention_mask,
                    logits_to_keep,
                    self.temperature,
                    self._mode,
                )
        self._seen.append((logps.detach(), entropies.detach()))
        return logps, entropies if compute_entropy else None, aux

    def token_statistics(self) -> dict[str, float]:
        """Over the trained tokens of the last step, before its update.

        ``ratio`` is trainer / engine probability: share within [0.8, 1.25], mean, and the share
        that PPO's clip cut off; ``kl`` is Schulman's k3 estimator of KL(engine, trainer) in nats;
        ``entropy`` is the trainer's mean token entropy in nats. Empty where no row was trained.
        """
        old, new, entropy, sign = [], [], [], []
        for part, (logps, entropies) in zip(self._buffered_inputs or [], self._seen, strict=False):
            keep = (part["completion_mask"] * part["tool_mask"]).bool()
            old.append(part["old_per_token_logps"][keep])
            new.append(logps[keep].float())
            entropy.append(entropies[keep].float())
            sign.append(part["advantages"].unsqueeze(1).expand_as(keep)[keep])
        if not old or not sum(map(len, old)):
            return {}
        change = torch.cat(new) - torch.cat(old)
        ratio, advantage = change.exp(), torch.cat(sign)
        clipped = ((ratio < 1 - self.epsilon_low) & (advantage < 0)) | (
            (ratio > 1 + self.epsilon_high) & (advantage > 0)
        )
        return {
            "ratio_in_band": ((ratio >= 0.8) & (ratio <= 1.25)).float().mean().item(),
            "ratio_mean": ratio.mean().item(),
            "clip_fraction": clipped.float().mean().item(),
            "kl_engine_trainer": (ratio - 1 - change).mean().item(),
            "entropy": torch.cat(entropy).mean().item(),
        }
