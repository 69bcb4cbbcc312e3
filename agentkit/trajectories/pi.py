"""Layer: sources. Session files of the pi coding agent (JSONL).

Version 2 and 3 entries form a tree by ``id`` and ``parentId``; the session's truth is the branch
from the root to the file's last entry, which is pi's own rule for its leaf
(``SessionManager.buildSessionContext``). Older files have no ids and are linear. A compaction
entry repeats earlier content as a summary; the entries themselves stay in the branch, so the
summary is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentkit.errors import TraceError
from agentkit.types import Step, ToolCall, Trajectory

STATUS = re.compile(
    r"(?:\A|\n\n)(?:Command exited with code (\d+)|Command timed out after .*|Command aborted)\Z"
)
TRUNCATED = re.compile(r"\n\n\[(?:Showing (?:lines|last) |\d+ more lines in file\.|Line \d+ is )")


@dataclass(frozen=True)
class Origin:
    """Where a trace comes from: data set name, file (relative) and licence."""

    dataset: str
    path: str
    licence: str = "unknown"


def read_records(records: Iterable[tuple[int, dict[str, Any]]], origin: Origin) -> list[Trajectory]:
    """One file's trajectory. Raises TraceError with the line at fault."""
    numbered = list(records)
    header = numbered[0][1]
    if not isinstance(header.get("id"), str):
        raise TraceError(f"{origin.path}:1", "session header without id", "a pi session header")
    branch, others = _active_branch(numbered[1:], origin.path)
    return [_trajectory(header, branch, others, origin)]


def _active_branch(
    numbered: list[tuple[int, dict[str, Any]]], where: str
) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """Entries from the root to the last entry, and how many entries lie on other branches."""
    entries = [(n, e) for n, e in numbered if e.get("type") != "session"]
    if not entries or not any("id" in e for _, e in entries):
        return entries, 0
    by_id: dict[str, tuple[int, dict[str, Any]]] = {}
    for number, entry in entries:
        name = entry.get("id")
        if not isinstance(name, str):
            raise TraceError(f"{where}:{number}", "entry without id", "an id in every entry")
        if name in by_id:
            raise TraceError(f"{where}:{number}", "entry id repeated", "unique entry ids")
        by_id[name] = (number, entry)
    branch: list[tuple[int, dict[str, Any]]] = []
    current: tuple[int, dict[str, Any]] | None = entries[-1]
    while current is not None:
        branch.append(current)
        if len(branch) > len(entries):
            raise TraceError(f"{where}:{current[0]}", "parents form a cycle", "a tree of entries")
        parent = current[1].get("parentId")
        if parent is not None and parent not in by_id:
            raise TraceError(f"{where}:{current[0]}", "parent entry missing", "a tree of entries")
        current = by_id[parent] if parent is not None else None
    branch.reverse()
    return branch, len(entries) - len(branch)


@dataclass
class _State:
    """What is gathered while the branch is walked."""

    wishes: list[str]
    wish_at: list[int]
    steps: list[Step]
    pending: dict[str, ToolCall]
    truncated: list[int]
    unfinished: int = 0
    final_text: str = ""


def _trajectory(
    header: dict[str, Any], branch: list[tuple[int, dict[str, Any]]], others: int, origin: Origin
) -> Trajectory:
    state = _State([], [], [], {}, [])
    for number, entry in branch:
        if entry.get("type") != "message":
            continue
        message = entry.get("message")
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TraceError(f"{origin.path}:{number}", "message without role", "a pi message")
        _take(message, state)
    if not state.wishes:
        raise TraceError(origin.path, "no user message", "a session with a user's wish")
    return Trajectory(
        dataset=origin.dataset,
        session_id=header["id"],
        harness="pi",
        cwd=str(header.get("cwd", "")),
        licence=origin.licence,
        wishes=tuple(state.wishes),
        steps=tuple(state.steps),
        final_text=state.final_text,
        path=origin.path,
        metadata={
            "version": header.get("version", 1),
            "wish_at": state.wish_at,
            "truncated_steps": state.truncated,
            "unfinished_calls": state.unfinished + len(state.pending),
            "entries_on_other_branches": others,
        },
    )


def _take(message: dict[str, Any], state: _State) -> None:
    role = message["role"]
    if role == "user":
        text = _text(message.get("content")).strip()
        if text and not text.startswith("/"):  # a slash command talks to pi, not to the model
            state.wishes.append(text)
            state.wish_at.append(len(state.steps))
    elif role == "assistant":
        state.unfinished += len(state.pending)  # calls of an aborted turn never got a result
        state.pending = {c.id: c for c in _calls(message.get("content"))}
        state.final_text = _text(message.get("content")).strip() or state.final_text
    elif role == "toolResult":
        call = state.pending.pop(str(message.get("toolCallId")), None)
        if call is not None:
            _result(call, message, state)
    elif role == "bashExecution" and not message.get("cancelled"):
        code = message.get("exitCode")
        call = ToolCall("user", "bash", {"command": str(message.get("command", ""))})
        state.steps.append(Step(call, str(message.get("output", "")), bool(code), code))


def _result(call: ToolCall, message: dict[str, Any], state: _State) -> None:
    output, failed = _text(message.get("content")), bool(message.get("isError"))
    status: int | None = 0 if call.name == "bash" and not failed else None
    if call.name == "bash":
        if failed and (found := STATUS.search(output)):
            status = int(found.group(1)) if found.group(1) else None
            output = output[: found.start()]
        output = "" if output == "(no output)" else output
    if TRUNCATED.search(output[-400:]):
        state.truncated.append(len(state.steps))
    state.steps.append(Step(call, output, failed, status))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    blocks = (b for b in content if isinstance(b, dict) and b.get("type") == "text")
    return "\n".join(str(b.get("text", "")) for b in blocks)


def _calls(content: Any) -> list[ToolCall]:
    if not isinstance(content, list):
        return []
    calls = (b for b in content if isinstance(b, dict) and b.get("type") == "toolCall")
    return [
        ToolCall(
            str(b.get("id", "")),
            str(b.get("name", "")),
            b["arguments"] if isinstance(b.get("arguments"), dict) else str(b.get("arguments", "")),
        )
        for b in calls
    ]
