"""Layer: boundaries. RMSNorm on the CPU for vLLM by its own C++ kernel.

vLLM 0.32 has ``_C.rms_norm`` for the CPU and does not use it: its norm runs as a chain of torch
operators, 20 times slower for the rows of a prefill. The kernel ignores strides, so rows that do
not lie one after the other (q and k norms on a split tensor) keep the chain.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm.model_executor.layers.layernorm import RMSNorm


def forward_cpu(
    self: RMSNorm, x: Tensor, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """x [..., H] normalised; with ``residual``, (norm of the sum, the sum), both in place."""
    weight = self.weight.data
    if (
        not self.has_weight
        or self.variance_size_override is not None
        or weight.dtype != x.dtype
        or not x.is_contiguous()
        or (residual is not None and not residual.is_contiguous())
    ):
        return self.forward_native(x, residual)
    if residual is None:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight, self.variance_epsilon)
        return out
    torch.ops._C.fused_add_rms_norm(x, residual, weight, self.variance_epsilon)
    return x, residual


def mend() -> None:
    """Install the kernel where ``RMSNorm`` runs as a custom op on the CPU."""
    RMSNorm.forward_cpu = forward_cpu
