"""Layer: sources. What could not be used, where, and why: one row of the table of refusals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """One refused file, trajectory or task.

    Attributes:
        stage: ``read``, ``replay``, ``unit``, ``build``, ``gate``, ``duplicate`` or ``split``.
        category: a short phrase without names or numbers, so that refusals can be counted.
        reason: the full line for a reader.
        path: file of the trace, relative to the source where it lies in a folder.
        line: line of the file, 0 where no line is at fault.
        session_id: the trajectory's id where it was read.
        task_id: the task's id where one was built.
    """

    stage: str
    category: str
    reason: str
    path: str = ""
    line: int = 0
    session_id: str = ""
    task_id: str = ""

    def as_row(self) -> dict[str, Any]:
        return asdict(self)
