"""Layer: work. Token log-probabilities of a batch of rows, with each shared prefix computed once.

Most of a row is a prefix that other rows share (system prompt, tools, instruction). The rows of a
micro-batch are laid out as a prefix tree in one sequence; a block mask lets each token see exactly
its own ancestors, and position ids are depths. For a decoder whose layers mix tokens by full
attention alone this gives the numbers of separate rows, gradients included. Convolutions, state
space layers and sliding windows mix neighbours in the sequence and are left out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

MAX_PACKED_TOKENS = 8192
"""Above it the dense mask (tokens², one byte each) costs more than the sharing saves."""

_HEAD_EXTRAS = (
    "final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier",
    "logits_scaling",
)  # fmt: skip


@dataclass
class PackedTree:
    """Rows laid out as a prefix tree of N nodes.

    ``tokens`` (N), ``depths`` (N: position ids), ``mask`` (N, N, True = may attend), and for each
    row the node of each of its tokens (``paths``).
    """

    tokens: list[int]
    depths: list[int]
    mask: torch.Tensor
    paths: list[list[int]]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    size = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        size += 1
    return size


def pack(rows: Sequence[Sequence[int]]) -> PackedTree:
    """Build the prefix tree of ``rows`` (each a non-empty token list).

    In sorted order the longest prefix that a row shares with any earlier row is the one that it
    shares with its predecessor.
    """
    paths: list[list[int]] = [[] for _ in rows]
    tokens: list[int] = []
    depths: list[int] = []
    spans: list[tuple[int, int, list[int]]] = []
    before: int | None = None
    for index in sorted(range(len(rows)), key=lambda i: list(rows[i])):
        row = rows[index]
        shared = 0 if before is None else _common(rows[before], row)
        start = len(tokens)
        ancestors = [] if before is None else paths[before][:shared]
        tokens += row[shared:]
        depths += range(shared, len(row))
        paths[index] = ancestors + list(range(start, len(tokens)))
        spans.append((start, len(tokens), ancestors))
        before = index
    mask = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    for start, end, ancestors in spans:
        mask[start:end, ancestors] = True
        mask[start:end, start:end] = torch.ones(end - start, end - start, dtype=torch.bool).tril()
    return PackedTree(tokens, depths, mask, paths)


def shares_prefixes(model: Any) -> bool:
    """Whether the packed forward is exact for ``model``: full attention by SDPA in every layer,
    and an output head without scaling or soft-capping."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config.get_text_config()
    if config._attn_implementation != "sdpa" or getattr(config, "sliding_window", None):
        return False
    if any(getattr(config, name, None) is not None for name in _HEAD_EXTRAS):
        return False
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return config.model_type in {"llama", "mistral", "qwen2", "qwen3"}
    return all(kind == "full_attention" for kind in kinds)


def packed_logps(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    keep: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Log-probabilities and entropies (both (B, ``keep``), nats, float32) of the last ``keep``
    columns of ``input_ids`` (B, L) at ``temperature``; 0 where ``attention_mask`` is 0.

    The output head runs in TRL's chunked kernel on the needed positions only. Returns None where
    packing does not pay: more than MAX_PACKED_TOKENS tokens.
    """
    from trl.kernels import ChunkedLogProbFunction

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    real = attention_mask.bool()
    rows = [ids[on].tolist() for ids, on in zip(input_ids, real, strict=True)]
    # A bound before the work: the tree has at least as many nodes as the longest row.
    if max(map(len, rows)) > MAX_PACKED_TOKENS:
        return None
    tree = pack(rows)
    if len(tree.tokens) > MAX_PACKED_TOKENS:
        return None
    device = input_ids.device
    hidden = base.base_model(
        input_ids=torch.tensor([tree.tokens], device=device),
        attention_mask=tree.mask[None, None].to(device),
        position_ids=torch.tensor([tree.depths], device=device),
        use_cache=False,
    ).last_hidden_state[0]
    scored = real[:, -keep:]
    source: list[int] = []
    for path, count in zip(tree.paths, scored.sum(1).tolist(), strict=True):
        source += path[len(path) - count - 1 : len(path) - 1]
    head = base.get_output_embeddings()
    logps, entropies, *_ = ChunkedLogProbFunction.apply(
        hidden[torch.tensor(source, device=device)],
        head.weight,
        head.bias,
        input_ids[:, -keep:][scored],
        temperature,
        32768,
        None,
        1.0,
        ("log_probs", "entropy"),
    )
    blank = torch.zeros(scored.shape, dtype=torch.float32, device=device)
    return blank.masked_scatter(scored, logps), blank.masked_scatter(scored, entropies)
