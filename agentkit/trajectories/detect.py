"""Layer: sources. Which program wrote a trace, judged by its first records.

The rules follow the formats' own marks, never the file's name alone: pi, opencode and Hub traces
all end in ``.jsonl``.
"""

from __future__ import annotations

from typing import Any

FORMATS = (
    "pi",
    "claude_code",
    "codex",
    "hermes",
    "hermes_sharegpt",
    "opencode",
    "opencode_export",
    "atif",
    "swe_agent",
    "mini_swe_agent",
    "openhands",
    "hub_session",
)


def detect_format(record: dict[str, Any]) -> str | None:
    """Name of the format that the first record of a file belongs to, or None."""
    kind = record.get("type")
    if kind == "session":
        if isinstance(record.get("cwd"), str) and "harness" not in record:
            return "pi"
        return "hub_session" if isinstance(record.get("harness"), str) else None
    if kind in ("session_meta", "turn_context", "response_item", "event_msg"):
        return "codex"
    if isinstance(record.get("sessionId"), str) or kind in ("summary", "file-history-snapshot"):
        return "claude_code"
    if isinstance(record.get("sessionID"), str):
        return "opencode"
    if "schema_version" in record and isinstance(record.get("steps"), list):
        return "atif"
    if isinstance(record.get("conversations"), list):
        return "hermes_sharegpt"
    return _detect_document(record)


def _detect_document(record: dict[str, Any]) -> str | None:
    """Formats that keep a whole session in one JSON document."""
    if isinstance(record.get("history"), list):
        return "swe_agent"
    if isinstance(record.get("trajectory"), list):
        return "openhands" if "instance_id" in record else "swe_agent"
    if isinstance(record.get("messages"), list):
        if str(record.get("trajectory_format", "")).startswith("mini-swe-agent"):
            return "mini_swe_agent"
        if isinstance(record.get("info"), dict):
            return "opencode_export" if "id" in record["info"] else "mini_swe_agent"
        if set(record) == {"messages"}:
            return "mini_swe_agent"
        if "source" in record or "system_prompt" in record:
            return "hermes"
    return None
