"""A running vLLM server with a tiny model, shared by the whole test session.

``tests/integration/conftest.py`` imports the fixtures, so that tests ask for them by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentkit.serving.engine import Engine, EngineSettings
from tests.integration.tiny_models import make_adapter, make_tiny_llama

MAX_LORAS = 3
MAX_RANK = 8
MAX_BATCHED_TOKENS = 128  # small, so that longer prompts are prefilled in parts


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Llama in float32."""
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """As many different adapters as the tiny server has slots; ranks differ."""
    folder = tmp_path_factory.mktemp("adapters")
    return [
        make_adapter(tiny_model, folder / f"a{i}", seed=i + 1, rank=(4, 8, 1)[i % 3])
        for i in range(MAX_LORAS)
    ]


@pytest.fixture(scope="session")
def tiny_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A running server of the tiny model: float32, LoRA, tool calls, 8 sequences at once."""
    settings = EngineSettings(
        model=str(tiny_model),
        dtype="float32",
        max_model_len=2048,
        max_loras=MAX_LORAS,
        max_lora_rank=MAX_RANK,
        max_num_seqs=8,
        max_num_batched_tokens=MAX_BATCHED_TOKENS,
        threads=1,
    )
    with Engine.start(settings, tmp_path_factory.mktemp("engine") / "engine.log") as engine:
        yield engine.wait_ready(status=None)
