"""1,350 sessions with faults, and ``kill -9`` of the process again and again: nothing lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from agentkit.runs import read_jsonl
from agentkit.seeds import derive_seed

pytestmark = pytest.mark.integration

SCRIPT = """
import random, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from agentkit.errors import EngineError
from agentkit.evaluation import Finished, SessionLedger, plan_sessions, run_plan
from agentkit.types import SessionRecord, Task

folder, life = Path(sys.argv[1]), int(sys.argv[2])
rng = random.Random(life)
tasks = [
    Task(f"t{{i:03}}", "qa", "?", {{}}, {{"test.sh": b""}}, {{}}, {{"session_id": str(i)}})
    for i in range(225)
]
plan = plan_sessions(tasks, ["base", "trained"], 3, 7)
ledger = SessionLedger(folder, plan, 2)
engine_dies_after = 150 if life in (1, 3) else 10**9  # two engine deaths in the whole story

def record(p, status):
    broken = status not in ("completed", "timed_out")
    solved = None if broken else rng.random() < 0.7
    return SessionRecord(
        session_id=f"{{p.task.task_id}}-{{p.arm}}-{{p.attempt}}", task_id=p.task.task_id, kind="qa",
        source_id=p.task.source_id, harness="pi", model="m", arm=p.arm, attempt=p.attempt,
        seed=p.seed, status=status, score=None if broken else float(solved), correct=solved,
        reward=None if broken else float(solved), reason=f"life {{life}}",
    )

def execute(pending):
    for count, p in enumerate(pending):
        draw = rng.random()
        status = ("harness_error" if draw < 0.05 else "timed_out" if draw < 0.07
                  else "sandbox_error" if draw < 0.08 else "completed")
        if count >= engine_dies_after:
            status = "engine_error"
        yield Finished(p, record(p, status))

def check_engine():
    if life in (1, 3):
        raise EngineError("engine", "it died")

try:
    run_plan(ledger, execute, check_engine=check_engine)
except EngineError:
    sys.exit(3)
"""


def test_no_record_lost_or_doubled_under_kill_9_and_faults(tmp_path: Path) -> None:
    script, run = tmp_path / "run.py", tmp_path / "stage"
    run.mkdir()
    root = str(Path(__file__).resolve().parents[2])
    script.write_text(SCRIPT.format(root=root))
    final, rng, before = run / "sessions.jsonl", random.Random(0), b""
    kills = deaths = life = 0
    while True:
        process = subprocess.Popen(
            [sys.executable, str(script), str(run), str(life)], stderr=subprocess.DEVNULL
        )
        if life not in (1, 3) and kills < 5:
            start, goal = time.monotonic(), len(before.splitlines()) + rng.randint(40, 160)
            while process.poll() is None and time.monotonic() - start < 60:
                if final.exists() and final.read_bytes().count(b"\n") >= goal:
                    break
                time.sleep(0.002)
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        status = process.wait(timeout=120)
        deaths += status == 3
        now = final.read_bytes()
        whole = before[: before.rfind(b"\n") + 1]
        assert now.startswith(whole), "a finished record was changed"
        before, life = now, life + 1
        if status == 0:
            break
    records = read_jsonl(final)
    keys = Counter((r["task_id"], r["arm"], r["attempt"]) for r in records)
    assert (kills, deaths) == (5, 2)
    assert len(keys) == 1350
    assert max(keys.values()) == 1
    assert all(r["seed"] == derive_seed(7, "evaluate", r["task_id"], r["attempt"]) for r in records)
    tries = Counter(
        (r["task_id"], r["arm"], r["attempt"]) for r in read_jsonl(run / "broken.jsonl")
    )
    for r in records:
        broken = r["status"] in ("harness_error", "sandbox_error", "engine_error")
        count = tries[r["task_id"], r["arm"], r["attempt"]]
        assert count == 3 if broken else count < 3
    assert "engine_error" not in {r["status"] for r in records}
