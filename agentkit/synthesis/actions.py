"""Layer: sources. Tool calls of any harness as four kinds of action on a workspace.

A harness's tools are one entry in ``TOOLS``: tool name -> (kind, names of its arguments).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from agentkit.synthesis.executor import WORK
from agentkit.types import Step, Trajectory

ActionKind = Literal["shell", "write", "edit", "read", "other"]
TOOLS: dict[str, dict[str, ActionKind]] = {
    "pi": {
        "bash": "shell",
        "write": "write",
        "edit": "edit",
        "read": "read",
        "ls": "other",
        "find": "other",
        "grep": "other",
    }
}
"""Harness -> tool name -> kind of action."""


@dataclass(frozen=True)
class Action:
    """One step of a trajectory with paths mapped to ``/work``.

    ``path`` is relative to the workspace, or absolute where it lies outside. ``edits`` are
    (old text, new text) pairs, each unique in the file as it was before the call.
    """

    index: int
    kind: ActionKind
    step: Step
    command: str = ""
    path: str = ""
    content: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    offset: int = 1
    limit: int | None = None
    truncated: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


class Unmappable(Exception):
    """A call that cannot be expressed as an action; the message says which and why."""


def localise(text: str, cwd: str) -> str:
    """``text`` with the trace's working directory replaced by ``/work``."""
    root = cwd.rstrip("/")
    if not root or root == WORK:
        return text
    return re.sub(re.escape(root) + r"(?![\w.-])", WORK, text)


def relative(path: str, cwd: str) -> str:
    """A path as the workspace knows it: relative when inside, absolute when outside."""
    root = cwd.rstrip("/") or WORK
    full = posixpath.normpath(posixpath.join(root, path))
    if full == root:
        return "."
    return full.removeprefix(root + "/") if full.startswith(root + "/") else full


def to_actions(trajectory: Trajectory) -> list[Action]:
    """All steps as actions. Raises Unmappable for a harness, tool or argument beyond the table."""
    tools = TOOLS.get(trajectory.harness)
    if tools is None:
        raise Unmappable(f"harness {trajectory.harness!r} has no tool table")
    cut = set(trajectory.metadata.get("truncated_steps", ()))
    return [
        _action(index, step, tools, trajectory.cwd, index in cut)
        for index, step in enumerate(trajectory.steps)
    ]


def _action(
    index: int, step: Step, tools: dict[str, ActionKind], cwd: str, truncated: bool
) -> Action:
    kind, given = tools.get(step.call.name), step.call.arguments
    if kind is None:
        raise Unmappable(f"tool {step.call.name!r} is not in the table")
    if not isinstance(given, dict):
        return Action(index, "other", step, truncated=truncated)
    if kind == "shell":
        command = localise(_string(given, "command"), cwd)
        return Action(index, kind, step, command=command, truncated=truncated)
    if kind == "other":
        return Action(index, kind, step, truncated=truncated)
    path = relative(_string(given, "path", "file_path"), cwd)
    if kind == "write":
        return Action(index, kind, step, path=path, content=_string(given, "content"))
    if kind == "edit":
        return Action(index, kind, step, path=path, edits=_edits(given))
    offset, limit = given.get("offset") or 1, given.get("limit")
    if not isinstance(offset, int) or not isinstance(limit, int | None):
        raise Unmappable("read with a window that is no number")
    return Action(
        index, kind, step, path=path, offset=max(1, offset), limit=limit, truncated=truncated
    )


def _string(given: dict[str, Any], *names: str) -> str:
    for name in names:
        if isinstance(given.get(name), str):
            return str(given[name])
    raise Unmappable(f"argument {names[0]!r} is missing or no text")


def _edits(given: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    found = given.get("edits")
    found = [found] if isinstance(found, dict) else found
    found = list(found) if isinstance(found, list) else []
    if "oldText" in given:
        found.append(given)
    pairs = [
        (e["oldText"], e["newText"])
        for e in found
        if isinstance(e, dict)
        and isinstance(e.get("oldText"), str)
        and isinstance(e.get("newText"), str)
    ]
    if not pairs:
        raise Unmappable("edit without old and new text")
    return tuple(pairs)
