"""Layer: faces. Data to figures: a ``Plot`` holds figure, data rows and alternative text.

``save_figure(plot, run, name)`` keeps PNG, SVG, PDF and the data as CSV.
"""

from agentkit.plots.comparison import calls_histogram, forest, mosaic
from agentkit.plots.style import Plot, csv_text, render, save_figure, write
from agentkit.plots.training import (
    ablation_scatter,
    running_mean,
    tasks_by_kind,
    training_curve,
)

__all__ = [
    "Plot",
    "ablation_scatter",
    "calls_histogram",
    "csv_text",
    "forest",
    "mosaic",
    "render",
    "running_mean",
    "save_figure",
    "tasks_by_kind",
    "training_curve",
    "write",
]
