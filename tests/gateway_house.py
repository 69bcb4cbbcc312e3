"""A scripted engine with a gateway before it, and a small harness that plays through both."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from agentkit.serving.gateway import Gateway
from agentkit.serving.scripted import (
    Script,
    ScriptedEngine,
    answer_tokens,
    prompt_tokens,
    token_logprobs,
)
from agentkit.types import Policy, SessionLog

TOOLS = [{"type": "function", "function": {"name": n}} for n in ("bash", "write")]
USER = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
POLICY = Policy("base", max_tokens=50, max_turns=4, seed=3)


class House:
    """A scripted engine and a gateway before it."""

    def __init__(self, script: Script, **settings: Any) -> None:
        self.engine = ScriptedEngine(script).start()
        self.gateway = Gateway(self.engine.url, **settings).start()

    def stop(self) -> None:
        self.gateway.stop()
        self.engine.stop()

    def post(self, key: str, stream: bool = False, **more: Any) -> httpx.Response:
        body = {"model": "m", "messages": USER, "tools": TOOLS, "stream": stream, **more}
        return httpx.post(self.path(key), json=body, timeout=30)

    def path(self, key: str) -> str:
        return f"{self.gateway.base_url(key)}/chat/completions"


def houses() -> Iterator[Callable[..., House]]:
    """Body of the fixture ``house``: builds what a test asks for and stops it afterwards."""
    built: list[House] = []

    def build(script: Script, **settings: Any) -> House:
        built.append(House(script, **settings))
        return built[-1]

    yield build
    for h in built:
        h.stop()


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


def answer_of(response: httpx.Response, stream: bool) -> tuple[dict[str, Any], str | None]:
    if stream:
        message, finish, _ = read_sse(response.content)
        return message, finish
    choice = response.json()["choices"][0]
    return choice["message"], choice["finish_reason"]


def play(h: House, key: str, stream: bool, turns: int = 9, ask: str = "u") -> list[dict[str, Any]]:
    """A harness: asks, runs the calls, and ends at plain text. Returns the whole conversation."""
    messages: list[dict[str, Any]] = [USER[0], {"role": "user", "content": ask}]
    with httpx.Client(timeout=60) as client:
        for _ in range(turns):
            body = {"model": "m", "messages": messages, "tools": TOOLS, "stream": stream}
            response = client.post(h.path(key), json=body)
            assert response.status_code == 200, response.text
            message, finish = answer_of(response, stream)
            messages = [*messages, message]
            if finish != "tool_calls":
                break
            for call in message["tool_calls"]:
                tool = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
                messages = [*messages, tool]
    return messages


def check_tokens(log: SessionLog, requests: list[dict[str, Any]]) -> None:
    """Every turn holds the very tokens and logprobs of the engine, recomputed here."""
    for turn, sent in zip(log.turns, requests, strict=True):
        assert turn.prompt_token_ids == prompt_tokens(sent)
        assert turn.token_ids == answer_tokens(turn.message)
        assert turn.logprobs == token_logprobs(sent["seed"], turn.token_ids)
        assert sent["model"] == turn.model and sent["logprobs"] is sent["return_token_ids"] is True


def raw_request(h: House, key: str, stream: bool, body: dict[str, Any] | None = None) -> Any:
    sent = json.dumps(body or {"messages": USER, "tools": TOOLS, "stream": stream}).encode()
    head = f"POST /s/{key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}"
    s = socket.create_connection(("127.0.0.1", int(h.gateway.url.rsplit(":", 1)[1])))
    s.sendall(f"{head}\r\n\r\n".encode() + sent)
    return s


def read_sse(data: bytes) -> tuple[dict[str, Any], str | None, dict[str, Any] | None]:
    """Put a stream together as a harness does: message, finish reason, usage."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    finish, usage = None, None
    events = [e for e in data.decode().split("\n\n") if e and not e.startswith(":")]
    assert events[-1] == "data: [DONE]"
    for event in events[:-1]:
        chunk = json.loads(event.removeprefix("data: "))
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            for key, value in choice["delta"].items():
                if key != "tool_calls":
                    message[key] = message.get(key, "") + value
            for call in choice["delta"].get("tool_calls", []):
                at = calls.setdefault(call["index"], {"arguments": ""})
                at.update({k: call[k] for k in ("id", "type") if k in call})
                at.update({k: v for k, v in call["function"].items() if k == "name"})
                at["arguments"] += call["function"]["arguments"]
    if calls:
        message["tool_calls"] = [
            {"id": c["id"], "type": c["type"],
             "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls.values()
        ]  # fmt: skip
    return message, finish, usage
