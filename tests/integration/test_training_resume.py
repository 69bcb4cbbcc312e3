"""``kill -9`` at every stage of a step: the run ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkit.runs import read_jsonl

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
TIMES = {"rollout_s", "train_s", "publish_s", "save_s", "reused_sessions", "served", "version"}

KILLS = [
    ("before publish", 1),  # nothing served yet
    ("session", 4),  # four of the six sessions of step 0 are on disk
    ("before mark_complete", 1),  # a whole checkpoint without its marker
    ("after mark_complete", 1),  # a marked checkpoint, no metrics line
    ("after publish", 2),  # step 1 published, not saved
    ("before complete_metrics", 2),  # as the fourth, at step 1 (the first pass is at the start)
    ("after complete_metrics", 3),  # after step 3's line; the stage has not finished
]


def launch(folder: Path, *point: Any) -> int:
    command = [sys.executable, "-m", "tests.integration.training_child", str(folder)]
    done = subprocess.run(
        command + [str(x) for x in point], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = read_jsonl(folder / "02_train" / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def sessions(folder: Path) -> list[dict[str, Any]]:
    lines = read_jsonl(folder / "02_train" / "sessions.jsonl")
    # A resumed run numbers a version by the step; after a step without update both numbers mean
    # the same weights.
    return [{k: v for k, v in line.items() if k != "adapter"} for line in lines]


def test_kills_at_every_point_leave_no_trace(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert launch(whole) == 0
    for point in KILLS:
        assert launch(killed, *point) == -signal.SIGKILL, point
    assert launch(killed) == 0
    assert [line["step"] for line in metrics(killed)] == [0, 1, 2, 3]
    assert metrics(killed) == metrics(whole)
    assert sessions(killed) == sessions(whole)
    assert len(sessions(whole)) == 4 * 6
    keys = [(s["step"], s["task_id"], s["attempt"]) for s in sessions(killed)]
    assert len(set(keys)) == len(keys)
    name = "02_train/adapters/v0004/adapter_model.safetensors"
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
    manifest = json.loads((killed / "02_train" / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert len(manifest["resumed_at"]) == len(KILLS)
    # The finished sessions of an interrupted step were not run again.
    rollouts = read_jsonl(killed / "02_train" / "rollouts.jsonl")
    assert len(rollouts) == 4 * 6
    reused = [m["reused_sessions"] for m in read_jsonl(killed / "02_train" / "metrics.jsonl")]
    assert sum(reused) > 0
    assert [m["skipped"] for m in metrics(whole)] == [False, False, True, False]
