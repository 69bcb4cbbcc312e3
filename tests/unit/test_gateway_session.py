"""Calls, budget, side calls, resends and the tool filter: what a session's log counts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from agentkit.serving.gateway_session import Clock, Session, ToolFilter, timings
from agentkit.serving.gateway_wire import Refused, parse_answer, parse_request
from agentkit.serving.scripted import Scripted, completion
from agentkit.types import Policy, ToolCall

TOOLS = [{"type": "function", "function": {"name": "bash"}}]
USER = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def request(messages: list[dict[str, Any]], tools: list[Any] | None = TOOLS) -> Any:
    return parse_request(json.dumps({"messages": messages, "tools": tools}).encode())


class Play:
    """Takes the part of the gateway and of a harness, one turn after another."""

    def __init__(self, tool_filter: ToolFilter | None = None, max_turns: int = 9) -> None:
        self.session = Session("k" * 8, Policy("base", max_turns=max_turns), tool_filter)
        self.messages = [*USER]
        self.n = 0

    def turn(self, scripted: Scripted, asked: Any = None) -> dict[str, Any]:
        asked = asked or request(self.messages)
        self.session.see(asked)
        body = {**asked.body, "model": "base", "logprobs": True, "return_token_ids": True}
        answer = parse_answer(json.dumps(completion(body, scripted, self.n)).encode(), "base")
        self.n += 1
        reply, blocked = self.session.judge(answer)
        self.session.record(asked, answer, reply, blocked, Clock(0.0), 0.0)
        return reply.message

    def results(self, message: dict[str, Any], only: Sequence[int] | None = None) -> None:
        self.messages.append(message)
        for i, call in enumerate(message["tool_calls"]):
            if only is None or i in only:
                tool = {"role": "tool", "tool_call_id": call["id"], "content": "x"}
                self.messages.append(tool)

    def events(self) -> list[tuple[str, int]]:
        return [(e["type"], e["turn"]) for e in self.session.log.events]


def two_calls() -> Scripted:
    return Scripted("", [("bash", {"command": "a"}), ("bash", {"command": "b"})])


def test_a_call_counts_when_its_result_comes_back_and_once() -> None:
    play = Play()
    message = play.turn(two_calls())
    assert play.session.log.calls == 0
    play.results(message, only=[0])
    play.session.see(request(play.messages))
    play.session.see(request(play.messages))
    assert play.session.log.calls == 1
    assert [c.returned for c in play.session.calls.values()] == [True, False]


def test_results_of_calls_that_were_never_delivered_do_not_count() -> None:
    play = Play()
    message = play.turn(two_calls())
    forged = json.loads(json.dumps(message))
    for call in forged["tool_calls"]:
        call["id"] = "forged"
    play.results(forged)
    ids = [c["id"] for c in message["tool_calls"]]
    play.messages.append({"role": "user", "tool_call_id": ids[0], "content": "not a tool message"})
    play.session.see(request(play.messages))
    assert play.session.log.calls == 0


def test_a_call_that_the_harness_rewrote_is_noted_and_does_not_count() -> None:
    play = Play()
    message = play.turn(two_calls())
    message = json.loads(json.dumps(message))
    message["tool_calls"][1]["function"]["name"] = "invalid"
    play.results(message)
    play.session.see(request(play.messages))
    assert play.session.log.calls == 1
    assert play.events() == [("call_rewritten", 0)]


def test_odd_shapes_in_a_history_break_nothing() -> None:
    play = Play()
    play.turn(two_calls())
    odd = [{"role": "assistant", "tool_calls": v} for v in (None, 5, "x", [1], [{"function": 3}])]
    play.session.see(request([*USER, *odd, {"role": "tool"}, {"role": "tool", "tool_call_id": 1}]))
    assert play.session.log.calls == 0 and play.events() == []


def test_resend_and_side_calls_are_told_apart() -> None:
    play = Play()
    play.turn(Scripted("first"))
    play.turn(Scripted("first, again"))
    play.messages.append({"role": "assistant", "content": "first, again"})
    play.turn(Scripted("second"))
    play.turn(Scripted("summary"), request([*play.messages, USER[1]], tools=None))
    play.turn(Scripted("title"), request([{"role": "system", "content": "t"}, USER[1]]))
    assert play.events() == [("resend", 1), ("side_call", 3), ("side_call", 4)]
    assert [t.index for t in play.session.log.turns] == [0, 1, 2, 3, 4]


def test_side_call_before_the_main_request_is_noted_afterwards() -> None:
    play = Play()
    play.turn(Scripted("title"), request([{"role": "user", "content": "title?"}], tools=None))
    assert play.events() == []
    play.turn(Scripted("main"))
    assert play.events() == [("side_call", 0)]
    first = play.session.log.first_request
    assert first is not None and first["tools"] == TOOLS


def test_harness_without_tools_has_no_side_calls() -> None:
    play = Play()
    for i in range(3):
        play.messages.append({"role": "user", "content": str(i)})
        play.turn(Scripted("x"), request(play.messages, tools=None))
    assert play.events() == []


def test_budget_counts_delivered_turns() -> None:
    play = Play(max_turns=2)
    for i in range(2):
        assert not play.session.spent
        play.messages.append({"role": "user", "content": str(i)})
        play.turn(Scripted("x"))
    assert play.session.spent


def block_second(calls: list[ToolCall]) -> list[str | None]:
    return ["Blocked: no." if i == 1 else None for i, _ in enumerate(calls)]


def test_filter_replaces_a_call_by_text_and_keeps_the_models_own_message() -> None:
    play = Play(block_second)
    message = play.turn(Scripted("Two.", two_calls().calls))
    assert message["content"] == "Two.\nBlocked: no."
    assert [c["function"]["arguments"] for c in message["tool_calls"]] == ['{"command": "a"}']
    turn = play.session.log.turns[0]
    assert len(turn.message["tool_calls"]) == 2 and turn.message["content"] == "Two."
    (event,) = play.session.log.events
    assert event["type"] == "call_blocked" and event["reason"] == "Blocked: no."
    assert event["turn"] == 0 and event["arguments"] == '{"command": "b"}'
    play.results(turn.message)  # the harness cannot have run the blocked one: it is not known
    play.session.see(request(play.messages))
    assert play.session.log.calls == 1


def test_filter_that_blocks_everything_ends_in_plain_text() -> None:
    seen: list[ToolCall] = []

    def block(calls: list[ToolCall]) -> list[str | None]:
        seen.extend(calls)
        return ["no" for _ in calls]

    play = Play(block)
    message = play.turn(two_calls())
    assert "tool_calls" not in message and message["content"] == "no\nno"
    assert [c.arguments for c in seen] == [{"command": "a"}, {"command": "b"}]


def test_filter_sees_broken_arguments_as_text_and_no_plain_answers() -> None:
    seen: list[list[ToolCall]] = []

    def look(calls: list[ToolCall]) -> list[str | None]:
        seen.append(calls)
        return [None for _ in calls]

    play = Play(look)
    play.turn(Scripted("plain"))
    play.turn(Scripted("", [("bash", '{"command": "ls'), ("bash", "[1]")]))
    assert [[c.arguments for c in calls] for calls in seen] == [['{"command": "ls', "[1]"]]


@pytest.mark.parametrize(
    "broken", [lambda c: [], lambda c: [1 for _ in c], lambda c: 1 / 0, lambda c: None]
)
def test_broken_filter_lets_nothing_through(broken: Any) -> None:
    play = Play(broken)
    with pytest.raises(Refused) as refused:
        play.turn(two_calls())
    assert refused.value.event == "engine_error" and refused.value.status == 500
    assert play.session.log.turns == [] and play.session.calls == {}


def test_snapshot_stands_still() -> None:
    play = Play()
    play.turn(Scripted("a"))
    before = play.session.snapshot()
    play.turn(Scripted("b"))
    assert len(before.turns) == 1 and before.events == []


def test_timings_are_sums_and_median() -> None:
    play = Play()
    for i, own in enumerate((1.0, 2.0, 6.0)):
        play.messages.append({"role": "user", "content": str(i)})
        play.turn(Scripted("x"))
        play.session.log.turns[-1].gateway_s, play.session.log.turns[-1].engine_s = own, 0.5
    got = timings(play.session.log)
    assert got == {"engine_s": 1.5, "gateway_s": 9.0, "gateway_median_s": 2.0}


def test_clock_leaves_out_waits() -> None:
    clock = Clock(time.monotonic() - 10.0, engine_s=6.0, waited_s=3.0)
    assert 1.0 <= clock.own_s() < 1.5
