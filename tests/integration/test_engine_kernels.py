"""The CPU's LoRA and norm kernels against the sums they stand for, without a server."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

kernels = pytest.importorskip("agentkit.serving.cpu_lora_kernels")

SLOTS, RANK, WIDTH, OUTS = 3, 4, 32, (16, 8, 8)


class Layer:
    """What ``fuse_slices`` needs of a vLLM layer: its tensors and what fills them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.lora_a_stacked = tuple(torch.ones(SLOTS, 1, RANK, WIDTH, dtype=dtype) for _ in OUTS)
        self.lora_b_stacked = tuple(torch.ones(SLOTS, 1, o, RANK, dtype=dtype) for o in OUTS)

    def reset_lora(self, index: int) -> None:
        for tensor in (*self.lora_a_stacked, *self.lora_b_stacked):
            tensor[index] = 0

    def set_lora(self, index: int, a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
        self.reset_lora(index)
        for s in range(len(OUTS)):
            self.lora_a_stacked[s][index, 0, : a[s].shape[0]].copy_(a[s])
            self.lora_b_stacked[s][index, 0, :, : b[s].shape[1]].copy_(b[s])


def weights(seed: int, rank: int = RANK) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    a = [torch.randn(rank, WIDTH, generator=generator) for _ in OUTS]
    return a, [torch.randn(o, rank, generator=generator) for o in OUTS]


def by_rows(y, x, slots, adapters):
    """The definition, row by row in float64."""
    out = y.double().clone()
    for row, slot in enumerate(slots):
        if slot >= 0:
            a, b = adapters[slot]
            delta = [
                x[row].double() @ p.double().T @ q.double().T for p, q in zip(a, b, strict=True)
            ]
            out[row] += torch.cat(delta)
    return out


def apply(layer: Layer, slots: list[int], y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = y.clone()
    step = kernels.Step(np.array(slots))
    kernels.add_lora(out, x, layer.lora_a_stacked, layer.lora_b_stacked, step)
    return out


BATCHES = {
    "all one adapter": [1] * 7,
    "all base": [-1] * 5,
    "runs": [-1, -1, 0, 0, 0, 2, 2, -1],
    "scattered, all slots": [2, -1, 0, 1, -1, 0, 2, 1, -1],
    "one row": [2],
    "a long prefill": [-1, 0, 2, 0] * 100,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BATCHES)
def test_rows_get_their_own_adapter_and_base_rows_none(name: str, dtype: torch.dtype) -> None:
    slots = BATCHES[name]
    adapters = [weights(0), weights(1, rank=2), weights(2)]
    layer = Layer(dtype)
    kernels.fuse_slices(layer)
    for slot, (a, b) in enumerate(adapters):
        layer.set_lora(slot, a, b)
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(len(slots), WIDTH, generator=generator).to(dtype)
    y = torch.randn(len(slots), sum(OUTS), generator=generator).to(dtype)
    got = apply(layer, slots, y, x)
    expected = by_rows(y, x, slots, adapters)
    scale = expected.abs().max().item()
    close = 1e-6 if dtype == torch.float32 else 0.02
    assert (got.double() - expected).abs().max().item() < close * scale
    base = [row for row, slot in enumerate(slots) if slot < 0]
    assert torch.equal(got[base], y[base])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_new_weights_in_a_used_slot_are_used(dtype: torch.dtype) -> None:
    layer = Layer(dtype)
    kernels.fuse_slices(layer)
    x, y = torch.ones(3, WIDTH, dtype=dtype), torch.zeros(3, sum(OUTS), dtype=dtype)
    layer.set_lora(0, *weights(1))
    first = apply(layer, [0] * 3, y, x)
    layer.set_lora(0, *weights(2))
    second = apply(layer, [0] * 3, y, x)
    fresh = Layer(dtype)
    kernels.fuse_slices(fresh)
    fresh.set_lora(0, *weights(2))
    assert torch.equal(second, apply(fresh, [0] * 3, y, x))
    assert not torch.equal(second, first)
    layer.reset_lora(0)
    assert torch.equal(apply(layer, [0] * 3, y, x), y)


@pytest.mark.parametrize("repeat", [1, 100])
def test_an_adapter_that_overflows_reaches_no_other_row(repeat: int) -> None:
    layer = Layer(torch.float32)
    kernels.fuse_slices(layer)
    layer.set_lora(0, *weights(0))
    a, b = weights(1)
    layer.set_lora(1, [part * 1e38 for part in a], [part * 1e38 for part in b])
    slots = [0, 1, -1] * repeat
    x, y = torch.ones(len(slots), WIDTH), torch.zeros(len(slots), sum(OUTS))
    got = apply(layer, slots, y, x).view(repeat, 3, -1)
    assert not got[:, 1].isfinite().all()
    assert got[:, [0, 2]].isfinite().all()


@pytest.mark.parametrize("strided", [False, True])
def test_norm_is_the_definition_whatever_the_strides(strided: bool) -> None:
    from agentkit.serving.cpu_norm import forward_cpu

    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(5, 64, generator=generator)
    x = wide[:, :32] if strided else wide[:, :32].contiguous()
    weight = torch.randn(32, generator=generator)

    def plain(x, residual=None):
        x = x if residual is None else x + residual
        out = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
        return out if residual is None else (out, x)

    norm = SimpleNamespace(
        weight=torch.nn.Parameter(weight, requires_grad=False),
        has_weight=True,
        variance_size_override=None,
        variance_epsilon=1e-5,
        forward_native=plain,
    )
    residual = torch.randn(5, 32, generator=generator)
    torch.testing.assert_close(forward_cpu(norm, x), plain(x))
    expected = plain(x, residual)
    normed, total = forward_cpu(norm, x if strided else x.clone(), residual)
    torch.testing.assert_close(normed, expected[0])
    torch.testing.assert_close(total, expected[1])
