"""Shipped results come out of their records again, digit by digit, and a changed digit is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkit.analysis import analyse_records, canonical_json
from agentkit.params import AnalyseParams
from agentkit.reproduce import differences, main

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(p.parent for p in (ROOT / "docs" / "results").glob("*/summary.json"))


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    rng, rows = np.random.default_rng(3), []
    for i in range(40):
        for arm, chance in (("warm_start", 0.5), ("trained", 0.8)):
            solved = bool(rng.random() < chance)
            # The fields that shipped records hold at least.
            rows.append(
                {
                    "task_id": f"t{i}", "kind": "qa", "source_id": f"s{i // 2}", "harness": "pi",
                    "arm": arm, "attempt": 0, "status": "completed", "score": float(solved),
                    "correct": solved, "calls": int(rng.integers(1, 9)),
                    "reward": float(solved), "duration_s": 1.5,
                }
            )  # fmt: skip
    params = AnalyseParams(
        run_dir="runs/somewhere", seed=0, primary_harness="pi", baseline_arm="warm_start",
        treatment_arm="trained", resamples=2000, confidence=0.95, equivalence_margin=0.05,
        usd_per_hour=0.1,
    )  # fmt: skip
    folder = tmp_path / "result"
    folder.mkdir()
    (folder / "sessions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "summary.json").write_text(canonical_json(analyse_records(rows, params).summary))
    return folder


def test_same_digits(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(shipped)]) == 0
    out = capsys.readouterr().out
    assert "every digit as shipped" in out
    assert "95% interval" in out


def edit(path: Path, change: Any) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_changed_digit_is_named(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(data: Any) -> None:
        data["cells"][0]["missing"]["quantity"]["difference"]["low"] += 1e-6

    edit(shipped / "summary.json", change)
    assert main([str(shipped)]) == 1
    assert "differs at cells[0].missing.quantity.difference.low" in capsys.readouterr().out


def test_a_changed_record_is_found(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (shipped / "sessions.jsonl").read_text().splitlines()
    record = json.loads(lines[5])
    record["correct"] = not record["correct"]
    lines[5] = json.dumps(record)
    (shipped / "sessions.jsonl").write_text("\n".join(lines) + "\n")
    assert main([str(shipped)]) == 1
    assert "differs at" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["summary.json", "sessions.jsonl"])
def test_missing_files_are_one_line(
    shipped: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (shipped / name).unlink()
    assert main([str(shipped)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and name in error


def test_a_summary_that_is_none(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shipped / "summary.json").write_text("[]")
    assert main([str(shipped)]) == 2
    assert "a shipped summary" in capsys.readouterr().err
    edit(shipped / "summary.json", lambda data: None)


def test_figures_are_drawn_from_the_records(shipped: Path, tmp_path: Path) -> None:
    assert main([str(shipped), "--figures", str(tmp_path / "figures")]) == 0
    drawn = {p.name for p in (tmp_path / "figures" / "result").iterdir()}
    assert {"forest.png", "forest.csv", "mosaic.svg", "calls.pdf"} <= drawn


def test_differences_see_types_lengths_and_absent_keys() -> None:
    assert list(differences({"a": [1, 2.0]}, {"a": [1, 2.0]})) == []
    assert len(list(differences({"a": 1, "b": 2}, {"a": 1.0, "c": 2}))) == 3
    assert list(differences([1], [1, 2])) == [": shipped [1], recomputed [1, 2]"]


@pytest.mark.parametrize("folder", SHIPPED, ids=[p.name for p in SHIPPED])
def test_results_in_this_repository(folder: Path) -> None:
    assert main([str(folder)]) == 0
