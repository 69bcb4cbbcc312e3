"""Layer: boundaries. What the gateway knows of one session: budget, turns, calls and events.

Touched only by the gateway's event loop, except that a reader may take a copy with ``snapshot``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from agentkit.serving.gateway_wire import Answer, Refused, Reply, Request
from agentkit.types import Policy, SessionLog, ToolCall, Turn

ToolFilter = Callable[[list[ToolCall]], Sequence["str | None"]]
"""Judges the tool calls of one answer before the harness sees them.

Returns one verdict for each call: None lets it pass, a text replaces it: the call is left out and
the text is appended to the message's words. It runs in the gateway's event loop and must not
block. An exception or a wrong number of verdicts fails the model call (event ``engine_error``,
nothing reaches the harness): a broken filter never lets calls through.
"""

BUDGET_NOTICE = "The budget of {n} model calls for this session is used up. The session ends here."


@dataclass
class DeliveredCall:
    """A tool call that reached the harness. ``returned``: its result came back in a request."""

    id: str
    turn: int
    name: str
    returned: bool = False


@dataclass
class Clock:
    """Seconds of one turn: the wait for the engine, and waits that are nobody's work."""

    arrived: float
    engine_s: float = 0.0
    waited_s: float = 0.0

    def own_s(self) -> float:
        """The gateway's own time since the request arrived."""
        return max(0.0, time.monotonic() - self.arrived - self.engine_s - self.waited_s)


def as_call(call: dict[str, Any]) -> ToolCall:
    """An OpenAI tool call as the kit's word; arguments that are no JSON object stay text."""
    name, text = call["function"]["name"], call["function"]["arguments"]
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = text
    return ToolCall(call["id"], name, arguments if isinstance(arguments, dict) else text)


def _digest(request: Request) -> bytes:
    text = json.dumps([request.messages, request.tools], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _asked_names(request: Request) -> dict[str, str]:
    """Call id -> tool name as the request's assistant messages have it."""
    names: dict[str, str] = {}
    for message in request.messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                names[str(call.get("id"))] = function["name"]
    return names


class Session:
    """One session's state. Requests of a session are served one after another (``lock``).

    Besides the events of ``SessionLog`` it notes, for turns that are no step of the policy's own:
    ``resend`` (the harness sent the last turn's request again), ``side_call`` (no tools where the
    session's main requests have them, or another system prompt) and ``call_rewritten`` (the
    harness ran something else than the call that was delivered). They carry the turn's index.
    """

    def __init__(self, key: str, policy: Policy, tool_filter: ToolFilter | None = None) -> None:
        self.log = SessionLog(key, policy)
        self.tool_filter = tool_filter
        self.lock = asyncio.Lock()
        self.inflight: set[asyncio.Task[Any]] = set()
        self.closed = False
        self.calls: dict[str, DeliveredCall] = {}
        self._main: Request | None = None
        self._last: bytes | None = None

    @property
    def next_turn(self) -> int:
        return len(self.log.turns)

    @property
    def spent(self) -> bool:
        """Whether the budget of model calls is used up. Only delivered turns count."""
        return self.next_turn >= self.log.policy.max_turns

    def event(self, kind: str, reason: str = "", **more: Any) -> None:
        """Add to the log. A repetition of the last event only raises its ``times``, so that a
        harness in an endless loop does not fill the memory."""
        event = {"type": kind, "reason": reason, "turn": self.next_turn, **more}
        last = self.log.events[-1] if self.log.events else {}
        if {**last, "times": 1} == {**event, "times": 1}:
            last["times"] += 1
        else:
            self.log.events.append({**event, "times": 1})

    def refused(self, refusal: Refused) -> None:
        """Log a request that got an error."""
        if refusal.overflow:
            self.event("context_overflow", refusal.reason, status=refusal.status)
        self.event(refusal.event, refusal.reason, status=refusal.status)

    def see(self, request: Request) -> None:
        """Take note of a well-formed request: the first one, and results that came back.

        ``first_request`` is the first request with tools, or else the first.
        """
        if self._main is None or (request.tools and not self._main.tools):
            self._main, self.log.first_request = request, request.body
            if request.tools:
                for turn in self.log.turns:
                    self.event("side_call", "before the first request with tools", turn=turn.index)
        asked = _asked_names(request)
        for message in request.messages:
            call = self.calls.get(str(message.get("tool_call_id")))
            if message["role"] != "tool" or call is None or call.returned:
                continue
            call.returned = True
            if asked.get(call.id, call.name) != call.name:
                why = f"{call.name} became {asked[call.id]}"
                self.event("call_rewritten", why, turn=call.turn, id=call.id)
            else:
                self.log.calls += 1

    def judge(self, answer: Answer) -> tuple[Reply, list[dict[str, Any]]]:
        """Return the reply for the harness and the blocked calls, each ``{"id", "name",
        "arguments", "reason"}``. Raises Refused when the filter itself fails."""
        message, calls = answer.message, answer.message.get("tool_calls", [])
        if self.tool_filter is None or not calls:
            return Reply(answer.id, message, answer.finish_reason, answer.usage), []
        try:
            verdicts = list(self.tool_filter([as_call(c) for c in calls]))
            if len(verdicts) != len(calls):
                raise ValueError(f"{len(verdicts)} verdicts for {len(calls)} calls")
            if not all(v is None or isinstance(v, str) for v in verdicts):
                raise TypeError("a verdict is neither None nor text")
        except Exception as error:
            reason = f"tool filter failed: {type(error).__name__}: {error}"
            raise Refused("engine_error", 500, reason) from error
        blocked = [
            {"id": c["id"], **c["function"], "reason": v}
            for c, v in zip(calls, verdicts, strict=True)
            if v is not None
        ]
        passed = [c for c, v in zip(calls, verdicts, strict=True) if v is None]
        if not blocked:
            return Reply(answer.id, message, answer.finish_reason, answer.usage), []
        words = [message.get("content") or "", *(b["reason"] for b in blocked)]
        told = {k: v for k, v in message.items() if k != "tool_calls"}
        told["content"] = "\n".join(w for w in words if w)
        if passed:
            told["tool_calls"] = passed
        finish = answer.finish_reason if passed else "stop"
        return Reply(answer.id, told, finish, answer.usage), blocked

    def record(
        self,
        request: Request,
        answer: Answer,
        reply: Reply,
        blocked: list[dict[str, Any]],
        clock: Clock,
        started_at: float,
    ) -> None:
        """Add the turn, whole: its answer has been written to the harness. ``Turn.message`` is the
        model's own message, also where the filter took calls out of the reply."""
        index = self.next_turn
        for call in blocked:
            self.event("call_blocked", call.pop("reason"), **call)
        digest = _digest(request)
        if digest == self._last:
            self.event("resend", "the last turn's request again")
        elif self._is_side_call(request):
            self.event("side_call", "other tools or system prompt than the main requests")
        self._last = digest
        for c in reply.message.get("tool_calls", []):
            self.calls[c["id"]] = DeliveredCall(c["id"], index, c["function"]["name"])
        self.log.turns.append(
            Turn(
                index=index,
                model=answer.model,
                prompt_token_ids=answer.prompt_token_ids,
                token_ids=answer.token_ids,
                logprobs=answer.logprobs,
                message=answer.message,
                finish_reason=answer.finish_reason,
                cached_tokens=answer.cached_tokens,
                engine_s=clock.engine_s,
                gateway_s=clock.own_s(),
                started_at=started_at,
            )
        )

    def _is_side_call(self, request: Request) -> bool:
        main = self._main
        if main is None or not main.tools:
            return False
        return not request.tools or request.messages[0] != main.messages[0]

    def snapshot(self) -> SessionLog:
        """A copy that later requests do not change."""
        log = self.log
        return replace(log, turns=list(log.turns), events=[dict(e) for e in log.events])


def timings(log: SessionLog) -> dict[str, float]:
    """Seconds of a session's turns: totals, and the gateway's median for a turn."""
    own = [t.gateway_s for t in log.turns]
    return {
        "engine_s": sum(t.engine_s for t in log.turns),
        "gateway_s": sum(own),
        "gateway_median_s": median(own) if own else 0.0,
    }
