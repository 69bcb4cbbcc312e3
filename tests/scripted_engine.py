"""Scenarios for ``agentkit.serving.scripted``: what an engine can do to a harness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentkit.serving.scripted import FAULTS, Script, Scripted, ScriptedEngine

__all__ = ["FAULTS", "Scripted", "ScriptedEngine", "always", "by_step", "fault", "once", "slow"]


def steps_done(body: dict[str, Any]) -> int:
    """How many assistant messages the conversation holds."""
    return sum(m["role"] == "assistant" for m in body["messages"])


def always(answer: Scripted) -> Script:
    return lambda body: answer


def by_step(answers: Sequence[Scripted]) -> Script:
    """The n-th answer after n assistant messages; the last one from there on."""
    return lambda body: answers[min(steps_done(body), len(answers) - 1)]


def fault(name: str) -> Script:
    return always(Scripted("fault", fault=name))


def once(name: str, then: Script) -> Script:
    """A fault at the first request, then ``then``."""
    left = [Scripted("fault", fault=name)]

    def script(body: dict[str, Any]) -> Scripted:
        return left.pop() if left else then(body)

    return script


def slow(delay_s: float, text: str = "late") -> Script:
    return always(Scripted(text, delay_s=delay_s))


OK: Callable[[dict[str, Any]], Scripted] = by_step(
    [
        Scripted("I will write the file.", [("write", {"path": "a.py", "content": "print(42)\n"})]),
        Scripted("Now run it.", [("bash", {"command": "python3 a.py"})]),
        Scripted("Done: a.py prints 42."),
    ]
)
"""Two tool calls, then plain text."""
