"""Layer: work. Adapter versions of a training run before the running engine."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from agentkit.serving.adapters import AdapterStore
from agentkit.training.lora import save_adapter


class EnginePublisher:
    """Publishes each version to vLLM under a name and a path of its own.

    vLLM keys its cached blocks by adapter name and path, so that a name or path used before could
    be answered from another version's cache. The random part keeps the names of several trainers
    on one engine, and of a killed and resumed one, apart.
    """

    def __init__(self, engine_url: str, folder: Path, label: str, base_name: str) -> None:
        self.base_name = base_name
        self.store = AdapterStore(engine_url, folder, f"{label}-{uuid.uuid4().hex[:6]}-")

    def publish(self, model: Any, version: int) -> str:
        """Save, load and verify the adapter of ``model``; returns its served name."""
        name = self.store.publish(
            lambda folder: save_adapter(model, Path(folder), base_name=self.base_name), version
        )
        return name

    def retire(self, name: str) -> None:
        """Unload ``name`` once no session uses it."""
        self.store.retire(name)
