"""Layer: boundaries. Seeded requests on the CPU for vLLM: a prompt prefilled in parts.

While a prompt is prefilled in parts, vLLM samples after each part and throws the token away; it
then winds the request's generator back by ``set_offset``, which a CPU generator does not have, and
vLLM 0.32 dies ("CPU Generator does not use offset"). Here the generator's state is kept and put
back, so that a seed gives the same tokens however the prompt was cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.v1.worker.cpu_model_runner import CPUModelRunner


def _discarded(runner: CPUModelRunner) -> list[int]:
    """Rows of the step that have a generator and whose sampled token is thrown away."""
    rows = np.flatnonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs]).tolist()
    return [row for row in rows if row in runner.input_batch.generators]


def mend(runner_class: type[CPUModelRunner] = CPUModelRunner) -> None:
    """Wrap the two methods of ``runner_class`` that draw and wind back. Safe to call twice."""
    if getattr(runner_class, "_agentkit_seeds", False):
        return
    sample, bookkeeping = runner_class._sample, runner_class._bookkeeping_sync

    def sample_and_restore(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        states = {row: generators[row].get_state() for row in _discarded(self)}
        output = sample(self, *args, **kwargs)
        for row, state in states.items():
            generators[row].set_state(state)
        return output

    def without_winding_back(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        hidden = {row: generators.pop(row) for row in _discarded(self)}
        try:
            return bookkeeping(self, *args, **kwargs)
        finally:
            generators.update(hidden)

    runner_class._sample = sample_and_restore
    runner_class._bookkeeping_sync = without_winding_back
    runner_class._agentkit_seeds = True
