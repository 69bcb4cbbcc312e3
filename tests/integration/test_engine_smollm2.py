"""The real model: converted once by whoever comes first, served as transformers computes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from agentkit.serving.adapters import AdapterStore
from agentkit.serving.agreement import check_agreement
from agentkit.serving.engine import Engine, EngineSettings
from agentkit.serving.models import MANIFEST, SMOLLM2, resolve_model
from tests.integration.tiny_models import make_adapter

RESOLVE = "from agentkit.serving.models import *; print(resolve_model(SMOLLM2))"


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve_model(SMOLLM2)


def test_two_processes_convert_once(tmp_path: Path, model: Path) -> None:
    env = os.environ | {"AGENTKIT_CACHE": str(tmp_path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RESOLVE],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=400)[0].strip() for process in started}
    assert len(paths) == 1
    made = Path(paths.pop())
    assert [p.name for p in made.parent.iterdir() if not p.name.startswith(".")] == [made.name]
    assert not [p for p in made.parent.iterdir() if p.is_dir() and p.name.startswith(".")]
    ours, theirs = (json.loads((p / MANIFEST).read_text())["files"] for p in (made, model))
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        assert ours[name] == theirs[name], "the conversion is not deterministic"


def test_served_as_transformers_computes_it(model: Path, tmp_path: Path) -> None:
    settings = EngineSettings(SMOLLM2, max_model_len=1024, max_loras=2, max_num_seqs=8)
    with Engine.start(settings, tmp_path / "engine.log") as engine:
        engine.wait_ready(status=None)
        folders = [make_adapter(model, tmp_path / f"a{i}", seed=i, scale=0.02) for i in (1, 2)]
        store = AdapterStore(
            engine.url, tmp_path / "published", "s", model_path=model, max_loras=2, max_rank=16
        )
        names = [store.publish(folder, i) for i, folder in enumerate(folders)]
        served = {"base": None} | dict(zip(names, folders, strict=True))
        report = check_agreement(engine.url, model, served)
        print(json.dumps(report))
        assert all(store.versions[name].check["from_base"] > 0.1 for name in names)
        body = {
            "model": "base",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 12,
            "temperature": 0,
        }
        answer = httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=120.0).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
