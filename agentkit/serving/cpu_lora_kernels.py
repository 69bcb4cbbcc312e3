"""Layer: boundaries. LoRA on the CPU for vLLM: two products a layer, each row by its own adapter.

Notation: L adapter slots, n slices of a merged layer (q, k, v), r the largest rank served, T tokens
of a step. vLLM keeps A as n tensors [L, 1, r, in] and B as n tensors [L, 1, out_s, r] and asks for
``y[:, slice s] += (x @ A_s[l].T) @ B_s[l].T`` with l the slot of each row, −1 for the base.

Here the n tensors are views of one A [L, n·r, in] and one block-diagonal B [L, Σ out_s, n·r], so
that a layer takes two products for a step, and none where all rows are the base's. The rows are
sorted out once a step, when vLLM announces them, not in each of some hundred layers. The
intermediate has the dtype of ``x``, as in peft, where lora_A's output has the layer's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

FEW_ROWS = 256


class Step:
    """Which adapter slot answers each row of a step; found once a step, used in every layer.

    Args:
        row_slots: [T] slot of each row, −1 for the base.
    """

    def __init__(self, row_slots: np.ndarray) -> None:
        self.row_slots = row_slots
        self.slots = tuple(slot for slot in np.unique(row_slots).tolist() if slot >= 0)
        self.uniform = len(self.slots) == 1 and bool((row_slots == self.slots[0]).all())
        self._foreign: dict[int, Tensor] = {}
        self._rows: dict[int, Tensor] = {}

    def foreign(self, width: int) -> Tensor:
        """[T, width] where a column, of ``width`` in equal parts for ``slots``, is not the row's
        own adapter's."""
        if width not in self._foreign:
            columns = np.repeat(self.slots, width // len(self.slots))
            self._foreign[width] = torch.from_numpy(self.row_slots[:, None] != columns[None, :])
        return self._foreign[width]

    def rows(self, slot: int) -> Tensor:
        """Numbers of the rows that ``slot`` answers."""
        if slot not in self._rows:
            self._rows[slot] = torch.from_numpy(np.flatnonzero(self.row_slots == slot))
        return self._rows[slot]


def add_lora(y: Tensor, x: Tensor, a: Fused, b: Fused, step: Step, scale: float = 1.0) -> None:
    """``y += scale · (x @ A.T) @ B.T``, each row by its own adapter; y is changed in place.

    A decode step of several adapters takes all of them at once and blanks what is not a row's own:
    for a few rows a product's cost is its call. A prefill takes adapter after adapter.
    """
    if step.uniform:
        y.add_(b.product(step.slots, a.product(step.slots, x)), alpha=scale)
    elif step.slots and x.shape[0] <= FEW_ROWS:
        inner = a.product(step.slots, x)
        # Not a product with 0: an adapter that overflows must not reach other rows.
        inner.masked_fill_(step.foreign(inner.shape[1]), 0.0)
        y.add_(b.product(step.slots, inner), alpha=scale)
    else:
        for slot in step.slots:
            rows = step.rows(slot)
            y.index_add_(0, rows, b.product((slot,), a.product((slot,), x[rows])), alpha=scale)


class Fused(tuple):
    """The n tensors of one side of a layer as vLLM knows them, and what they are views of.

    ``product(slots, x)`` is x @ M.T, with M the slots' matrices side by side (A: one above the
    other, B: one beside the other). In bfloat16 M is packed for oneDNN, as vLLM does with the
    base's weights: half the time of ``torch.matmul`` for a few rows.
    """

    matrices: Tensor
    dim: int
    ready: dict[tuple[int, ...], Any]

    @classmethod
    def of(cls, views: Iterable[Tensor], matrices: Tensor, dim: int) -> Fused:
        """``views`` of ``matrices`` [L, out, in]; several slots are joined along ``dim``."""
        made = cls(views)
        made.matrices, made.dim, made.ready = matrices, dim, {}
        return made

    def product(self, slots: tuple[int, ...], x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        matrix = self.ready.get(slots)
        if matrix is None:
            joined = torch.cat([self.matrices[slot] for slot in slots], self.dim)
            packs = joined.dtype == torch.bfloat16 and ops._supports_onednn
            matrix = ops.create_onednn_mm(joined.t(), 32) if packs else joined.t()
            self.ready[slots] = matrix
        if isinstance(matrix, Tensor):
            return x @ matrix
        return ops.onednn_mm(matrix, x, None)

    def forget(self, slot: int) -> None:
        """The slot's weights have changed."""
        self.ready = {slots: m for slots, m in self.ready.items() if slot not in slots}


def fuse_slices(layer: BaseLinearLayerWithLoRA) -> None:
    """Replace a layer's LoRA tensors by views of one A and one block-diagonal B (both zeroed)."""
    a_old, b_old = layer.lora_a_stacked, layer.lora_b_stacked
    slots, _, rank, width = a_old[0].shape
    outs = [b.shape[2] for b in b_old]
    a = a_old[0].new_zeros(slots, len(a_old) * rank, width)
    b = b_old[0].new_zeros(slots, sum(outs), len(b_old) * rank)
    starts = np.cumsum([0, *outs]).tolist()
    columns = [slice(s * rank, (s + 1) * rank) for s in range(len(a_old))]
    layer.lora_a_stacked = Fused.of((a[:, c].unsqueeze(1) for c in columns), a, dim=0)
    layer.lora_b_stacked = Fused.of(
        (b[:, starts[s] : starts[s + 1], c].unsqueeze(1) for s, c in enumerate(columns)), b, dim=1
    )
    for name in ("set_lora", "reset_lora"):
        setattr(layer, name, _forgetting(layer, getattr(layer, name)))


def _forgetting(layer: BaseLinearLayerWithLoRA, change: Callable[..., None]) -> Callable[..., None]:
    """``change`` (of a slot's weights), after which the slot's copies are made anew."""

    def changed(index: int, *args: Any, **kwargs: Any) -> None:
        change(index, *args, **kwargs)
        layer.lora_a_stacked.forget(index)
        layer.lora_b_stacked.forget(index)

    return changed


class GroupedPunicaWrapper(PunicaWrapperCPU):
    """vLLM's CPU wrapper with the linear layers' operators replaced."""

    step = Step(np.array([-1]))

    def update_metadata(
        self, mapping: Any, lora_index_to_id: Any, max_loras: int, vocab_size: int, **kwargs: Any
    ) -> None:
        """Take over the step's mapping of rows to slots (called when it changes)."""
        self._update_base_metadata(mapping, lora_index_to_id, max_loras, vocab_size)
        self.is_prefill = False  # the operators here know no difference
        self.step = Step(self.token_lora_indices.numpy().copy())

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
        """vLLM's entry: y [T, Σ out_s] is changed in place."""
        add_lora(y, x, lora_a_stacked, lora_b_stacked, self.step, scale)

    def _unexpected(self, *args: Any, **kwargs: Any) -> None:
        # The kit serves linear layers only (EngineSettings.lora_targets). vLLM's own operators for
        # the rest would read the last slot for base rows.
        raise NotImplementedError("LoRA on embeddings, logits or sharded layers is not served")

    add_shrink = add_expand = add_lora_embedding = add_lora_logits = _unexpected
    apply_lora_full_linear = _unexpected
