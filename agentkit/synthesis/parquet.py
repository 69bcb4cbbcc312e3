"""Layer: sources. A task set as a ``datasets.Dataset``."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from agentkit.types import Files, Task


def to_dataset(tasks: Sequence[Task]) -> Any:
    """A ``datasets.Dataset``, one row a task, ready for ``push_to_hub``.

    Files are lists of ``{path, content, encoding}`` with encoding ``utf-8`` or ``base64``.
    """
    import datasets

    datasets.disable_progress_bars()
    return datasets.Dataset.from_list([task_row(t) for t in tasks])


def task_row(task: Task) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "kind": task.kind,
        "split": task.split,
        "difficulty": task.difficulty,
        "instruction": task.instruction,
        "workspace": _rows(task.workspace),
        "tests": _rows(task.tests),
        "solution": _rows(task.solution),
        "source_dataset": task.source["dataset"],
        "source_session_id": task.source["session_id"],
        "licence": task.source["licence"],
        "agent_timeout_s": task.agent_timeout_s,
        "verifier_timeout_s": task.verifier_timeout_s,
        "extra": json.dumps(task.extra, sort_keys=True),
    }


def _rows(files: Files) -> list[dict[str, str]]:
    rows = []
    for path, data in sorted(files.items()):
        try:
            rows.append({"path": path, "content": data.decode(), "encoding": "utf-8"})
        except UnicodeDecodeError:
            content = base64.b64encode(data).decode()
            rows.append({"path": path, "content": content, "encoding": "base64"})
    return rows
