"""03 → 05 → reproduce with real parts but the model: pi, sandbox, gateway and validator are real,
a scripted engine answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentkit import harnesses, reproduce, sandboxes
from agentkit.analysis import analyse
from agentkit.errors import EngineError
from agentkit.evaluation import (
    SessionLedger,
    evaluate_arms,
    plan_sessions,
    run_plan,
    stack_executor,
)
from agentkit.params import AnalyseParams, EvaluateParams
from agentkit.runs import Run, read_jsonl
from agentkit.serving.engine import BASE
from agentkit.serving.gateway import Gateway
from agentkit.serving.scripted import Scripted, ScriptedEngine
from agentkit.stack import Stack, session_settings
from agentkit.types import Task

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
TASKS = 3
WRITE = "echo $r > /logs/verifier/reward.txt"


def task(index: int) -> Task:
    check = f'[ "$(cat /work/answer.txt)" = {index} ] && r=1 || r=0'
    return Task(
        task_id=f"t{index}",
        kind="qa",
        instruction=f"Write the number {index} to answer.txt.",
        workspace={"README": b"empty"},
        tests={"test.sh": f"#!/bin/bash\nmkdir -p /logs/verifier\n{check}\n{WRITE}\n".encode()},
        solution={"solve.sh": f"#!/bin/bash\necho {index} > /work/answer.txt\n".encode()},
        source={"dataset": "d", "session_id": f"s{index}", "licence": "x"},
        split="heldout",
    )


def script(body: dict[str, Any]) -> Scripted:
    """Both arms write the answer; the arm ``poor`` gets the last task wrong."""
    if any(m["role"] == "tool" for m in body["messages"]):
        return Scripted("done")
    text = json.dumps(body["messages"])
    index = next(i for i in range(TASKS) if f"Write the number {i} " in text)
    wrong = body["model"] == "poor" and index == TASKS - 1
    command = f"echo {'wrong' if wrong else index} > answer.txt"
    return Scripted("", [("bash", {"command": command})])


class ScriptedServer:
    """What an evaluation needs of an engine beside its address."""

    def __init__(self, endpoint: ScriptedEngine) -> None:
        self.endpoint, self.url, self.dead = endpoint, endpoint.url, False

    def check(self) -> None:
        if self.dead:
            raise EngineError("engine", "it died")


def params(run_dir: str) -> EvaluateParams:
    values = EvaluateParams.from_yaml(ROOT / "params" / "demo" / "03_evaluate.yaml").model_dump()
    changes = {"run_dir": run_dir, "heldout_tasks": TASKS, "concurrency": 2}
    return EvaluateParams(**{**values, **changes, "arms": ["warm_start=none", "trained=none"]})


def test_records_analysis_and_reproduction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted, tasks = params("run"), [task(i) for i in range(TASKS)]
    served = {"warm_start": "poor", "trained": BASE}
    with (
        ScriptedEngine(script, models=("base", "poor")) as endpoint,
        Gateway(endpoint.url) as gateway,
        Run.open(wanted) as run,
    ):
        stack = Stack(
            wanted, run, ScriptedServer(endpoint), gateway, sandboxes.backend("auto"),  # type: ignore[arg-type]
            harnesses.get("pi"), session_settings(wanted), tmp_path,
        )  # fmt: skip
        plan = plan_sessions(tasks, list(served), 1, wanted.seed)
        execute = stack_executor(stack, served, {"warm_start": None, "trained": None})
        records = run_plan(SessionLedger(run.folder, plan, 1, True), execute)
        asked = len(endpoint.requests)
        # Everything is finished: a second run of the stage starts no session and asks for no model.
        adapters = {"warm_start": None, "trained": None}
        again = evaluate_arms(
            wanted, run, stack, tasks, adapters, attempts=1, broken_retries=1, keep_transcripts=True
        )
        assert again == records
        assert len(endpoint.requests) == asked
        run.finish(outputs=[run.path("sessions.jsonl")])
    _check_records(records, tmp_path / "run" / "03_evaluate")
    _check_analysis(tmp_path, capsys)


def _check_records(records: list[dict[str, Any]], folder: Path) -> None:
    assert {(r["task_id"], r["arm"]): r["correct"] for r in records} == {
        (f"t{i}", arm): not (arm == "warm_start" and i == TASKS - 1)
        for i in range(TASKS)
        for arm in ("warm_start", "trained")
    }
    assert {r["status"] for r in records} == {"completed"}
    assert {r["calls"] for r in records} == {1}
    assert {r["model"] for r in records} == {"smollm2-135m"}
    seeds = {
        r["task_id"]: {x["seed"] for x in records if x["task_id"] == r["task_id"]} for r in records
    }
    assert all(len(s) == 1 for s in seeds.values())
    assert len(list((folder / "transcripts").glob("*.gz"))) == len(records)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["sessions"] == {"expected": 6, "finished": 6, "broken": 0, "broken_tries": 0}


def _check_analysis(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = AnalyseParams.from_yaml(ROOT / "params" / "demo" / "05_analyse.yaml").model_dump()
    wanted = AnalyseParams(**{**data, "run_dir": "run"})
    with Run.open(wanted) as run:
        found = analyse(wanted, run)
        shutil.copy(root / "run" / "03_evaluate" / "sessions.jsonl", run.folder)
        table = found.primary.missing.table
        assert (table.both, table.gained, table.lost, table.neither) == (2, 1, 0, 0)
        assert found.costs[0].usd is not None
        assert reproduce.main([str(run.folder)]) == 0
    assert "every digit as shipped" in capsys.readouterr().out
    assert len(read_jsonl(root / "run" / "03_evaluate" / "sessions.jsonl")) == 6
