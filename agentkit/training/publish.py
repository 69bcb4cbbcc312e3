"""Layer: work. Adapter versions of a training run before the running engine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentkit.serving.adapters import AdapterStore
from agentkit.training.lora import save_adapter


def token_logprobs(model: Any, ids: Sequence[int], dtype: str) -> list[float]:
    """Log-probabilities (T − 1, nats, temperature 1) of ``ids`` (T) given the earlier ones, as the
    trainer computes them: float32, or bfloat16 by autocast."""
    device = next(model.parameters()).device
    tokens = torch.tensor([list(ids)], device=device)
    training = model.training
    model.eval()
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")
    with torch.no_grad(), mixed:
        logits = model(input_ids=tokens).logits[0, :-1].float()
    model.train(training)
    return logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0].tolist()


class EnginePublisher:
    """Publishes each version to vLLM under a name and a path of its own, and checks the answer.

    Retired versions stay on disk for one more version (a session may still be answered while the
    next one is published) and go then; the versions worth keeping are saved by the loop.
    """

    def __init__(self, store: AdapterStore, base_name: str, dtype: str) -> None:
        self.store, self.base_name, self.dtype = store, base_name, dtype
        self._retired: list[Path] = []

    def folder_of(self, name: str) -> Path:
        """The folder that is served as ``name``."""
        return self.store.versions[name].path

    def publish(self, model: Any, version: int) -> str:
        """Save, load and verify the adapter of ``model``; returns its served name.

        Raises:
            EngineError: what is served is not what the trainer computes.
        """
        return self.store.publish(
            lambda folder: save_adapter(model, Path(folder), base_name=self.base_name),
            version,
            expected=lambda ids: token_logprobs(model, ids, self.dtype),
        )

    def retire(self, name: str) -> None:
        """Unload ``name`` once no session uses it."""
        folder = self.folder_of(name)
        self.store.retire(name)
        while self._retired:
            shutil.rmtree(self._retired.pop(), ignore_errors=True)
        self._retired.append(folder)
