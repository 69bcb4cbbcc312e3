"""The warm start's supervised steps: the loss is TRL's, the checkpoints are servable files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkit.params import WarmStartParams, read_yaml
from agentkit.training.demonstrations import Demonstration
from agentkit.training.lora import load_policy
from agentkit.training.supervised import PackedSFTTrainer, SFTTrainer, sft_config, supervise
from tests.integration import tiny_policy as tiny

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]


def params(**changes: Any) -> WarmStartParams:
    values = read_yaml(ROOT / "params" / "cpu" / "warm_start.yaml") | {
        "sft_steps": 4, "sft_batch": 4, "save_every": 2, "lora_rank": 4, "lora_alpha": 8,
        "train_dtype": "float32", "dtype": "float32", "learning_rate": 0.01,
    }  # fmt: skip
    return WarmStartParams.from_mapping(values | changes, "test")


def rows(count: int) -> list[Demonstration]:
    rng = random.Random(0)
    system = [rng.randrange(3, tiny.VOCAB) for _ in range(20)]
    out = []
    for number in range(count):
        ids, labels = list(system), [-100] * len(system)
        for _ in range(rng.randint(1, 3)):
            asked = [rng.randrange(3, tiny.VOCAB) for _ in range(rng.randint(1, 9))]
            answer = [7, 8, rng.randrange(3, tiny.VOCAB), 2]
            ids += asked + answer
            labels += [-100] * len(asked) + answer
        out.append(Demonstration(str(number), ids, labels))
    return out


def first_losses(kind: Any, folder: Path) -> list[float]:
    from datasets import Dataset

    data = Dataset.from_list([{"input_ids": r.input_ids, "labels": r.labels} for r in rows(16)])
    trainer = kind(
        model=tiny.lora_model(),
        args=sft_config(params(), folder, 2),
        train_dataset=data,
        processing_class=tiny.tokenizer(),
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_packed_loss_is_that_of_trl(tmp_path: Path) -> None:
    """Step by step: equal losses also mean equal gradients before them."""
    ours, theirs = first_losses(PackedSFTTrainer, tmp_path), first_losses(SFTTrainer, tmp_path)
    assert len(ours) == 4
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[0] - ours[-1] > 0.1


def test_checkpoints_are_bf16_peft_folders_of_the_base(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    base = tiny.save_base(tmp_path / "base")
    settings = {"rank": 4, "alpha": 8, "targets": "all-linear", "seed": 1, "dtype": "float32"}
    model, tokenizer = load_policy(base, None, **settings)
    steps = supervise(
        params(sft_steps=3), rows(12), model, tokenizer, folder=tmp_path / "c", base_name="tiny"
    )
    assert steps == [2, 3]
    folder = tmp_path / "c" / "s0003"
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny" and config["r"] == 4
    weights = load_file(folder / "adapter_model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    # What is read back is the trained policy, but for bf16 rounding.
    again, _ = load_policy(base, folder, **settings)
    held = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = {n: p for n, p in again.named_parameters() if p.requires_grad}
    assert held.keys() == found.keys() and all(p.dtype == torch.float32 for p in found.values())
    for name, parameter in held.items():
        torch.testing.assert_close(found[name], parameter, rtol=1e-2, atol=1e-3)
    assert any(p.abs().max() > 1e-3 for n, p in found.items() if "lora_B" in n)
