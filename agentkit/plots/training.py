"""Layer: faces. Figures of synthesis, training and ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentkit.plots.style import (
    BLUE,
    COLOURS,
    HATCHES,
    INK,
    MARKERS,
    SOFT,
    Plot,
    finish,
    grid,
    new_figure,
    style,
)
from agentkit.statistics import Interval
from agentkit.types import KINDS

Record = Mapping[str, Any]

CURVES = (
    ("reward", "reward", 1.0),
    ("pass_rate", "pass@1, %", 100.0),
    ("calls", "tool calls", 1.0),
)
"""Fields of ``metrics.jsonl``, axis labels and scales of the training curve."""
WINDOW = 5
"""Steps of the running mean."""


def running_mean(values: NDArray[np.float64], window: int = WINDOW) -> NDArray[np.float64]:
    """Centred mean over up to ``window`` steps, shorter at the ends; NaN steps are left out."""
    half = window // 2
    out = np.full(len(values), np.nan)
    for i in range(len(values)):
        held = values[max(0, i - half) : i + half + 1]
        held = held[np.isfinite(held)]
        if len(held):
            out[i] = held.mean()
    return out


def training_curve(metrics: Sequence[Record]) -> Plot:
    """Reward, pass rate and calls of the training sessions by step, with a running mean.

    Args:
        metrics: lines of ``metrics.jsonl`` with ``step`` and the fields of ``CURVES``; None where a
            step had no session to average.
    """
    steps = np.array([int(m["step"]) for m in metrics])
    rows: list[dict[str, Any]] = [{"step": int(s)} for s in steps]
    with style():
        figure, axes_grid = new_figure(4.6, rows=len(CURVES), sharex=True)
        for (name, label, scale), axes in zip(CURVES, axes_grid[:, 0], strict=True):
            values = scale * _field(metrics, name)
            smooth = running_mean(values)
            axes.plot(steps, values, "o", color=SOFT, markersize=3.2, label="step")
            if len(steps) > 2:
                axes.plot(steps, smooth, color=BLUE, linewidth=1.8, label=f"mean of {WINDOW}")
            axes.set_ylabel(label)
            grid(axes, "y")
            axes.margins(y=0.15)
            for row, value, mean in zip(rows, values, smooth, strict=True):
                row[name] = None if np.isnan(value) else round(float(value), 6)
                row[f"{name}_mean_{WINDOW}"] = None if np.isnan(mean) else round(float(mean), 6)
        last = axes_grid[-1, 0]
        last.set_xlabel("optimizer step")
        last.xaxis.get_major_locator().set_params(integer=True)
        axes_grid[0, 0].set_title("Training sessions (on-policy, few tasks a step)")
        if len(steps) > 2:
            axes_grid[0, 0].legend(loc="lower right", ncols=2)
    ends = ", ".join(f"{n} {rows[0][n]} to {rows[-1][n]}" for n, _, _ in CURVES) if rows else ""
    return finish(figure, rows, f"Training curve over {len(rows)} steps: {ends}.")


def _field(metrics: Sequence[Record], name: str) -> NDArray[np.float64]:
    values = (m.get(name) for m in metrics)
    return np.array([np.nan if v is None else float(v) for v in values], dtype=float)


class PointLike(Protocol):
    """What the ablation figure needs of a coefficient."""

    @property
    def coefficient(self) -> float: ...
    @property
    def n(self) -> int: ...
    @property
    def accuracy(self) -> Interval: ...
    @property
    def calls(self) -> Interval: ...


class AblationLike(Protocol):
    @property
    def points(self) -> Sequence[PointLike]: ...


def ablation_scatter(ablation: AblationLike) -> Plot:
    """Accuracy against calls, one point for each coefficient, with intervals both ways."""
    rows = []
    with style():
        figure, axes_grid = new_figure(3.6, width=5.4)
        axes = axes_grid[0, 0]
        for index, point in enumerate(ablation.points):
            calls, accuracy = point.calls, point.accuracy
            x, x_error = _with_error(calls, 1)
            y, y_error = _with_error(accuracy, 100)
            colour = COLOURS[index % len(COLOURS)]
            axes.errorbar(
                x, y, xerr=x_error, yerr=y_error, fmt=MARKERS[index % len(MARKERS)],
                color=colour, markeredgecolor=INK, markersize=8, elinewidth=1.2, capsize=0,
                label=f"coefficient {point.coefficient:g}", zorder=3,
            )  # fmt: skip
            rows.append(
                {
                    "coefficient": point.coefficient,
                    "pairs": point.n,
                    "calls": calls.estimate,
                    "calls_low": calls.low,
                    "calls_high": calls.high,
                    "accuracy": accuracy.estimate,
                    "accuracy_low": accuracy.low,
                    "accuracy_high": accuracy.high,
                }
            )
        grid(axes, "both")
        axes.margins(0.12)
        axes.set_xlabel("tool calls a session")
        axes.set_ylabel("pass@1, %")
        level = 100 * ablation.points[0].accuracy.level
        axes.set_title(f"Reward ablation, n = {ablation.points[0].n} ({level:.0f}% intervals)")
        axes.legend(loc="best")
    alt = "Accuracy against calls: " + "; ".join(
        f"coefficient {r['coefficient']:g}: {100 * (r['accuracy'] or 0):.1f}%, "
        f"{r['calls'] or 0:.2f} calls"
        for r in rows
    )
    return finish(figure, rows, alt + ".")


def _with_error(interval: Interval, scale: float) -> tuple[float, list[list[float]] | None]:
    if interval.estimate is None:
        return float("nan"), None
    if interval.low is None or interval.high is None:
        return scale * interval.estimate, None
    below, above = interval.estimate - interval.low, interval.high - interval.estimate
    return scale * interval.estimate, [[scale * max(0.0, below)], [scale * max(0.0, above)]]


class SynthesisLike(Protocol):
    """What the figure of tasks needs of a synthesis summary: ``{split: {kind: tasks}}``."""

    @property
    def tasks(self) -> Mapping[str, Mapping[str, int]]: ...


def tasks_by_kind(summary: SynthesisLike) -> Plot:
    """Tasks by kind and split."""
    counts = summary.tasks
    rows = [
        {"split": split, "kind": kind, "tasks": int(by_kind.get(kind, 0))}
        for split, by_kind in counts.items()
        for kind in KINDS
    ]
    with style():
        figure, axes_grid = new_figure(2.6)
        axes = axes_grid[0, 0]
        width = 0.8 / max(1, len(counts))
        for index, (split, by_kind) in enumerate(counts.items()):
            heights = [int(by_kind.get(kind, 0)) for kind in KINDS]
            bars = axes.bar(
                np.arange(len(KINDS)) + (index - (len(counts) - 1) / 2) * width, heights, width,
                color=COLOURS[index % 6], hatch=HATCHES[index % 6], edgecolor="white",
                linewidth=0.5, label=f"{split} ({sum(heights)})",
            )  # fmt: skip
            axes.bar_label(bars, fontsize=8.5, padding=2)
        axes.set_xticks(range(len(KINDS)), [k if k != "qa" else "QA" for k in KINDS])
        grid(axes, "y")
        axes.margins(y=0.32)
        axes.set_ylabel("tasks")
        axes.set_title("Tasks by kind and split")
        axes.legend(loc="upper right", ncols=len(counts))
    listed = ", ".join(f"{r['split']} {r['kind']} {r['tasks']}" for r in rows)
    return finish(figure, rows, f"Tasks by kind and split: {listed}.")
