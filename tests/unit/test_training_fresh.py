"""Tasks that the initial adapter was taught are left out of training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkit.errors import ModelError
from agentkit.stack import WARM_START
from agentkit.training.fresh import demonstrated_sources, fresh_tasks
from agentkit.types import Task

DATA = Path(__file__).resolve().parents[2] / "agentkit" / "data" / "adapters"


def task(number: int) -> Task:
    source = {"dataset": "d", "session_id": f"s{number // 2}"}
    return Task(f"t{number}", "qa", "?", {}, {}, {}, source)


def test_taught_sources_are_left_out_while_enough_remain() -> None:
    tasks = [task(n) for n in range(10)]
    taught = frozenset({"d:s0", "d:s3", "elsewhere"})
    assert [t.task_id for t in fresh_tasks(tasks, taught, 6)] == [
        "t2",
        "t3",
        "t4",
        "t5",
        "t8",
        "t9",
    ]
    assert fresh_tasks(tasks, taught, 7) == tasks
    assert fresh_tasks(tasks, frozenset(), 1) == tasks


def test_sources_come_from_the_adapters_manifest(tmp_path: Path) -> None:
    assert demonstrated_sources(None) == demonstrated_sources(tmp_path) == frozenset()
    (tmp_path / "manifest.json").write_text(json.dumps({"demonstrated_sources": ["a", "b"]}))
    assert demonstrated_sources(tmp_path) == {"a", "b"}
    (tmp_path / "manifest.json").write_text("[")
    with pytest.raises(ModelError, match=r"manifest\.json.*build it again"):
        demonstrated_sources(tmp_path)


def test_the_shipped_warm_start_names_its_demonstrations() -> None:
    shipped = json.loads((DATA / WARM_START / "manifest.json").read_text())
    assert (
        len(demonstrated_sources(DATA / WARM_START)) * shipped["params"]["copies"]
        == (shipped["demonstrations"])
    )
