"""Layer: faces. What notebooks 00 to 02 show: task, session, tokens, synthesis, training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentkit.report.tables import Shown, show_block, show_text, table
from agentkit.types import SessionLog, SessionRecord, Task

if TYPE_CHECKING:
    from agentkit.synthesise import SynthesisSummary
    from agentkit.training.rows import Row

LONGEST = 4000
"""Characters of a text that are shown before it is cut."""


def cut(text: str, longest: int = LONGEST) -> str:
    """The head of a long text, with the number of characters left out."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n… {len(text) - longest:,} more characters"


def _decoded(data: bytes) -> str:
    try:
        return cut(data.decode())
    except UnicodeDecodeError:
        return f"({len(data):,} bytes, not text)"


def show_task(task: Task) -> Shown:
    """Instruction, workspace, hidden validator and reference solution of a task."""
    facts = {
        "task": task.task_id,
        "kind": task.kind,
        "split": task.split,
        "difficulty": task.difficulty,
        "source": task.source_id,
    }
    rows = [{"field": name, "value": value} for name, value in facts.items()]
    shown = table(rows, "Task") + show_block("instruction", cut(task.instruction))
    parts = (("workspace", task.workspace), ("hidden validator", task.tests),
             ("reference solution", task.solution))  # fmt: skip
    for label, files in parts:
        for name in sorted(files):
            shown += show_block(f"{label}: {name}", _decoded(files[name]))
    return shown


def show_record(record: SessionRecord) -> Shown:
    """A session record, field by field; empty fields are left out."""
    data = record.model_dump(mode="json")
    timing = data.pop("timing", {})
    rows = [
        {"field": name, "value": json.dumps(value) if isinstance(value, dict) else value}
        for name, value in data.items()
        if value not in (None, "", {})
    ]
    shown = table(rows, "Session record")
    if timing:
        shown += table(
            [{"part": name, "seconds": seconds} for name, seconds in timing.items()],
            "Where the time went",
        )
    return shown


def show_turns(log: SessionLog) -> Shown:
    """Every turn: tokens, mean log-probability, time, and what the policy said."""
    rows = [
        {
            "turn": turn.index,
            "prompt tokens": len(turn.prompt_token_ids),
            "of them cached": turn.cached_tokens,
            "sampled tokens": len(turn.token_ids),
            "mean logprob": sum(turn.logprobs) / len(turn.logprobs) if turn.logprobs else None,
            "engine, s": turn.engine_s,
            "gateway, ms": 1000 * turn.gateway_s,
            "finish": turn.finish_reason,
        }
        for turn in log.turns
    ]
    shown = table(rows, f"{len(log.turns)} turns, {log.calls} tool calls")
    for turn in log.turns:
        shown += show_block(f"turn {turn.index}", _message(turn.message))
    for event in log.events:
        shown += show_text(f"event: {json.dumps(event)}")
    return shown


def _message(message: Mapping[str, Any]) -> str:
    parts = [str(message.get("content") or "").strip()]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        parts.append(f"→ {function.get('name')} {function.get('arguments')}")
    return cut("\n".join(part for part in parts if part)) or "(nothing)"


def show_rows(rows: Sequence[Row] | tuple[Sequence[Row], Any]) -> Shown:
    """The training rows of a session: what carries a loss and what is context."""
    held = rows[0] if isinstance(rows, tuple) else rows
    return table(
        [
            {
                "row": index,
                "turns": ", ".join(map(str, row.turns)),
                "tokens": len(row),
                "context tokens": len(row) - row.sampled,
                "trained tokens": row.sampled,
            }
            for index, row in enumerate(held)
        ],
        "Training rows",
    )


def show_synthesis(summary: SynthesisSummary) -> Shown:
    """Traces read, tasks kept by split and kind, and how often each gate held."""
    rows = [
        {"split": split, **by_kind, "all": sum(by_kind.values())}
        for split, by_kind in summary.tasks.items()
    ]
    gates = [{"gate": name, "validations that held": n} for name, n in summary.gates.items()]
    line = (
        f"{summary.traces:,} traces read in {summary.seconds:.0f} s; tasks at least "
        f"{summary.similarity:g} alike across the split were removed."
    )
    return table(rows, "Tasks") + table(gates, "Gates of the tasks that stayed") + show_text(line)


def show_refusals(summary: SynthesisSummary) -> Shown:
    """What was refused, by stage and reason, most frequent first."""
    rows = [
        {
            "stage": row["stage"],
            "reason": row["category"],
            "count": row["count"],
            "example": cut(str(row["example"]), 100),
        }
        for row in summary.refused
    ]
    return table(rows, f"{sum(row['count'] for row in summary.refused):,} refusals")


def _scalars(summary: Any) -> dict[str, Any]:
    """Plain values of a summary (mapping or dataclass), nested ones flattened by one level."""
    data = (
        {f.name: getattr(summary, f.name) for f in dataclasses.fields(summary)}
        if dataclasses.is_dataclass(summary)
        else dict(summary)
    )
    out: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, str | int | float | bool | None):
            out[name] = value
        elif isinstance(value, Mapping):
            inner = {k: v for k, v in value.items() if isinstance(v, str | int | float | bool)}
            out |= {f"{name}: {key}": v for key, v in inner.items()}
    return out


def show_training(summary: Any) -> Shown:
    """The training stage's summary, value by value."""
    rows = [
        {"quantity": name.replace("_", " "), "value": value}
        for name, value in _scalars(summary).items()
    ]
    return table(rows, "Training")
