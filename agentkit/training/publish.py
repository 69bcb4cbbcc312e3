"""Layer: work. Adapter versions of a training run before the running engine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from agentkit.serving.adapters import AdapterStore
from agentkit.serving.agreement import score
from agentkit.training.lora import save_adapter


class EnginePublisher:
    """Publishes each version to vLLM under a name and a path of its own, and checks the answer.

    Retired versions stay on disk for one more version (a session may still be answered while the
    next one is published) and go then; the versions worth keeping are saved by the loop.
    """

    def __init__(self, store: AdapterStore, base_name: str, autocast: bool) -> None:
        self.store, self.base_name, self.autocast = store, base_name, autocast
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
            expected=lambda ids: score(model, ids, self.autocast),
        )

    def retire(self, name: str) -> None:
        """Unload ``name`` once no session uses it."""
        folder = self.folder_of(name)
        self.store.retire(name)
        while self._retired:
            shutil.rmtree(self._retired.pop(), ignore_errors=True)
        self._retired.append(folder)
