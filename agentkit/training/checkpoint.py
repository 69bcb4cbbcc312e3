"""Layer: work. Checkpoints that count only when they are whole.

transformers' own checkpoints hold all that a step needs (adapter, optimizer, scheduler, random
states, trainer state), so they are used as they are. They are not written atomically; a marker,
written last and atomically, makes them so: it lists each file with its size, and a folder without a
matching marker is the rest of a killed save and is removed. The step's metrics stand in the marker,
so that the metrics line of a step can be completed after a kill between checkpoint and line.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from agentkit.errors import TrainingError
from agentkit.runs import append_jsonl, read_jsonl, write_atomic

MARKER = "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def _sizes(folder: Path) -> dict[str, int]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != MARKER)
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(files)}


def mark_complete(folder: Path, metrics: dict[str, Any]) -> None:
    """Declare ``folder`` whole; call when everything else in it has been written."""
    data = {"files": _sizes(folder), "metrics": metrics}
    write_atomic(folder / MARKER, json.dumps(data, allow_nan=False))


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The marker of a whole checkpoint, or None where it is torn."""
    try:
        data = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("files") == _sizes(folder) else None


def latest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint below ``folder`` and its metrics; removes torn ones."""
    whole: list[tuple[int, Path, dict[str, Any]]] = []
    for path in folder.glob("checkpoint-*"):
        name = _NAME.fullmatch(path.name)
        if name is None or not path.is_dir():
            continue
        data = read_marker(path)
        if data is None:
            shutil.rmtree(path)
        else:
            whole.append((int(name[1]), path, data["metrics"]))
    if not whole:
        return None
    _, path, metrics = max(whole)[:3]
    return path, metrics


def complete_metrics(path: Path, metrics: dict[str, Any] | None) -> None:
    """Append the metrics line of a step unless the file has it: one line for each step.

    Raises:
        TrainingError: the file is ahead of the checkpoints (they were moved away).
    """
    steps = [line["step"] for line in read_jsonl(path)]
    done = -1 if metrics is None else int(metrics["step"])
    if steps and steps[-1] > done:
        raise TrainingError(
            str(path),
            f"{len(steps)} steps, but the last whole checkpoint is after step {done}",
            "checkpoints as new as the metrics",
            "restore the checkpoints folder or choose another run_dir",
        )
    if metrics is not None and done not in steps:
        append_jsonl(path, metrics)
