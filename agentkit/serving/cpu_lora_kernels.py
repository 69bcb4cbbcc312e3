"""Layer: boundaries. LoRA on the CPU for vLLM: rows grouped by adapter, two products a layer.

Notation: L adapter slots, n slices of a merged layer (q, k, v), r the largest rank served, T tokens
of a step. vLLM keeps A as n tensors [L, 1, r, in] and B as n tensors [L, 1, out_s, r] and asks for
``y[:, slice s] += (x @ A_s[l].T) @ B_s[l].T`` with l the slot of each row, −1 for the base.

Here the n tensors are views of one A [L, n·r, in] and one block-diagonal B [L, Σ out_s, n·r], so
that a layer takes two products for each adapter that the step holds, and none for base rows. The
step's groups are found once, when vLLM announces the mapping, not in each of some hundred layers.
The intermediate has the dtype of ``x``, as in peft, where lora_A's output has the layer's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class Group(NamedTuple):
    """Rows of a step that one adapter slot answers: ``rows`` None means all of them."""

    slot: int
    rows: slice | Tensor | None


def group_rows(slots: np.ndarray) -> list[Group]:
    """Group row numbers by slot; rows of the base (slot −1) are in no group.

    Args:
        slots: [T] slot of each row.
    """
    groups = []
    for slot in np.unique(slots).tolist():
        if slot < 0:
            continue
        rows = np.flatnonzero(slots == slot)
        first, last = int(rows[0]), int(rows[-1]) + 1
        if rows.size == slots.size:
            groups.append(Group(slot, None))
        elif last - first == rows.size:
            groups.append(Group(slot, slice(first, last)))
        else:
            groups.append(Group(slot, torch.from_numpy(rows)))
    return groups


class Fused(tuple):
    """The n tensors of one side of a layer as vLLM knows them, and what they are views of.

    ``product(slot, x)`` is x @ M[slot].T. In bfloat16 the matrix is packed for oneDNN, as vLLM does
    with the base's weights: half the time of ``torch.matmul`` for a few rows.
    """

    matrices: Tensor
    packed: dict[int, Any]

    @classmethod
    def of(cls, views: Iterable[Tensor], matrices: Tensor) -> Fused:
        """``views`` of ``matrices`` [L, out, in]."""
        made = cls(views)
        made.matrices, made.packed = matrices, {}
        return made

    def product(self, slot: int, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        if x.dtype != torch.bfloat16 or not ops._supports_onednn:
            return x @ self.matrices[slot].t()
        handler = self.packed.get(slot)
        if handler is None:
            handler = self.packed[slot] = ops.create_onednn_mm(self.matrices[slot].t(), 32)
        return ops.onednn_mm(handler, x, None)


def fuse_slices(layer: BaseLinearLayerWithLoRA) -> None:
    """Replace a layer's LoRA tensors by views of one A and one block-diagonal B (both zeroed)."""
    a_old, b_old = layer.lora_a_stacked, layer.lora_b_stacked
    slots, _, rank, width = a_old[0].shape
    outs = [b.shape[2] for b in b_old]
    a = a_old[0].new_zeros(slots, len(a_old) * rank, width)
    b = b_old[0].new_zeros(slots, sum(outs), len(b_old) * rank)
    starts = np.cumsum([0, *outs]).tolist()
    columns = [slice(s * rank, (s + 1) * rank) for s in range(len(a_old))]
    layer.lora_a_stacked = Fused.of((a[:, c].unsqueeze(1) for c in columns), a)
    layer.lora_b_stacked = Fused.of(
        (b[:, starts[s] : starts[s + 1], c].unsqueeze(1) for s, c in enumerate(columns)), b
    )
    for name in ("set_lora", "reset_lora"):
        setattr(layer, name, _forgetting(layer, getattr(layer, name)))


def _forgetting(layer: BaseLinearLayerWithLoRA, change: Callable[..., None]) -> Callable[..., None]:
    """``change`` (of a slot's weights), after which the slot's packed copies are made anew."""

    def changed(index: int, *args: Any, **kwargs: Any) -> None:
        change(index, *args, **kwargs)
        layer.lora_a_stacked.packed.pop(index, None)
        layer.lora_b_stacked.packed.pop(index, None)

    return changed


class GroupedPunicaWrapper(PunicaWrapperCPU):
    """vLLM's CPU wrapper with the linear layers' operators replaced."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token_groups: list[Group] = []

    def update_metadata(
        self, mapping: Any, lora_index_to_id: Any, max_loras: int, vocab_size: int, **kwargs: Any
    ) -> None:
        """Take over the step's mapping of rows to slots (called when it changes)."""
        self._update_base_metadata(mapping, lora_index_to_id, max_loras, vocab_size)
        self.is_prefill = False  # the grouped operators know no difference
        self.token_groups = group_rows(self.token_lora_indices.numpy())

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: Fused,
        lora_b_stacked: Fused,
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        """``y += scale · (x @ A.T) @ B.T`` by groups; y [T, Σ out_s] is changed in place."""
        for slot, rows in self.token_groups:
            part = x if rows is None else x[rows]
            delta = lora_b_stacked.product(slot, lora_a_stacked.product(slot, part))
            if rows is None:
                y.add_(delta, alpha=scale)
            elif isinstance(rows, slice):
                y[rows].add_(delta, alpha=scale)
            else:
                y.index_add_(0, rows, delta, alpha=scale)

    def _unexpected(self, *args: Any, **kwargs: Any) -> None:
        # The kit serves linear layers only (EngineSettings.lora_targets). vLLM's own operators for
        # the rest would read the last slot for base rows.
        raise NotImplementedError("LoRA on embeddings, logits or sharded layers is not served")

    add_shrink = add_expand = add_lora_embedding = add_lora_logits = _unexpected
    apply_lora_full_linear = _unexpected
