"""From records to summary: the primary cell, Holm, canonical digits, refusals, scale."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkit.analysis import analyse, analyse_records, canonical, canonical_json
from agentkit.errors import RunError
from agentkit.params import AnalyseParams
from agentkit.runs import Run, append_jsonl
from agentkit.statistics import PairingError, holm

ROOT = Path(__file__).resolve().parents[2]


def params(**changes: Any) -> AnalyseParams:
    values = {
        "run_dir": "x", "seed": 0, "primary_harness": "pi", "baseline_arm": "warm_start",
        "treatment_arm": "trained", "resamples": 1000, "confidence": 0.95,
        "equivalence_margin": 0.05, "usd_per_hour": 0.6,
    }  # fmt: skip
    return AnalyseParams(**{**values, **changes})


def records(
    tasks: int = 60,
    arms: tuple[str, ...] = ("warm_start", "trained"),
    models: tuple[str, ...] = ("m",),
    attempts: int = 1,
) -> list[dict[str, Any]]:
    rng, out = np.random.default_rng(5), []
    for model in models:
        for task in range(tasks):
            for attempt in range(attempts):
                for index, arm in enumerate(arms):
                    solved = bool(rng.random() < 0.6 + 0.1 * index)
                    out.append(
                        {
                            "task_id": f"t{task:05}",
                            "source_id": f"s{task}",
                            "kind": "qa",
                            "harness": "pi",
                            "model": model,
                            "arm": arm,
                            "attempt": attempt,
                            "status": "completed",
                            "score": float(solved),
                            "correct": solved,
                            "calls": int(rng.integers(1, 9)),
                            "reward": float(solved),
                            "duration_s": 2.0,
                            "finished_at": "2026-01-01T00:00:02Z",
                            "prompt_tokens": 100,
                            "cached_tokens": 50,
                            "sampled_tokens": 10,
                        }
                    )
    return out


def test_summary_says_what_the_records_say() -> None:
    rows = records()
    found = analyse_records(rows, params())
    solved = {
        arm: np.mean([r["correct"] for r in rows if r["arm"] == arm])
        for arm in ("warm_start", "trained")
    }
    gap = found.primary.missing.quantity.difference
    assert gap.estimate == pytest.approx(solved["trained"] - solved["warm_start"])
    assert f"{100 * solved['warm_start']:.1f}% → {100 * solved['trained']:.1f}%" in found.headline
    cell = found.summary["cells"][0]
    assert cell["missing"]["quantity"]["difference"]["estimate"] == round(gap.estimate or 0, 6)
    assert cell["primary"] is True


def test_the_same_bytes_every_time_and_others_for_another_seed() -> None:
    rows = records()
    first = canonical_json(analyse_records(rows, params()).summary)
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    again = analyse_records(shuffled, params(run_dir="elsewhere"))
    cells = json.loads(first)["cells"]
    assert json.loads(canonical_json(again.summary))["cells"] == cells
    assert first == canonical_json(analyse_records(rows, params()).summary)
    assert (
        cells != json.loads(canonical_json(analyse_records(rows, params(seed=1)).summary))["cells"]
    )


def test_primary_first_and_holm_over_the_others() -> None:
    rows = records(arms=("warm_start", "base_again", "trained", "c0.3"), models=("a", "b"))
    found = analyse_records(rows, params())
    assert [c.primary for c in found.cells] == [True] + [False] * 5
    assert found.primary.other_arm == "trained"
    assert found.cells[0].p_adjusted == found.primary.missing.mcnemar_exact
    raw = {str(i): c.comparison.missing.mcnemar_exact for i, c in enumerate(found.cells[1:])}
    assert [c.p_adjusted for c in found.cells[1:]] == pytest.approx(list(holm(raw).values()))


def test_refusals() -> None:
    rows = records()
    with pytest.raises(PairingError, match="no session of arm 'trained'"):
        analyse_records([r for r in rows if r["arm"] == "warm_start"], params())
    with pytest.raises(PairingError, match="have no partner"):
        analyse_records(rows[:-1], params())
    with pytest.raises(RunError, match="primary_harness"):
        analyse_records(rows, params(primary_harness="opencode"))


def test_stage_writes_the_summary_and_asks_for_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Run.open(params(run_dir="r")) as run:
        with pytest.raises(RunError, match="run notebook 03"):
            analyse(params(run_dir="r"), run)
        (run.root / "03_evaluate").mkdir()
        for record in records(8):
            append_jsonl(run.root / "03_evaluate" / "sessions.jsonl", record)
        found = analyse(params(run_dir="r"), run)
        written = run.path("summary.json").read_text()
        assert written == canonical_json(found.summary)
        assert str(tmp_path) not in written


def test_canonical_has_no_nan_no_minus_zero_and_few_digits() -> None:
    @dataclasses.dataclass
    class Thing:
        x: Any

    assert canonical(Thing([math.nan, -0.0, 1 / 3, np.int64(3), np.bool_(True), (1,)])) == {
        "x": [None, 0.0, 0.333333, 3, True, [1]]
    }
    assert "-0.0" not in canonical_json([-1e-9])


def test_nine_cells_ten_thousand_resamples_take_seconds() -> None:
    rows = records(150, models=tuple("abcdefghi"))
    started = time.process_time()
    found = analyse_records(rows, params(resamples=10_000))
    assert len(found.cells) == 9
    assert time.process_time() - started < 4.0


def test_memory_at_a_hundred_thousand_records() -> None:
    code = f"""
import re, sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from test_statistics_analysis import analyse_records, params, records
analyse_records(records(10_000, attempts=5), params(resamples=2_000))
# Not getrusage: its maximum is carried over from the process that forked this one.
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kibibytes = int(done.stdout)
    assert kibibytes < 1 << 20


def test_analysis_needs_no_torch_vllm_or_matplotlib() -> None:
    code = (
        "import sys, agentkit.reproduce; "
        "bad = {'torch', 'vllm', 'matplotlib', 'transformers', 'docker'} & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
