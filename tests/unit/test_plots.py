"""Figures: what is drawn is the data, files are whole and equal every time, grey is enough."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from agentkit import plots
from agentkit.plots.style import COLOURS, Plot
from agentkit.statistics import Interval, compare, pair_records

ROOT = Path(__file__).resolve().parents[2]


def records(both: int = 30, gained: int = 12, lost: int = 4, neither: int = 10) -> list[Any]:
    outcomes = [(1, 1)] * both + [(0, 1)] * gained + [(1, 0)] * lost + [(0, 0)] * neither
    out = []
    for i, pair in enumerate(outcomes):
        for arm, solved in zip(("warm_start", "trained"), pair, strict=True):
            out.append(
                {
                    "task_id": f"t{i}", "source_id": f"s{i}", "kind": ("repair", "qa")[i % 2],
                    "harness": "pi", "model": "m", "arm": arm, "attempt": 0,
                    "status": "completed", "correct": bool(solved), "score": float(solved),
                    "calls": 2 + (i + (arm == "trained")) % 4, "reward": float(solved),
                    "duration_s": 1.0,
                }
            )  # fmt: skip
    return out


def cell(rows: list[Any], primary: bool = True, model: str = "m") -> Any:
    comparison = compare(
        pair_records(rows, "warm_start", "trained"), np.random.default_rng(0), resamples=500
    )
    return SimpleNamespace(model=model, harness="pi", comparison=comparison, primary=primary)


def ablation() -> Any:
    interval = Interval(0.6, 0.5, 0.7, 0.5, 0.7)
    points = [
        SimpleNamespace(coefficient=c, n=20, accuracy=interval, calls=Interval(4, 3, 5, 3, 5))
        for c in (0.0, 0.1, 0.3)
    ]
    return SimpleNamespace(points=points)


METRICS = [{"step": i, "reward": 0.5 + i / 50, "pass_rate": 0.5, "calls": 4} for i in range(9)]
TASKS = {"train": {"repair": 3, "qa": 1}, "heldout": {"repair": 2, "build": 5}}
PLOTS: dict[str, Callable[[], Plot]] = {
    "forest": lambda: plots.forest([cell(records()), cell(records(), False, "n")]),
    "mosaic": lambda: plots.mosaic(cell(records()).comparison),
    "calls": lambda: plots.calls_histogram(records()),
    "curve": lambda: plots.training_curve(METRICS),
    "ablation": lambda: plots.ablation_scatter(ablation()),
    "tasks": lambda: plots.tasks_by_kind(SimpleNamespace(tasks=TASKS)),
}


@pytest.mark.parametrize("name", list(PLOTS))
def test_files_are_whole_and_the_same_every_time(name: str, tmp_path: Path) -> None:
    plot = PLOTS[name]()
    first = plots.write(plot, tmp_path / "a", name)
    second = plots.write(PLOTS[name](), tmp_path / "b", name)
    assert [p.suffix for p in first] == [".png", ".svg", ".pdf", ".csv"]
    heads = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    for left, right in zip(first, second, strict=True):
        assert left.read_bytes() == right.read_bytes(), left.name
        assert left.read_bytes().startswith(heads.get(left.suffix, b""))
    rows = list(csv.DictReader(first[3].open()))
    assert len(rows) == len(plot.data) > 0


@pytest.mark.parametrize("name", list(PLOTS))
def test_every_figure_has_words_and_labels(name: str) -> None:
    plot = PLOTS[name]()
    assert len(plot.alt) > 30
    bundle, meta = plot.figure._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert meta["image/png"]["alt"] == plot.alt
    axes = plot.figure.axes
    assert any(a.get_title(loc="left") for a in axes)
    assert all(a.get_ylabel() or a.get_yticklabels() for a in axes)


def test_forest_shows_the_interval_of_each_cell() -> None:
    main, other = cell(records()), cell(records(gained=2), False, "n")
    rows = plots.forest([main, other]).data
    gap = main.comparison.missing.quantity.difference
    assert rows[0]["role"] == "primary"
    assert rows[0]["label"] == "m · trained"
    assert (rows[0]["points"], rows[0]["low"], rows[0]["high"]) == pytest.approx(
        (100 * gap.estimate, 100 * gap.low, 100 * gap.high), abs=1e-4
    )
    assert [r["role"] for r in rows] == ["primary", "kind", "kind", "cell"]
    alone = plots.forest([main])
    assert alone.data[0]["label"] == "trained"
    assert "m · pi" in alone.figure.axes[0].get_title(loc="left")


def test_forest_tells_when_broken_sessions_would_matter() -> None:
    rows = records()
    rows[0].update(status="sandbox_error", correct=None, score=None, reward=None)
    shown = plots.forest([cell(rows)]).data
    assert [r["role"] for r in shown][:2] == ["primary", "check"]
    assert shown[1]["pairs"] == shown[0]["pairs"] + 1


@pytest.mark.parametrize("counts", [(30, 12, 4, 10), (5, 0, 0, 5), (0, 3, 0, 0), (9, 0, 1, 0)])
def test_mosaic_areas_are_shares(counts: tuple[int, int, int, int]) -> None:
    both, gained, lost, neither = counts
    rows = records(both, gained, lost, neither)
    comparison = cell(rows).comparison
    patches = list(plots.mosaic(comparison).figure.axes[0].patches)
    areas = sorted(p.get_width() * p.get_height() for p in patches if isinstance(p, Rectangle))
    assert areas == pytest.approx(sorted(c / sum(counts) for c in counts if c))


def test_histogram_bars_sum_to_all_sessions_and_leave_broken_ones_out() -> None:
    rows = records()
    rows[1].update(status="engine_error", correct=None, calls=99)
    data = plots.calls_histogram(rows).data
    assert max(r["calls"] for r in data) < 99
    for arm, sessions in (("warm_start", 56), ("trained", 55)):
        held = [r for r in data if r["arm"] == arm]
        assert sum(r["sessions"] for r in held) == sessions
        assert sum(r["percent"] for r in held) == pytest.approx(100, abs=0.01)


def test_running_mean_by_hand_and_over_gaps() -> None:
    assert plots.running_mean(np.array([1.0, 2, 3, 4]), 3) == pytest.approx([1.5, 2, 3, 3.5])
    assert plots.running_mean(np.array([1.0, np.nan, 3]), 3) == pytest.approx([1, 2, 3])
    assert np.isnan(plots.running_mean(np.array([np.nan]))).all()


def test_curve_of_one_step_and_of_a_step_without_sessions() -> None:
    one = plots.training_curve([{"step": 0, "reward": 0.5, "pass_rate": 0.5, "calls": 2.0}])
    assert one.data[0]["reward"] == 0.5
    gap = plots.training_curve([{"step": 0, "reward": None, "pass_rate": None, "calls": None}])
    assert gap.data[0]["reward"] is None


def test_neighbouring_colours_differ_in_grey() -> None:
    grey = [np.dot(to_rgb(c), (0.299, 0.587, 0.114)) for c in COLOURS[:3]]
    assert min(abs(a - b) for i, a in enumerate(grey) for b in grey[i + 1 :]) > 0.05


def test_drawing_leaves_no_global_state() -> None:
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy(); import agentkit.plots as p; "
        "p.training_curve([{'step': 0, 'reward': 1, 'pass_rate': 1, 'calls': 1}]); "
        "assert matplotlib.rcParams.copy() == before; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
