"""Layer: work. Token log-probabilities of a batch of rows, with each shared prefix computed once.

Most of a row is a prefix that other rows share (system prompt, tools, instruction). The rows of a
micro-batch are laid out as a prefix tree in one sequence: every token stands once, position ids are
depths, and attention lets each token see exactly its own ancestors. For a decoder whose layers mix
tokens by full attention alone this gives the numbers of separate rows, gradients included.
Convolutions, state space layers and sliding windows mix neighbours in the sequence: left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

TREE_ATTENTION = "agentkit_tree"
HEAD_POSITIONS = 1024
"""Positions that are projected to the vocabulary at once on a CPU (49,152 words: 200 MB)."""

_HEAD_EXTRAS = (
    "final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier",
    "logits_scaling",
)  # fmt: skip


@dataclass(frozen=True)
class Span:
    """New tokens of one row: nodes ``start`` to ``end``, behind ``ancestors`` (nodes, by depth)."""

    start: int
    end: int
    ancestors: list[int]


@dataclass(frozen=True)
class PackedTree:
    """Rows laid out as a prefix tree of N nodes.

    ``tokens`` (N), ``depths`` (N: position ids), ``spans`` that cover all nodes in order, and for
    each row the node of each of its tokens (``paths``).
    """

    tokens: list[int]
    depths: list[int]
    spans: list[Span]
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
    spans: list[Span] = []
    before: int | None = None
    for index in sorted(range(len(rows)), key=lambda i: list(rows[i])):
        row = rows[index]
        shared = 0 if before is None else _common(rows[before], row)
        ancestors = [] if before is None else paths[before][:shared]
        start = len(tokens)
        tokens += row[shared:]
        depths += range(shared, len(row))
        paths[index] = ancestors + list(range(start, len(tokens)))
        if len(tokens) > start:
            spans.append(Span(start, len(tokens), ancestors))
        before = index
    return PackedTree(tokens, depths, spans, paths)


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    tree_spans: Sequence[tuple[int, int, torch.Tensor]] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a packed tree, span by span; plain SDPA without ``tree_spans``.

    ``query`` (1, heads, N, D), ``key`` and ``value`` (1, groups, N, D); returns (1, N, heads, D).
    A dense (N, N) mask would cost all pairs of tokens: twice to five times the work.
    """
    if tree_spans is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    parts = []
    for start, end, ancestors in tree_spans:
        q, k, v = (x[:, :, start:end] for x in (query, key, value))
        mask = None
        if len(ancestors):
            k = torch.cat([key.index_select(2, ancestors), k], 2)
            v = torch.cat([value.index_select(2, ancestors), v], 2)
            mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=q.device)
            mask = mask.tril(diagonal=len(ancestors))
        parts.append(
            F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=kwargs.get("scaling")
            )
        )
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(TREE_ATTENTION, tree_attention)
AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)


Mode = Literal["shared", "separate", "trl"]


def choose_mode(model: Any, share: bool = True) -> Mode:
    """How log-probabilities of ``model`` are computed; may switch its attention to the tree's.

    ``shared`` where every layer attends fully, by SDPA; ``separate`` (row by row, no padding: left
    padding leaks into convolutions) elsewhere; ``trl`` where the output head scales or caps logits.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config.get_text_config()
    if any(getattr(config, name, None) is not None for name in _HEAD_EXTRAS):
        return "trl"
    kinds = getattr(config, "layer_types", None)
    known = config.model_type in {"llama", "mistral", "qwen2", "qwen3"}
    full = known if kinds is None else all(kind == "full_attention" for kind in kinds)
    if not share or not full or getattr(config, "sliding_window", None):
        return "separate"
    if config._attn_implementation == "sdpa":
        base.set_attn_implementation(TREE_ATTENTION)
    return "shared" if config._attn_implementation == TREE_ATTENTION else "separate"


def token_logps(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    keep: int,
    temperature: float,
    mode: Mode,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies (both (B, ``keep``), nats, float32) of the last ``keep``
    columns of ``input_ids`` (B, L) at ``temperature``; 0 where ``attention_mask`` is 0.

    Only tokens that the mask keeps are forwarded. Entropies carry no gradient. ``mode`` is
    :func:`choose_mode`'s, ``shared`` or ``separate``.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    device = input_ids.device
    real = attention_mask.bool()
    scored = real[:, -keep:]
    counts = scored.sum(1).tolist()
    if mode == "shared":
        rows = [ids[on].tolist() for ids, on in zip(input_ids, real, strict=True)]
        hidden = _shared_hidden(base, rows, counts, device)
    else:
        parts = []
        for ids, on, count in zip(input_ids, real, counts, strict=True):
            states = base.base_model(input_ids=ids[on][None], use_cache=False).last_hidden_state[0]
            parts.append(states[len(states) - count - 1 : len(states) - 1])
        hidden = torch.cat(parts)
    logps, entropies = _score(
        hidden, base.get_output_embeddings(), input_ids[:, -keep:][scored], temperature
    )
    blank = torch.zeros(scored.shape, dtype=torch.float32, device=device)
    return blank.masked_scatter(scored, logps), blank.masked_scatter(scored, entropies)


def _shared_hidden(
    base: Any, rows: Sequence[Sequence[int]], counts: Sequence[int], device: torch.device
) -> torch.Tensor:
    """Hidden states that predict the last ``counts`` tokens of each row: (sum of counts, H)."""
    tree = pack(rows)
    hidden = base.base_model(
        input_ids=torch.tensor([tree.tokens], device=device),
        # A mask of four dimensions is passed on as it is, and tree attention needs none.
        attention_mask=torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device),
        position_ids=torch.tensor([tree.depths], device=device),
        tree_spans=[
            (s.start, s.end, torch.tensor(s.ancestors, dtype=torch.long, device=device))
            for s in tree.spans
        ],
        use_cache=False,
    ).last_hidden_state[0]
    source: list[int] = []
    for path, count in zip(tree.paths, counts, strict=True):
        source += path[len(path) - count - 1 : len(path) - 1]
    return hidden[torch.tensor(source, device=device)]


def _score(
    hidden: torch.Tensor, head: Any, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target (n) and entropy (n) behind ``hidden`` (n, H)."""
    if hidden.device.type != "cpu":
        from trl.kernels import ChunkedLogProbFunction

        logps, entropies, *_ = ChunkedLogProbFunction.apply(
            hidden, head.weight, head.bias, targets, temperature, 32768, None, 1.0,
            ("log_probs", "entropy"),
        )  # fmt: skip
        return logps, entropies.detach()
    # On a CPU TRL's kernel took 11 s for 230 positions where this takes 0.2 s: it multiplies into
    # strided bfloat16 tiles, for which there is no fast routine.
    parts = []
    for start in range(0, len(hidden), HEAD_POSITIONS):
        piece = slice(start, start + HEAD_POSITIONS)
        args = (hidden[piece], head, targets[piece], temperature)
        # Several pieces: logits are computed again in the backward pass rather than all kept.
        parts.append(
            _score_piece(*args)
            if len(hidden) <= HEAD_POSITIONS
            else checkpoint(_score_piece, *args, use_reentrant=False)
        )
    logps, entropies = zip(*parts, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _score_piece(
    hidden: torch.Tensor, head: Any, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = (head(hidden).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy
