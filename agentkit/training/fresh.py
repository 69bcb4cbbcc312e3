"""Layer: work (no torch). Training tasks that the initial adapter was not taught by demonstration.

A warm start solves its own demonstrations almost always (measured: 91% of the sessions of a first
step, against 58% on other tasks of the same split), so that most groups are all-equal and carry no
gradient.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from agentkit.errors import ModelError
from agentkit.types import Task

MANIFEST = "manifest.json"


def demonstrated_sources(adapter: Path | None) -> frozenset[str]:
    """Source ids of an adapter's demonstrations; empty for the base and for foreign adapters.

    Raises ModelError where the adapter's manifest cannot be read.
    """
    if adapter is None or not (path := adapter / MANIFEST).is_file():
        return frozenset()
    try:
        return frozenset(json.loads(path.read_text()).get("demonstrated_sources", ()))
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(
            str(path), f"unreadable ({error})", "a warm start's manifest", "build it again"
        ) from error


def fresh_tasks(tasks: Sequence[Task], taught: frozenset[str], least: int) -> list[Task]:
    """``tasks`` without those of ``taught`` sources; all where fewer than ``least`` are left."""
    fresh = [task for task in tasks if task.source_id not in taught]
    return fresh if len(fresh) >= least else list(tasks)
