"""Layer: boundaries. The gateway's wire formats: OpenAI chat completions in, vLLM's dialect out.

Pure functions, no I/O: what a harness may ask, what the engine is asked, what the engine must
answer, and how an answer is rendered for the harness (JSON or server-sent events).
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from typing import Any

from agentkit.seeds import derive_seed
from agentkit.types import Policy

_OVERFLOW = re.compile(r"maximum context length|max_model_len|maximum model length", re.I)
_FINISH_REASONS = ("stop", "length", "tool_calls")


class Refused(Exception):
    """A request that is answered by an error.

    Attributes:
        event: event type of the session log (``bad_request`` or ``engine_error``).
        status: HTTP status for the harness.
        overflow: the engine said that the prompt exceeds the model's context.
    """

    def __init__(self, event: str, status: int, reason: str, *, overflow: bool = False) -> None:
        super().__init__(reason)
        self.event, self.status, self.reason, self.overflow = event, status, reason, overflow

    def body(self) -> dict[str, Any]:
        """OpenAI's error object, as every harness reads it."""
        return error_body(self.status, self.reason)


def error_body(status: int, reason: str) -> dict[str, Any]:
    kind = {400: "BadRequestError", 404: "NotFoundError", 413: "RequestTooLargeError"}
    return {
        "error": {
            "message": reason,
            "type": kind.get(status, "InternalServerError" if status >= 500 else "APIError"),
            "param": None,
            "code": status,
        }
    }


@dataclass(frozen=True)
class Request:
    """What a harness asked: ``body`` unchanged, and the fields that the gateway reads of it."""

    body: dict[str, Any]
    messages: list[dict[str, Any]]
    tools: list[Any]
    stream: bool
    include_usage: bool
    model: str


def _not_json(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def parse_request(raw: bytes) -> Request:
    """Read a harness's request body. Raises Refused with status 400."""
    try:
        body = json.loads(raw, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_request", 400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused("bad_request", 400, "the body is not a JSON object")
    messages, tools = body.get("messages"), body.get("tools")
    if not isinstance(messages, list) or not messages:
        raise Refused("bad_request", 400, "'messages' is not a non-empty list")
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise Refused("bad_request", 400, "'messages' holds an entry without a role")
    if tools is not None and not isinstance(tools, list):
        raise Refused("bad_request", 400, "'tools' is not a list")
    options = body.get("stream_options")
    return Request(
        body=body,
        messages=messages,
        tools=tools or [],
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        model=str(body.get("model") or "policy"),
    )


def upstream_body(request: Request, policy: Policy, turn: int) -> dict[str, Any]:
    """The body for the engine: the harness's messages and tools, everything else ours.

    Dropped from the harness's request are all sampling fields, ``n``, ``stop`` (it would end a
    turn where the policy did not), ``response_format`` and a forced ``tool_choice`` (both mask
    tokens by a grammar, so that the logprobs are no longer the policy's), ``parallel_tool_calls``
    (the engine would drop sampled calls) and ``stream``. A ``tool_choice`` of ``none`` stays.
    """
    body: dict[str, Any] = {
        "model": policy.model,
        "messages": request.messages,
        "temperature": policy.temperature,
        "top_p": policy.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": policy.max_tokens,
        "seed": derive_seed(policy.seed, "turn", turn),
        "n": 1,
        "stream": False,
        "logprobs": True,
        "return_token_ids": True,
    }
    if request.tools:
        body["tools"] = request.tools
        body["tool_choice"] = "none" if request.body.get("tool_choice") == "none" else "auto"
    return body


@dataclass(frozen=True)
class Answer:
    """A checked answer of the engine. ``logprobs`` and ``token_ids`` have the same length T."""

    id: str
    model: str
    message: dict[str, Any]
    finish_reason: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    usage: dict[str, Any]

    @property
    def cached_tokens(self) -> int:
        details = self.usage.get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)


def engine_refusal(status: int, raw: bytes) -> Refused:
    """The engine answered another status than 200: what the harness is told, and how it is logged.

    400 is the request's fault and goes on as 400; other 4xx (an unknown model, too many requests)
    go on as they are; everything else becomes 502.
    """
    try:
        body = json.loads(raw)
        error = body.get("error", body) if isinstance(body, dict) else {}
        reason = str(error.get("message") or error.get("detail") or raw[:500])
    except (ValueError, AttributeError):
        reason = raw[:500].decode("utf-8", "replace") or "no message"
    if status == 400:
        return Refused("bad_request", 400, reason, overflow=bool(_OVERFLOW.search(reason)))
    told = status if 400 <= status < 500 else 502
    return Refused("engine_error", told, f"engine answered {status}: {reason}")


def _malformed(what: str) -> Refused:
    return Refused("engine_error", 502, f"malformed engine answer: {what}")


def _ids(value: Any, name: str) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(i) is int for i in value):
        raise _malformed(f"no {name} (is return_token_ids supported?)")
    return value


def _logprobs(choice: dict[str, Any]) -> list[float]:
    content = (choice.get("logprobs") or {}).get("content")
    if not isinstance(content, list):
        raise _malformed("no logprobs")
    values = [float(entry["logprob"]) for entry in content]
    if not all(math.isfinite(v) and v <= 1e-4 for v in values):
        raise _malformed("a logprob is not a finite number ≤ 0")
    return values


def parse_answer(raw: bytes, model: str) -> Answer:
    """Check the engine's answer of status 200. Raises Refused: never a half answer.

    Token ids and logprobs must be there, of one length, and agree with the usage; the model that
    answered must be the one that was asked.
    """
    try:
        body = json.loads(raw)
        (choice,) = body["choices"]
        message = {k: v for k, v in choice["message"].items() if v not in (None, [])}
        message["role"], finish = "assistant", choice["finish_reason"]
        message.setdefault("content", None)
        for call in message.get("tool_calls", []):
            if not all(isinstance(call["function"][k], str) for k in ("name", "arguments")):
                raise _malformed("a tool call without name or arguments")
            if not isinstance(call["id"], str):
                raise _malformed("a tool call without an id")
        prompt, tokens = body.get("prompt_token_ids"), choice.get("token_ids")
        prompt, tokens = _ids(prompt, "prompt_token_ids"), _ids(tokens, "token_ids")
        logprobs, usage = _logprobs(choice), body["usage"]
        counts = (usage["prompt_tokens"], usage["completion_tokens"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _malformed(f"{type(error).__name__} {error}") from None
    if len(logprobs) != len(tokens):
        raise _malformed(f"{len(tokens)} token ids but {len(logprobs)} logprobs")
    if counts != (len(prompt), len(tokens)):
        raise _malformed(f"usage {counts} but ({len(prompt)}, {len(tokens)}) token ids")
    if finish not in _FINISH_REASONS:
        raise _malformed(f"finish reason {finish!r}")
    if body.get("model") != model:
        raise _malformed(f"model {body.get('model')!r} answered, {model!r} was asked")
    return Answer(str(body.get("id")), model, message, finish, prompt, tokens, logprobs, usage)


@dataclass(frozen=True)
class Reply:
    """What the harness is told: an assistant message, without token ids and logprobs."""

    id: str
    message: dict[str, Any]
    finish_reason: str
    usage: dict[str, Any]


def notice(text: str) -> Reply:
    """A plain assistant text of the gateway's own; it ends the run of every harness."""
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return Reply("notice", {"role": "assistant", "content": text}, "stop", usage)


def render_json(reply: Reply, request: Request) -> bytes:
    """The plain form. ``model`` echoes the harness's own name, so that transcripts of different
    policy versions do not differ by it."""
    body = {
        "id": reply.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [{"index": 0, "message": reply.message, "finish_reason": reply.finish_reason}],
        "usage": reply.usage,
    }
    return json.dumps(body).encode()


def _deltas(message: dict[str, Any]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for key, value in message.items():
        if key not in ("role", "tool_calls") and isinstance(value, str) and value:
            deltas.append({key: value})
    for index, call in enumerate(message.get("tool_calls", [])):
        function = call["function"]
        head = {"name": function["name"], "arguments": ""}
        first: dict[str, Any] = {"index": index, "id": call["id"], "type": "function"}
        first["function"] = head
        rest: dict[str, Any] = {"index": index, "function": {"arguments": function["arguments"]}}
        deltas += [{"tool_calls": [first]}, {"tool_calls": [rest]}]
    return deltas


def render_sse(reply: Reply, request: Request) -> bytes:
    """The streamed form: role, text, each call's head and arguments, finish reason, usage."""
    base = {
        "id": reply.id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": request.model,
    }
    ends: list[tuple[dict[str, Any], str | None]] = [(d, None) for d in _deltas(reply.message)]
    ends.append(({}, reply.finish_reason))
    events: list[dict[str, Any]] = [
        {**base, "choices": [{"index": 0, "delta": d, "finish_reason": f}]} for d, f in ends
    ]
    if request.include_usage:
        events.append({**base, "choices": [], "usage": reply.usage})
    return b"".join(sse_event(e) for e in events) + b"data: [DONE]\n\n"


def sse_event(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"
