"""Layer: sources. The scripted policy: which call comes next, given how far a session is.

It knows no text of the session but the number of its own messages so far, so every answer is the
scenario's next turn, whatever the tools gave back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agentkit.corpus.scenario import Scenario

Answer = TypeVar("Answer")
PREFIX = "scenario-"


def model_name(index: int) -> str:
    """The model under which the gateway asks for scenario ``index``."""
    return f"{PREFIX}{index}"


def script(
    scenarios: Sequence[Scenario],
    answer: Callable[[str, list[tuple[str, dict[str, Any]]]], Answer],
) -> Callable[[dict[str, Any]], Answer]:
    """Chat request of the engine's API -> ``answer(text, calls)`` of the scenario's next turn."""

    def reply(body: dict[str, Any]) -> Answer:
        scenario = scenarios[int(str(body["model"]).removeprefix(PREFIX))]
        done = sum(message["role"] == "assistant" for message in body["messages"])
        if done < len(scenario.turns):
            return answer("", [(call.name, call.arguments) for call in scenario.turns[done]])
        return answer(scenario.final, [])

    return reply
