"""Layer: faces. Tables, texts and the HTML report.

``show_*`` return a ``Shown``: HTML in a notebook, plain text elsewhere. ``render_report`` makes one
self-contained page of an executed notebook.
"""

from agentkit.report.page import render_report
from agentkit.report.results import (
    show_ablation,
    show_cells,
    show_cost,
    show_pass_rates,
    show_reconstruction,
    show_sessions,
)
from agentkit.report.stages import (
    show_record,
    show_refusals,
    show_rows,
    show_synthesis,
    show_task,
    show_training,
    show_turns,
)
from agentkit.report.tables import Shown, markdown_table, show_block, show_text, table

__all__ = [
    "Shown",
    "markdown_table",
    "render_report",
    "show_ablation",
    "show_block",
    "show_cells",
    "show_cost",
    "show_pass_rates",
    "show_reconstruction",
    "show_record",
    "show_refusals",
    "show_rows",
    "show_sessions",
    "show_synthesis",
    "show_task",
    "show_text",
    "show_training",
    "show_turns",
    "table",
]
