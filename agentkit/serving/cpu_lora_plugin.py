"""Layer: boundaries. vLLM plugin (entry point group ``vllm.general_plugins``).

vLLM calls ``register`` in each of its processes. What it does, each only where it applies:

* in a server that the kit started, every process asks the kernel to end with its parent;
* on a CPU, LoRA is computed by ``cpu_lora_kernels.GroupedPunicaWrapper``, because vLLM 0.32's own
  operators give base rows of a mixed batch the last slot's adapter and gather weights per token;
* on a CPU, seeded requests with long prompts do not kill the server (``cpu_seeded_sampling``);
* on a CPU, RMSNorm uses vLLM's own kernel (``cpu_norm``).

``AGENTKIT_CPU_FIXES=off`` leaves vLLM as it is, to measure against it.
"""

from __future__ import annotations

import os
from typing import Any

WRAPPER = "agentkit.serving.cpu_lora_kernels.GroupedPunicaWrapper"


def register() -> None:
    """Install what applies to this process. Called by vLLM; safe to call more than once."""
    if os.environ.get("AGENTKIT_ENGINE") == "1":
        from agentkit.serving.watchdog import die_with_parent

        die_with_parent(os.getppid())
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or os.environ.get("AGENTKIT_CPU_FIXES") == "off":
        return
    _mend_lora(type(current_platform))
    from agentkit.serving import cpu_norm, cpu_seeded_sampling

    cpu_norm.mend()
    cpu_seeded_sampling.mend()


def _mend_lora(platform: Any) -> None:
    from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA

    if platform.get_punica_wrapper() == WRAPPER:
        return
    platform.get_punica_wrapper = classmethod(lambda cls: WRAPPER)

    def set_mapping(self: BaseLinearLayerWithLoRA, punica_wrapper: object) -> None:
        from agentkit.serving.cpu_lora_kernels import fuse_slices

        super(BaseLinearLayerWithLoRA, self).set_mapping(punica_wrapper)
        fuse_slices(self)

    BaseLinearLayerWithLoRA.set_mapping = set_mapping
