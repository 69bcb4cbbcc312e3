"""Every notebook through papermill at its smallest, in order, on one real engine.

Real parts throughout: the seed corpus, the sandbox, vLLM, pi, LoRA training. Only the sizes differ
from the demo profile. The stages share one run directory, so that each reads what the one before
it wrote.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import nbformat
import pytest

from agentkit.errors import KitError
from agentkit.params import TourParams
from agentkit.runs import read_jsonl
from agentkit.serving.engine import Engine
from agentkit.stack import engine_settings

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.notebooks, pytest.mark.timeout(900)]

SMALLEST = {
    "max_traces": 40,
    "train_tasks": 4,
    "heldout_tasks": 3,
    "concurrency": 4,
    "steps": 1,
    "tasks_per_step": 2,
    "sessions_per_task": 2,
    "coefficients": [0.0, 0.1],
    "resamples": 500,
}
STAGES = ("01_synthesise", "00_tour", "02_train", "03_evaluate", "04_ablate", "05_analyse")


@pytest.fixture(scope="module")
def pipeline():
    spec = importlib.util.spec_from_file_location("pipeline", ROOT / "notebooks" / "pipeline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    params = TourParams.from_yaml(ROOT / "params" / "demo" / "00_tour.yaml")
    folder = tmp_path_factory.mktemp("run")
    with Engine.start(engine_settings(params), folder / "engine.log") as engine:
        engine.wait_ready(status=None)
        yield {**SMALLEST, "run_dir": str(folder), "engine_url": engine.url}


@pytest.fixture(scope="module")
def executed(pipeline, overrides):
    """Runs a stage once and keeps its executed notebook; a later stage needs the earlier ones."""
    done: dict[str, Path] = {}

    def run(stage: str) -> Path:
        for name in STAGES[: STAGES.index(stage) + 1]:
            if name not in done:
                done[name] = pipeline.execute(name, pipeline.load("demo", name, overrides))
        return done[stage]

    return run


@pytest.mark.parametrize("stage", STAGES)
def test_notebook_runs_and_finishes_its_manifest(stage, executed, overrides):
    notebook = nbformat.read(executed(stage), 4)
    errors = [o for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert not errors
    folder = Path(overrides["run_dir"]) / stage
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["params"]["seed"] == 0 and manifest["packages"]
    for name, entry in manifest["outputs"].items():
        assert entry["sha256"], name


def test_training_moved_the_adapter_or_said_why_not(executed, overrides):
    executed("02_train")
    (line,) = read_jsonl(Path(overrides["run_dir"]) / "02_train" / "metrics.jsonl")
    assert line["sessions"] == 4
    assert line["skipped"] == (line["trained_tokens"] == 0)


def test_every_planned_session_has_one_final_record(executed, overrides):
    executed("03_evaluate")
    records = read_jsonl(Path(overrides["run_dir"]) / "03_evaluate" / "sessions.jsonl")
    keys = {(r["task_id"], r["arm"], r["attempt"]) for r in records}
    assert len(records) == len(keys) == 3 * 2
    by_task: dict[str, set[int]] = {}
    for record in records:
        by_task.setdefault(record["task_id"], set()).add(record["seed"])
    assert all(len(seeds) == 1 for seeds in by_task.values()), "arms must share seeds"


def test_report_is_one_self_contained_page(executed, tmp_path):
    from agentkit.report import render_report

    page = render_report(executed("05_analyse"), tmp_path / "report.html").read_text()
    assert "data:image/png;base64" in page or "<svg" in page
    assert 'src="http' not in page and 'href="http' not in page


def test_a_finished_stage_is_refused_with_other_parameters(executed, pipeline, overrides):
    executed("01_synthesise")
    values = pipeline.load("demo", "01_synthesise", {**overrides, "seed": 1})
    with pytest.raises(KitError, match="seed=1"):
        pipeline.execute("01_synthesise", values)
