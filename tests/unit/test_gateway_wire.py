"""What a harness may ask, what the engine is asked, and how an answer is checked and rendered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentkit.seeds import derive_seed
from agentkit.serving.gateway_wire import (
    Refused,
    Reply,
    engine_refusal,
    parse_answer,
    parse_request,
    render_json,
    render_sse,
    upstream_body,
)
from agentkit.serving.scripted import (
    END,
    Scripted,
    answer_tokens,
    completion,
    prompt_tokens,
    token_logprobs,
)
from agentkit.types import Policy
from tests.gateway_house import read_sse

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
POLICY = Policy("warm@3", temperature=0.7, top_p=0.9, max_tokens=99, max_turns=4, seed=11)


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}


def ask(**more: Any) -> Any:
    return parse_request(json.dumps(body(**more)).encode())


def test_engine_is_asked_for_our_sampling_and_nothing_of_the_harness() -> None:
    harness = {
        "temperature": 0.1, "top_p": 0.2, "max_tokens": 4096, "max_completion_tokens": 5,
        "n": 3, "stop": ["x"], "logit_bias": {"1": 5}, "response_format": {"type": "json_object"},
        "parallel_tool_calls": False, "seed": 7, "stream": True, "reasoning_effort": "high",
        "stream_options": {"include_usage": True}, "tool_choice": "required", "store": True,
        "chat_template_kwargs": {"enable_thinking": True}, "top_logprobs": 5, "tools": TOOLS,
    }  # fmt: skip
    sent = upstream_body(ask(**harness), POLICY, 2)
    assert sent == {
        "model": "warm@3", "messages": body()["messages"], "tools": TOOLS, "tool_choice": "auto",
        "temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0.0, "max_tokens": 99,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "seed": derive_seed(11, "turn", 2), "n": 1, "stream": False, "logprobs": True,
        "return_token_ids": True,
    }  # fmt: skip


def test_seed_differs_by_turn_and_tool_choice_none_stays() -> None:
    seeds = {upstream_body(ask(), POLICY, i)["seed"] for i in range(15)}
    assert len(seeds) == 15
    assert upstream_body(ask(tools=TOOLS, tool_choice="none"), POLICY, 0)["tool_choice"] == "none"
    assert "tool_choice" not in upstream_body(ask(tools=[], tool_choice="auto"), POLICY, 0)


def test_messages_and_tools_pass_unchanged() -> None:
    parts = [{"type": "text", "text": "é \U0001f600 \\u0000"}]
    messages = [{"role": "user", "content": parts, "odd": {"x": [1.5, None]}}]
    request = parse_request(json.dumps({"messages": messages, "tools": TOOLS}).encode())
    sent = json.loads(json.dumps(upstream_body(request, POLICY, 0)))
    assert sent["messages"] == messages and sent["tools"] == TOOLS


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"\xff\xfe", b"[]", b"null", b"{}", b'{"messages": []}', b'{"messages": "x"}',
        b'{"messages": [1]}', b'{"messages": [{"content": "x"}]}',
        b'{"messages": [{"role": "user"}], "tools": {}}',
        b'{"messages": [{"role": "user"}], "x": NaN}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_bad_request_is_refused_with_400(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse_request(raw)
    assert refused.value.status == 400 and refused.value.event == "bad_request"
    assert refused.value.body()["error"]["message"]


def engine_answer(scripted: Scripted | None = None) -> dict[str, Any]:
    request = body(model="warm@3", seed=5, logprobs=True, return_token_ids=True)
    return completion(request, scripted or Scripted("Hé", [("bash", {"command": "ls"})]), 0)


def test_answer_is_taken_whole() -> None:
    raw = engine_answer()
    answer = parse_answer(json.dumps(raw).encode(), "warm@3")
    assert answer.token_ids == answer_tokens(answer.message)
    assert answer.prompt_token_ids == prompt_tokens(body())
    assert answer.logprobs == token_logprobs(5, answer.token_ids)
    assert answer.cached_tokens == raw["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert "reasoning" not in answer.message  # nulls of the engine are not the model's words


def test_empty_answer_of_one_end_token_is_an_answer() -> None:
    answer = parse_answer(json.dumps(engine_answer(Scripted(""))).encode(), "warm@3")
    assert answer.token_ids == [END] and answer.message["content"] is None


def spoilt(path: str, value: Any) -> bytes:
    raw = engine_answer()
    *parents, last = path.split(".")
    at: Any = raw
    for step in parents:
        at = at[int(step) if step.isdigit() else step]
    at[int(last) if last.isdigit() else last] = value
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("choices", []), ("choices", None), ("choices.0.token_ids", None),
        ("choices.0.token_ids", []), ("choices.0.token_ids.0", "5"),
        ("choices.0.token_ids.0", True), ("prompt_token_ids", None), ("prompt_token_ids", []),
        ("choices.0.logprobs", None), ("choices.0.logprobs.content", []),
        ("choices.0.logprobs.content.0.logprob", None),
        ("choices.0.logprobs.content.0.logprob", 0.5),
        ("choices.0.logprobs.content.0.logprob", float("-inf")),
        ("usage.completion_tokens", 1), ("usage.prompt_tokens", 1), ("usage", None),
        ("model", "base"), ("choices.0.finish_reason", "abort"),
        ("choices.0.finish_reason", None), ("choices.0.message", None),
        ("choices.0.message.tool_calls.0.id", None),
        ("choices.0.message.tool_calls.0.function.arguments", {"command": "ls"}),
    ],
)  # fmt: skip
def test_answer_with_any_part_missing_is_refused_whole(path: str, value: Any) -> None:
    with pytest.raises(Refused) as refused:
        parse_answer(spoilt(path, value), "warm@3")
    assert refused.value.event == "engine_error" and refused.value.status == 502


def test_statuses_of_the_engine() -> None:
    overflow = {"error": {"message": "This model's maximum context length is 9 tokens."}}
    refusal = engine_refusal(400, json.dumps(overflow).encode())
    assert (refusal.event, refusal.status, refusal.overflow) == ("bad_request", 400, True)
    assert engine_refusal(400, b'{"error": {"message": "bad role"}}').overflow is False
    for status, told in [(404, 404), (429, 429), (500, 502), (503, 502), (302, 502)]:
        refusal = engine_refusal(status, b"plain words")
        assert (refusal.event, refusal.status) == ("engine_error", told)
        assert "plain words" in refusal.reason and str(status) in refusal.reason


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("text", ["", "Hé\n\n data: x"])
def test_streamed_and_plain_say_the_same(calls: int, text: str) -> None:
    asked = [("bash", {"command": f"echo {i}"}) for i in range(calls)]
    scripted = Scripted(text, asked, reasoning="hm" if calls == 1 else None)
    answer = parse_answer(json.dumps(engine_answer(scripted)).encode(), "warm@3")
    reply = Reply(answer.id, answer.message, answer.finish_reason, answer.usage)
    message, finish, usage = read_sse(render_sse(reply, ask(stream_options={"include_usage": 1})))
    assert usage is None  # only a true include_usage asks for it
    request = ask(stream=True, stream_options={"include_usage": True})
    message, finish, usage = read_sse(render_sse(reply, request))
    plain = json.loads(render_json(reply, request))
    choice = plain["choices"][0]
    assert finish == choice["finish_reason"] and usage == plain["usage"] == answer.usage
    assert message["content"] == (choice["message"]["content"] or "")
    assert message.get("tool_calls") == choice["message"].get("tool_calls")
    assert message.get("reasoning") == choice["message"].get("reasoning")
    assert plain["model"] == "m"
    for secret in ("token_ids", "logprob"):
        assert secret not in json.dumps(plain)
        assert secret.encode() not in render_sse(reply, request)
