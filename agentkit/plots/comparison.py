"""Layer: faces. Figures of two arms on the same tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.patches import Rectangle

from agentkit.plots.style import (
    BLUE,
    COLOURS,
    FAINT,
    HATCHES,
    INK,
    ORANGE,
    SOFT,
    Plot,
    finish,
    grid,
    new_figure,
    style,
)
from agentkit.statistics import Comparison, Interval, Quantity, arms_of
from agentkit.types import BROKEN

Record = Mapping[str, Any]


class CellLike(Protocol):
    """What the forest plot needs of a cell."""

    @property
    def model(self) -> str: ...
    @property
    def harness(self) -> str: ...
    @property
    def comparison(self) -> Comparison: ...
    @property
    def primary(self) -> bool: ...


def _row(label: str, role: str, n: int, gap: Interval) -> dict[str, Any]:
    def points(value: float | None) -> float | None:
        return None if value is None else round(100 * value, 4)

    return {
        "label": label,
        "role": role,
        "pairs": n,
        "points": points(gap.estimate),
        "low": points(gap.low),
        "high": points(gap.high),
        "bca_low": points(gap.bca_low),
        "bca_high": points(gap.bca_high),
    }


def _kinds(comparison: Comparison) -> list[dict[str, Any]]:
    named: list[tuple[str, Quantity]] = [(k, q) for k, q in comparison.by_kind.items() if k]
    return [_row(f"{kind} tasks", "kind", q.n, q.difference) for kind, q in named]


def forest_rows(cells: Sequence[CellLike]) -> list[dict[str, Any]]:
    """One row for each cell; the primary one is followed by its check and its kinds."""
    rows = []
    for cell in cells:
        c = cell.comparison
        gap, other = c.missing.quantity, c.failures.quantity
        label = " · ".join([*_parts(cells, cell, shared=False), c.other_arm])
        rows.append(_row(label, "primary" if cell.primary else "cell", gap.n, gap.difference))
        if cell.primary and other.n != gap.n:
            rows.append(_row("broken as failures", "check", other.n, other.difference))
        if cell.primary:
            rows += _kinds(c)
    return rows


def _parts(cells: Sequence[CellLike], cell: CellLike, *, shared: bool) -> list[str]:
    """Model and harness of a cell: those that all cells share, or those that tell it apart."""
    parts = [(cell.model, {c.model for c in cells}), (cell.harness, {c.harness for c in cells})]
    return [name for name, names in parts if name and (len(names) == 1) == shared]


def forest(cells: Sequence[CellLike]) -> Plot:
    """Paired difference in pass@1 for each cell, with percentile intervals."""
    rows = forest_rows(cells)
    first = cells[0].comparison
    with style():
        figure, grid_of_axes = new_figure(1.15 + 0.29 * len(rows))
        axes = grid_of_axes[0, 0]
        known = [x for r in rows for x in (r["low"], r["high"]) if x is not None]
        low, high = min([0.0, *known]), max([0.0, *known])
        axes.axvline(0, color=INK, linewidth=0.9)
        for height, row in enumerate(rows):
            _forest_row(axes, -height, row)
        axes.set_yticks([-h for h in range(len(rows))], [_label(r) for r in rows])
        for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_fontweight("bold" if row["role"] == "primary" else "normal")
            tick.set_color(INK if row["role"] in ("primary", "cell") else SOFT)
        axes.set_ylim(-len(rows) + 0.4, 0.75)
        margin = 0.06 * (high - low or 1)
        axes.set_xlim(low - margin, high + margin)
        grid(axes, "x")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(
            f"difference in pass@1 against {first.base_arm}, points "
            f"({100 * first.level:.0f}% paired bootstrap interval)"
        )
        axes.set_title(" · ".join([*_parts(cells, cells[0], shared=True), "held-out tasks"]))
    main = rows[0]
    alt = (
        f"Forest plot of paired differences: {main['label']} {_span(main)} points; "
        f"{len(rows) - 1} further rows."
    )
    return finish(figure, rows, alt)


def _label(row: Mapping[str, Any]) -> str:
    indent = "" if row["role"] in ("primary", "cell") else "    "
    return f"{indent}{row['label']}  (n = {row['pairs']})"


def _span(row: Mapping[str, Any]) -> str:
    if row["points"] is None or row["low"] is None:
        return "not defined"
    text = f"{row['points']:+.1f}  [{row['low']:+.1f}, {row['high']:+.1f}]"
    return text.replace("-", "−")


def _forest_row(axes: Any, height: int, row: Mapping[str, Any]) -> None:
    bold = row["role"] in ("primary", "cell")
    colour = BLUE if row["role"] == "primary" else INK if bold else SOFT
    if row["low"] is not None:
        axes.plot(
            [row["low"], row["high"]], [height, height], color=colour,
            linewidth=2.4 if bold else 1.2, solid_capstyle="butt",
        )  # fmt: skip
        axes.plot(
            row["points"], height, "D" if bold else "o", color=colour,
            markerfacecolor=colour if bold else "white", markersize=7 if bold else 4.5,
        )  # fmt: skip
    axes.text(
        1.015, height, _span(row), transform=axes.get_yaxis_transform(), va="center",
        fontsize=8.5, fontweight="bold" if row["role"] == "primary" else "normal",
        color=INK if bold else SOFT,
    )  # fmt: skip


def mosaic(comparison: Comparison) -> Plot:
    """The 2×2 table as areas: width is the base arm's share, height the other arm's within it."""
    table = comparison.missing.table
    base, other = comparison.base_arm, comparison.other_arm
    parts = [
        ("both solved", table.both, table.base, 0.0, FAINT, ""),
        (f"lost: only {base}", table.lost, table.base, 1.0, ORANGE, "xxx"),
        (f"gained: only {other}", table.gained, table.n - table.base, 0.0, BLUE, ""),
        ("neither", table.neither, table.n - table.base, 1.0, FAINT, ""),
    ]
    with style():
        figure, grid_of_axes = new_figure(3.7, width=5.6)
        axes = grid_of_axes[0, 0]
        split = table.base / table.n
        for index, (label, count, column, side, colour, hatch) in enumerate(parts):
            if not count:
                continue
            left, width = (0.0, split) if index < 2 else (split, 1 - split)
            height = count / column
            bottom = 0.0 if side == 0 else 1 - height
            axes.add_patch(
                Rectangle(
                    (left, bottom), width, height, facecolor=colour, edgecolor="white",
                    linewidth=2.5, hatch=hatch,
                )
            )  # fmt: skip
            _mosaic_text(axes, (left, bottom, width, height), label, count, colour)
        _mosaic_axes(axes, split, base, other)
        axes.set_title(
            f"{table.gained} gained, {table.lost} lost of {table.n} pairs "
            f"(exact McNemar p = {comparison.missing.mcnemar_exact:.2g})"
        )
    rows = [
        {"outcome": name, "base": b, "other": o, "pairs": count}
        for name, b, o, count in [
            ("both", 1, 1, table.both),
            ("lost", 1, 0, table.lost),
            ("gained", 0, 1, table.gained),
            ("neither", 0, 0, table.neither),
        ]
    ]
    alt = (
        f"Mosaic of paired outcomes: {table.both} solved by both arms, {table.gained} gained, "
        f"{table.lost} lost, {table.neither} solved by neither."
    )
    return finish(figure, rows, alt)


def _mosaic_text(
    axes: Any, box: tuple[float, float, float, float], label: str, count: int, colour: str
) -> None:
    left, bottom, width, height = box
    dark = colour == BLUE
    thin = height < 0.13
    text = f"{count}  {label}" if thin else f"{count}\n{label}"
    plate = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if colour == ORANGE else None
    axes.text(
        left + width / 2, bottom + height / 2, text, ha="center", va="center",
        color="white" if dark else INK, fontsize=8 if thin else 9, bbox=plate, wrap=True,
    )  # fmt: skip


def _mosaic_axes(axes: Any, split: float, base: str, other: str) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xticks([split / 2, (1 + split) / 2], [f"solved by {base}", "not solved"])
    axes.set_yticks(np.linspace(0, 1, 5), [f"{x:.0f}%" for x in np.linspace(0, 100, 5)])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_ylabel(f"share within column; solved by {other} below")


def calls_histogram(records: Sequence[Record]) -> Plot:
    """Share of sessions by number of tool calls, for each arm; broken sessions are left out."""
    held = [r for r in records if r["status"] not in BROKEN]
    arms = arms_of(held)
    top = max([int(r["calls"]) for r in held], default=0)
    counts = np.arange(top + 1)
    rows: list[dict[str, Any]] = []
    with style():
        figure, grid_of_axes = new_figure(2.9)
        axes = grid_of_axes[0, 0]
        width = 0.8 / max(1, len(arms))
        for index, arm in enumerate(arms):
            calls = np.array([int(r["calls"]) for r in held if r["arm"] == arm])
            sessions = np.bincount(calls, minlength=top + 1)
            share = 100 * sessions / len(calls)
            axes.bar(
                counts + (index - (len(arms) - 1) / 2) * width, share, width,
                color=COLOURS[index % 6], hatch=HATCHES[index % 6], edgecolor="white",
                linewidth=0.5, label=f"{arm}: mean {calls.mean():.2f}, n = {len(calls)}",
            )  # fmt: skip
            axes.plot(
                calls.mean(), 0.98, "v", color=COLOURS[index % 6], markeredgecolor=INK,
                markersize=8, clip_on=False, zorder=4, transform=axes.get_xaxis_transform(),
            )  # fmt: skip
            rows += [
                {"arm": arm, "calls": int(k), "sessions": int(n), "percent": round(float(p), 4)}
                for k, n, p in zip(counts, sessions, share, strict=True)
            ]
        grid(axes, "y")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
        axes.set_xticks(counts[:: max(1, (top + 1) // 16)])
        axes.set_xlabel("tool calls in a session (triangles: means)")
        axes.set_ylabel("sessions, %")
        axes.set_title("Tool calls for each session")
        axes.legend(loc="upper right")
    means = ", ".join(
        f"{arm} {np.mean([r['calls'] for r in held if r['arm'] == arm]):.2f}" for arm in arms
    )
    return finish(figure, rows, f"Histogram of tool calls for each session; means: {means}.")
