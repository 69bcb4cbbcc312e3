"""Stage 02 with every part real: vLLM with LoRA, gateway, sandbox, pi, validator, TRL.

The model is tiny and random, so that it cannot call tools; a validator that draws its score gives
the groups unequal rewards, and the steps something to train on.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentkit import harnesses, sandboxes
from agentkit.params import TrainParams, read_yaml
from agentkit.runs import Run, read_jsonl
from agentkit.serving.engine import BASE, Engine
from agentkit.serving.gateway import Gateway
from agentkit.stack import Stack, session_settings
from agentkit.training.lora import load_policy
from agentkit.training.rollout_log import unpack_log
from agentkit.training.stage import train
from agentkit.types import Task

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
DRAW = b'#!/bin/bash\nprintf "0.%05d\\n" $RANDOM > /logs/verifier/reward.txt\n'


def tasks(count: int) -> list[Task]:
    return [
        Task(
            f"t{i}", "qa", f"Say {i}.", {"a": b""}, {"test.sh": DRAW}, {"solve.sh": b""},
            {"dataset": "d", "session_id": f"s{i}"},
        )
        for i in range(count)
    ]  # fmt: skip


def params(run_dir: Path, model: Path, **changes: Any) -> TrainParams:
    values = read_yaml(ROOT / "params" / "demo" / "02_train.yaml") | {
        "run_dir": str(run_dir), "model": str(model), "dtype": "float32",
        "train_dtype": "float32", "max_model_len": 2048, "max_loras": 3, "max_lora_rank": 8,
        "agreement_tolerance": 1e-3, "harness_tools": ["bash"], "system_prompt": "Work.",
        "max_tokens": 12, "max_turns": 3, "initial_adapter": "none", "steps": 2,
        "tasks_per_step": 2, "sessions_per_task": 3, "lora_rank": 4, "lora_alpha": 8,
        "learning_rate": 0.02, "keep_every": 1, "concurrency": 3,
    }  # fmt: skip
    return TrainParams.from_mapping(values | changes, "test")


def test_two_steps_on_real_sessions(tmp_path: Path, tiny_engine: Engine, tiny_model: Path) -> None:
    wanted = params(tmp_path / "run", tiny_model, trackio=True)
    before = set(tiny_engine.served())
    with Gateway(tiny_engine.url) as gateway, Run.open(wanted) as run:
        stack = Stack(
            wanted, run, tiny_engine, gateway, sandboxes.backend("auto"), harnesses.get("pi"),
            session_settings(wanted), tiny_model,
        )  # fmt: skip
        summary = train(wanted, run, stack, tasks(4))
        again = train(wanted, run, stack, tasks(4))
    assert again == summary, "a finished run is not trained on"
    assert set(tiny_engine.served()) == before, "versions are unloaded at the end"
    folder = tmp_path / "run" / "02_train"
    metrics = read_jsonl(folder / "metrics.jsonl")
    assert [m["step"] for m in metrics] == [0, 1] and not any(m["skipped"] for m in metrics)
    for line in metrics:
        assert line["sessions"] == 6 and line["broken"] == 0 and line["groups_equal"] == 0
        assert line["loss_tokens"] == line["sampled_tokens"] > 0
        # float32 on both sides: the trainer's probability of each sampled token is the engine's.
        assert line["ratio_in_band"] == 1.0 and abs(line["ratio_mean"] - 1) < 1e-3
        assert line["clip_fraction"] == 0.0 and line["grad_norm"] > 0
    _check_versions(folder, metrics)
    records = read_jsonl(folder / "sessions.jsonl")
    assert {r["arm"] for r in records} == {"train"} and {r["status"] for r in records} == {
        "completed"
    }
    assert [r["adapter"] for r in records] == ["v0000"] * 6 + ["v0001"] * 6
    assert run.manifest["agreement"]["models"][BASE]["mean"] < 1e-3
    assert summary.adapter == str(folder / "adapters" / "v0002")
    _check_tracked(Path(os.environ["TRACKIO_DIR"], "agentkit.db"), metrics)


def _check_tracked(database: Path, metrics: list[dict[str, Any]]) -> None:
    """trackio holds the steps' numbers, once."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
    found = [(step, json.loads(text)["reward"]) for step, text in rows]
    assert found == [(m["step"], pytest.approx(m["reward"])) for m in metrics]


def _check_versions(folder: Path, metrics: list[dict[str, Any]]) -> None:
    """Each step's turns were answered by that step's version; the kept adapters differ."""
    names: dict[int, set[str]] = {}
    for line in read_jsonl(folder / "rollouts.jsonl"):
        log = unpack_log(line["log"])
        names.setdefault(line["step"], set()).update(t.model for t in log.turns)
        assert log.turns
    assert all(len(found) == 1 for found in names.values())
    assert names[1] == {metrics[0]["served"]} and names[0].isdisjoint(names[1])
    files = [folder / "adapters" / f"v{n:04d}" / "adapter_model.safetensors" for n in range(3)]
    assert len({f.read_bytes() for f in files}) == 3


def test_the_start_is_the_base_and_a_wrong_rank_is_refused(
    tmp_path: Path, tiny_model: Path, tiny_adapters: list[Path]
) -> None:
    import torch

    from agentkit.errors import ModelError

    fresh, tokenizer = load_policy(
        tiny_model, None, rank=4, alpha=8, targets="all-linear", seed=0, dtype="float32"
    )
    ids = tokenizer("def add(a, b):", return_tensors="pt").input_ids
    with torch.no_grad(), fresh.disable_adapter():
        base = fresh(input_ids=ids).logits
    with torch.no_grad():
        assert torch.equal(fresh(input_ids=ids).logits, base)
    with pytest.raises(ModelError, match=r"rank 4 and alpha 8.*rank 8 and alpha 16"):
        load_policy(tiny_model, tiny_adapters[0], rank=8, alpha=16, targets="all-linear", seed=0)
