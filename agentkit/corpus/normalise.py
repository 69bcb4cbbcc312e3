"""Layer: sources. Takes chance and clock out of a session file that pi wrote.

Two recordings of one scenario differ in ids, times, durations, token counts and in the time that
a flaky check prints; all of these are replaced by functions of (seed, session number).
Nothing else is touched: order, fields, texts, arguments and tool outputs stay as pi wrote them.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from agentkit.errors import TraceError

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SESSION_GAP, ENTRY_GAP = timedelta(minutes=1), timedelta(seconds=1)
NANOSECONDS = re.compile(r"\b1[6-9]\d{17}\b")
FIXED_NANOSECONDS = "1700000000000000000"


def _digest(*names: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, names)).encode()).hexdigest()


def session_id(seed: int, index: int) -> str:
    """A UUID of version 8 (custom content), so that nobody takes it for a random one."""
    digits = _digest(seed, index)
    return str(uuid.UUID(hex=f"{digits[:12]}8{digits[13:16]}8{digits[17:32]}"))


def file_name(seed: int, index: int) -> str:
    """As pi names session files: start time and id."""
    stamp = _stamp(_time(index, 0)).replace(":", "-").replace(".", "-")
    return f"{stamp}_{session_id(seed, index)}.jsonl"


def _time(index: int, entry: int) -> datetime:
    return EPOCH + SESSION_GAP * index + ENTRY_GAP * entry


def _stamp(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _zero(usage: Any) -> Any:
    """Token counts and costs: all 0, since the scripted engine's tokens are bytes."""
    if isinstance(usage, dict):
        return {key: _zero(value) for key, value in usage.items()}
    return 0 if isinstance(usage, int | float) else usage


class _Names:
    """Old id -> new id, in order of appearance."""

    def __init__(self, *scope: object) -> None:
        self.scope, self.known = scope, dict[str, str]()

    def new(self, old: str, kind: str, size: int) -> str:
        fresh = _digest(*self.scope, kind, len(self.known))[:size]
        return self.known.setdefault(old, fresh)


def normalise(raw: bytes, seed: int, index: int) -> bytes:
    """The session file of scenario ``index`` without chance and clock.

    Raises:
        TraceError: not a session file of pi's version 3.
    """
    records = [json.loads(line) for line in raw.decode().splitlines() if line.strip()]
    where = f"session {index}"
    if not records or records[0].get("type") != "session" or records[0].get("version") != 3:
        raise TraceError(where, "no session header of version 3", "a session file of pi 1.x")
    names = _Names(seed, index)
    for number, record in enumerate(records):
        time = _time(index, number)
        record["timestamp"] = _stamp(time)
        if number == 0:
            record["id"] = session_id(seed, index)
            continue
        record["id"] = names.new(record["id"], "entry", 8)
        if record.get("parentId") is not None:
            record["parentId"] = names.known[record["parentId"]]
        if isinstance(record.get("message"), dict):
            _message(record["message"], names, int(time.timestamp() * 1000))
    text = "".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n" for r in records)
    return NANOSECONDS.sub(FIXED_NANOSECONDS, text).encode()


def _message(message: dict[str, Any], names: _Names, milliseconds: int) -> None:
    message["timestamp"] = milliseconds
    if "durationMs" in message:
        message["durationMs"] = 0
    if "usage" in message:
        message["usage"] = _zero(message["usage"])
    if "responseId" in message:
        message["responseId"] = "chatcmpl-" + names.new(message["responseId"], "answer", 16)
    if "toolCallId" in message:
        message["toolCallId"] = names.known[message["toolCallId"]]
    content = message.get("content")
    for block in content if isinstance(content, list) else []:
        if block.get("type") == "toolCall":
            block["id"] = names.new(block["id"], "call", 16)
