"""Hand-made pi sessions for the tests of trajectories and synthesis."""

from __future__ import annotations

import json
from typing import Any

Call = tuple[str, dict[str, Any], str, bool]
"""(tool, arguments, output, is_error)."""


def header(version: int = 3, cwd: str = "/work", session: str = "s-1") -> dict[str, Any]:
    return {"type": "session", "version": version, "id": session, "timestamp": "t", "cwd": cwd}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def assistant(text: str = "", *calls: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "toolCall", "id": i, "name": n, "arguments": a} for i, n, a in calls]
    return {"role": "assistant", "content": content}


def result(call_id: str, name: str, text: str, is_error: bool = False) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {
        "role": "toolResult",
        "toolCallId": call_id,
        "toolName": name,
        "content": content,
        "isError": is_error,
    }


def entries(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A linear branch of message entries with ids e0, e1, ..."""
    return [
        {
            "type": "message",
            "id": f"e{i}",
            "parentId": f"e{i - 1}" if i else None,
            "message": message,
        }
        for i, message in enumerate(messages)
    ]


def dump(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def session(wish: str, calls: list[Call], final: str = "Done.", name: str = "s-1") -> bytes:
    """A session file: one wish, one call a turn, last words."""
    messages = [user(wish)]
    for i, (tool, arguments, output, failed) in enumerate(calls):
        messages += [
            assistant("", (f"c{i}", tool, arguments)),
            result(f"c{i}", tool, output, failed),
        ]
    messages.append(assistant(final))
    return dump([header(session=name), *entries(messages)])


def bash(command: str, output: str = "", code: int = 0) -> Call:
    """A shell call with its result in pi's words."""
    text = output or "(no output)"
    if code:
        text += f"\n\nCommand exited with code {code}"
    return ("bash", {"command": command}, text, code != 0)


def write(path: str, content: str) -> Call:
    return ("write", {"path": path, "content": content}, f"Successfully wrote to {path}", False)
