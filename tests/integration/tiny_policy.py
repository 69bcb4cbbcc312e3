"""A tiny Llama with a byte tokenizer, and sessions that it samples itself: real tokens, real
logprobs, no engine. Shared by the training tests."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentkit.types import Policy, SessionLog, SessionRecord, Turn

VOCAB = 259


def tokenizer() -> PreTrainedTokenizerFast:
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[letter] = len(vocab)
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def base_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 1024,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True,
        "initializer_range": 0.1,
    } | changes  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**settings))


def lora_model(seed: int = 0, base: Any = None) -> Any:
    """Base plus a LoRA whose B matrices are not zero, so that every factor gets a gradient."""
    base = base_model(seed) if base is None else base
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(seed + 1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05
    return model


def save_base(folder: Path, seed: int = 0) -> Path:
    base_model(seed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def logprobs_of(model: Any, prompt: list[int], tokens: list[int]) -> list[float]:
    logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
    return [logits[len(prompt) + k - 1, t].item() for k, t in enumerate(tokens)]


@dataclass
class Session:
    record: SessionRecord
    log: SessionLog


def session(
    model: Any, rng: random.Random, name: str, reward: float | None, *, task: str = "t",
    system: list[int] | None = None, shift: float = 0.0,
) -> Session:  # fmt: skip
    """Two to three turns; sometimes the history is rewritten, which forks a row."""
    log = SessionLog(name, Policy("m"))
    held = list(system or [5, 6, 7, 8])
    for index in range(rng.randint(2, 3)):
        prompt = held + [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 9))]
        tokens = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 7))]
        logprobs = [x + shift for x in logprobs_of(model, prompt, tokens)]
        log.turns.append(Turn(index, "m", prompt, tokens, logprobs, {}, "stop"))
        held = prompt + tokens if rng.random() < 0.7 else prompt[:-1]
    record = SessionRecord(
        session_id=name, task_id=task, kind="qa", source_id="s", harness="pi", model="m",
        arm="train", status="completed" if reward is not None else "engine_error", reward=reward,
        score=reward, correct=None if reward is None else reward > 0,
    )  # fmt: skip
    return Session(record, log)


def groups(
    model: Any, seed: int, *, tasks: int = 3, size: int = 4, shift: float = 0.0
) -> list[list[Session]]:
    rng = random.Random(seed)
    system = [rng.randrange(3, VOCAB) for _ in range(12)]
    out = []
    for task in range(tasks):
        rewards: list[float | None] = [rng.choice([0.0, 0.6, 1.1]) for _ in range(size)]
        if task == 0:
            rewards[:2] = [0.0, 1.0]  # at least one group with a signal
        if task == 1:
            rewards[0] = None
        out.append(
            [
                session(
                    model, rng, f"{seed}-{task}-{k}", r, task=str(task), system=system, shift=shift
                )
                for k, r in enumerate(rewards)
            ]
        )
    return out
