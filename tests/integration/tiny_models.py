"""Tiny checkpoints and adapters with random weights: real architectures, a few MB, seconds."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

from agentkit.serving.models import CHAT_TEMPLATES

VOCABULARY = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer trained on the standard library, with the kit's chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    files = sorted(glob.glob(str(Path(os.__file__).parent / "*.py")))[:20]
    raw.train(
        files,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = (CHAT_TEMPLATES / "smollm2.jinja").read_text()
    return tokenizer


def make_tiny_llama(folder: Path, seed: int = 0, dtype: str = "float32", **changes: Any) -> Path:
    """Save a Llama of some 0.7 M parameters, with weights large enough to give sharp answers."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(seed)
    config = LlamaConfig(**(settings | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
        # The end token's logit is 0 whatever the hidden state, and some other is always above it:
        # greedily an answer never ends before its limit, on any machine and vocabulary.
        model.get_output_embeddings().weight[config.eos_token_id] = 0
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def make_adapter(
    model_path: Path,
    folder: Path,
    seed: int,
    scale: float = 0.3,
    rank: int = 4,
    targets: list[str] | str = "all-linear",
    **changes: Any,
) -> Path:
    """Save a LoRA adapter with random A and B; ``scale`` 0 leaves B zero, as peft starts it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM", **changes
    )
    model = get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn_like(parameter) * scale)
    model.save_pretrained(folder)
    return folder
