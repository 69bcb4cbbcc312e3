"""Layer: faces. One style for every figure, and how a figure is kept.

matplotlib's object-oriented API only: no pyplot, no current figure, no window. Colours are Okabe &
Ito's (told apart by colour-blind readers) in an order whose lightness differs in grey as well;
hatches and markers say the same a second time.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentkit.runs import Run, write_atomic

INK, SOFT, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
BLUE, ORANGE, GREEN, PINK, SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"
COLOURS = ("#b8b8b8", BLUE, ORANGE, GREEN, PINK, SKY)
"""By arm, in order: the baseline is grey."""
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
MARKERS = ("o", "D", "s", "^", "v", "P")
WIDTH = 6.4
"""Inches: one text column."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "agentkit",
    "pdf.fonttype": 42,
}


class KitFigure(Figure):
    """A figure that a notebook shows as PNG with alternative text, without any global back end."""

    alt = ""

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        meta = {"image/png": {"width": int(self.get_figwidth() * 100), "alt": self.alt}}
        return {"image/png": render(self, "png")}, meta


@dataclass(frozen=True)
class Plot:
    """A figure, the rows of data it shows, and one sentence for readers who cannot see it."""

    figure: KitFigure
    data: list[dict[str, Any]]
    alt: str


@contextmanager
def style() -> Iterator[None]:
    """Draw inside: the style holds for this block alone."""
    with rc_context(STYLE):
        yield


def new_figure(
    height: float, rows: int = 1, columns: int = 1, *, width: float = WIDTH, **more: Any
) -> tuple[KitFigure, Any]:
    """A figure of the one width and its axes (``squeeze=False``: always a 2-d array)."""
    figure = KitFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def finish(figure: KitFigure, data: list[dict[str, Any]], alt: str) -> Plot:
    figure.alt = alt
    return Plot(figure, data, alt)


def grid(axes: Axes, axis: Literal["x", "y", "both"]) -> None:
    axes.grid(True, axis=axis)
    axes.tick_params(length=0, axis="both")


def render(figure: Figure, suffix: str) -> bytes:
    """The figure as bytes; no dates or versions in it, so that equal data gives equal files."""
    empty = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    }[suffix]
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=suffix, metadata=empty)
    return buffer.getvalue()


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with the union of their keys as header."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def write(plot: Plot, folder: Path, name: str) -> list[Path]:
    """Write ``name`` as PNG, SVG, PDF and, beside them, its data as CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in ("png", "svg", "pdf", "csv")]
    for path in paths[:3]:
        write_atomic(path, render(plot.figure, path.suffix[1:]))
    write_atomic(paths[3], csv_text(plot.data))
    return paths


def save_figure(plot: Plot, run: Run, name: str) -> list[Path]:
    """Write a figure into the stage's ``figures/`` folder."""
    return write(plot, run.path("figures"), name)
