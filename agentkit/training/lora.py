"""Layer: work. The trainable policy: a frozen base model with a LoRA adapter, and its files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

from agentkit.errors import ModelError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def load_policy(
    model_path: Path,
    adapter: Path | None,
    *,
    rank: int,
    alpha: int,
    targets: str,
    seed: int,
    dtype: str = "bfloat16",
) -> tuple[Any, Any]:
    """Return (peft model with a trainable float32 adapter, tokenizer).

    The base stays in ``dtype``, as the engine holds it, and is frozen. A fresh adapter (``adapter``
    None) starts with B = 0, so that the policy is the base model; an existing one must have the
    given rank and alpha.

    Args:
        targets: ``all-linear``, or layer names separated by commas.

    Raises:
        ModelError: the adapter does not fit the parameters.
    """
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # a second bar beside the stage's own
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    base = AutoModelForCausalLM.from_pretrained(
        model_path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    if adapter is not None:
        _check_fit(adapter, rank, alpha)
        return PeftModel.from_pretrained(base, str(adapter), is_trainable=True), tokenizer
    names = targets if targets == "all-linear" else [x.strip() for x in targets.split(",")]
    config = LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=names, task_type="CAUSAL_LM"
    )
    torch.manual_seed(seed)
    return get_peft_model(base, config), tokenizer


def _check_fit(adapter: Path, rank: int, alpha: int) -> None:
    try:
        config = json.loads((adapter / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise ModelError(
            str(adapter), f"no readable {CONFIG}", "a peft adapter folder", "check initial_adapter"
        ) from error
    found = (config.get("r"), config.get("lora_alpha"))
    if found != (rank, alpha):
        raise ModelError(
            str(adapter),
            f"rank {found[0]} and alpha {found[1]}",
            f"rank {rank} and alpha {alpha}",
            "set lora_rank and lora_alpha to the adapter's",
        )


def save_adapter(model: Any, folder: Path, *, base_name: str) -> Path:
    """Write the adapter in bfloat16 as a peft directory, whole or not at all.

    The engine rounds adapter weights to its own dtype anyway, so that bfloat16 files serve the same
    policy at half the size; the checkpoints keep the float32 weights.

    Args:
        base_name: how the base model is called in the file (a name, never a local path).
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    config = model.peft_config[model.active_adapter]
    before = config.base_model_name_or_path, config.inference_mode
    config.base_model_name_or_path, config.inference_mode = base_name, True
    with warnings.catch_warnings():
        # peft looks for a changed vocabulary in the base model's repository.
        warnings.filterwarnings("ignore", message="Could not find a config file")
        state = get_peft_model_state_dict(model, save_embedding_layers=False)
    try:
        config.save_pretrained(str(draft))
    finally:
        config.base_model_name_or_path, config.inference_mode = before
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in state.items()}
    save_file(tensors, str(draft / WEIGHTS), metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    return draft.replace(folder)


def adapter_sha256(model: Any) -> str:
    """Digest of the trainable weights as they are in memory (names, shapes and exact values)."""
    total = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if parameter.requires_grad:
            data = parameter.detach().to("cpu", torch.float32).contiguous()
            total.update(f"{name}{tuple(data.shape)}".encode() + data.numpy().tobytes())
    return total.hexdigest()
