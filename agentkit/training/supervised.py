"""Layer: work. Supervised learning of demonstrations with TRL's SFTTrainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from agentkit.params import WarmStartParams
from agentkit.seeds import derive_seed
from agentkit.training.demonstrations import Demonstration
from agentkit.training.forward import choose_mode, token_logps
from agentkit.training.lora import save_adapter
from agentkit.training.trl_quiet import trl_import

with trl_import():
    from trl import SFTConfig, SFTTrainer


class PackedSFTTrainer(SFTTrainer):
    """SFTTrainer whose loss is computed with shared prefixes forwarded once.

    The same number as TRL's (mean negative log-likelihood of the labelled tokens, in nats), which
    on a CPU would project every prompt position to the vocabulary as well.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        if return_outputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"]
        wanted = labels != -100
        first = int(wanted.any(0).nonzero()[0])
        with self.accelerator.autocast():
            found = token_logps(
                self.accelerator.unwrap_model(model),
                inputs["input_ids"],
                inputs["attention_mask"],
                labels.size(1) - first,
                1.0,
                choose_mode(self.accelerator.unwrap_model(model)),
            )
        keep = wanted[:, first:]
        count = keep.sum() if num_items_in_batch is None else num_items_in_batch
        return -(found[0] * keep).sum() / count


class _Keep(TrainerCallback):
    """Saves the adapter every few steps and notes the loss."""

    def __init__(self, every: int, folder: Path, base_name: str, log: Callable[[str], None]):
        self.every, self.folder, self.base_name, self.log = every, folder, base_name, log
        self.steps: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            save_adapter(model, self.folder / f"s{state.global_step:04d}", base_name=self.base_name)
            self.steps.append(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.log(f"supervised step {state.global_step}: loss {logs['loss']:.4f}")


def sft_config(params: WarmStartParams, folder: Path, micro_batch: int) -> Any:
    """TRL's configuration: a rate that falls linearly to 0, ``sft_batch`` demonstrations a step."""
    return SFTConfig(
        output_dir=str(folder),
        max_steps=params.sft_steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=params.sft_batch // micro_batch,
        learning_rate=params.learning_rate,
        lr_scheduler_type="linear",
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_length=None,
        bf16=params.train_dtype == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        seed=derive_seed(params.seed, "warm_start", "order"),
    )


def supervise(
    params: WarmStartParams,
    rows: Sequence[Demonstration],
    model: Any,
    tokenizer: Any,
    *,
    folder: Path,
    base_name: str,
    log: Callable[[str], None] = lambda line: None,
) -> list[int]:
    """Run the supervised steps; returns the steps whose adapters lie below ``folder``."""
    from datasets import Dataset

    data = Dataset.from_list([{"input_ids": r.input_ids, "labels": r.labels} for r in rows])
    keep = _Keep(params.save_every, folder, base_name, log)
    micro = next(n for n in (8, 4, 2, 1) if params.sft_batch % n == 0)
    kind = SFTTrainer if choose_mode(model) == "trl" else PackedSFTTrainer
    trainer = kind(
        model=model,
        args=sft_config(params, folder / "trainer", micro),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[keep],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return keep.steps
