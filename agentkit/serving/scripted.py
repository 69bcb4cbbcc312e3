"""Layer: boundaries. An endpoint that speaks vLLM's dialect and answers by a script.

Drives real harnesses without a model: it records the seed corpus, shows what a harness sends
(``probe``), and gives every fault of an engine on demand. It answers as vLLM does with
``return_token_ids`` and ``logprobs``; its tokens are bytes of a ChatML rendering, so that texts
and tokens can be checked against one another.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from agentkit.seeds import derive_seed
from agentkit.serving.background_loop import BackgroundLoop
from agentkit.serving.gateway_wire import Reply as WireReply
from agentkit.serving.gateway_wire import error_body, parse_request, render_sse

START, END = 256, 257
"""Token ids of ``<|im_start|>`` and ``<|im_end|>``; ids below 256 are bytes."""

FAULTS = (
    "400", "overflow", "404", "429", "500", "hang", "cut", "refuse", "malformed", "empty_200",
    "no_token_ids", "short_logprobs", "nan_logprob", "wrong_model", "wrong_usage", "two_choices",
    "aborted",
)  # fmt: skip
"""Faults that a ``Scripted`` answer can ask for; see ``_fault`` and ``_spoil``."""


@dataclass(frozen=True)
class Scripted:
    """One answer: words, then calls ``(tool name, arguments as object or raw text)``.

    ``finish_reason`` defaults to ``tool_calls`` or ``stop``. Nothing is sent before ``delay_s`` has
    passed and ``ready`` (asked again and again) is true. ``fault`` is one of ``FAULTS``.
    ``reasoning`` goes beside the words and has no tokens here.
    """

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any] | str]] = ()
    finish_reason: str | None = None
    delay_s: float = 0.0
    fault: str | None = None
    reasoning: str | None = None
    ready: Callable[[], bool] | None = None


Script = Callable[[dict[str, Any]], Scripted]
"""Request body as the engine got it -> answer. Runs in the endpoint's loop: must not block."""


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _words(message: dict[str, Any]) -> str:
    text = _text(message.get("content"))
    for call in message.get("tool_calls") or []:
        f = call["function"]
        name, arguments = json.dumps(f["name"]), f["arguments"]
        text += f'\n<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
    return text


def answer_tokens(message: dict[str, Any]) -> list[int]:
    """Token ids of an assistant message: its UTF-8 bytes, then ``END``."""
    return [*_words(message).encode(), END]


def prompt_tokens(body: dict[str, Any]) -> list[int]:
    """Token ids of a prompt: tools, each message as ChatML, and the head of the answer.

    Where a harness replays an answer as it got it, the next prompt extends this prompt and its
    answer token by token.
    """
    tokens = list(json.dumps(body.get("tools") or []).encode())
    for message in body["messages"]:
        tokens += [START, *f"{message['role']}\n".encode(), *answer_tokens(message)]
    return [*tokens, START, *b"assistant\n"]


def token_logprobs(seed: int, tokens: Sequence[int]) -> list[float]:
    """Made-up logprobs in [-1, 0): a pure function of the request's seed, position and token."""
    return [-((seed + 31 * i + 7 * t) % 997 + 1) / 1000 for i, t in enumerate(tokens)]


def completion(body: dict[str, Any], scripted: Scripted, n: int) -> dict[str, Any]:
    """The answer of status 200 as vLLM gives it; ``n`` numbers the request."""
    message: dict[str, Any] = {"role": "assistant", "content": scripted.text or None}
    seed = int(body.get("seed") or 0)
    message["tool_calls"] = [
        {
            "id": f"chatcmpl-tool-{derive_seed(seed, n, i):08x}",
            "type": "function",
            "function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)},
        }
        for i, (name, a) in enumerate(scripted.calls)
    ]
    prompt, tokens = prompt_tokens(body), answer_tokens(message)
    finish = scripted.finish_reason or ("tool_calls" if scripted.calls else "stop")
    content = [{"token": "?", "logprob": p} for p in token_logprobs(seed, tokens)]
    choice = {
        "index": 0,
        "message": {**message, "refusal": None, "reasoning": scripted.reasoning},
        "logprobs": {"content": content} if body.get("logprobs") else None,
        "finish_reason": finish,
        "token_ids": tokens if body.get("return_token_ids") else None,
    }
    return {
        "id": f"chatcmpl-{n}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens),
            "total_tokens": len(prompt) + len(tokens),
            "prompt_tokens_details": {"cached_tokens": len(prompt) // 16 * 16},
        },
        "prompt_token_ids": prompt if body.get("return_token_ids") else None,
    }


def _spoil(answer: dict[str, Any], fault: str | None) -> dict[str, Any]:
    choice = answer["choices"][0]
    if fault == "no_token_ids":
        choice["token_ids"] = answer["prompt_token_ids"] = None
    elif fault == "short_logprobs":
        choice["logprobs"]["content"].pop()
    elif fault == "nan_logprob":
        choice["logprobs"]["content"][0]["logprob"] = float("nan")
    elif fault == "wrong_model":
        answer["model"] = "another"
    elif fault == "wrong_usage":
        answer["usage"]["completion_tokens"] += 1
    elif fault == "two_choices":
        answer["choices"].append(choice)
    elif fault == "aborted":
        choice["finish_reason"] = "abort"
    return answer


_OVERFLOW = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains at least "
    "2049 input tokens, which exceeds this limit even without any output tokens. Please reduce "
    "the length of the input prompt."
)


class ScriptedEngine:
    """Serves ``/v1/chat/completions`` and ``/v1/models`` on 127.0.0.1; a context manager.

    Attributes:
        requests: bodies in the order of arrival.
        aborted: how many requests' clients hung up before the answer was out.
        peak: most requests in work at once.
    """

    def __init__(self, script: Script, *, port: int = 0, models: Sequence[str] = ("base",)) -> None:
        self.script, self.models = script, models
        self.requests: list[dict[str, Any]] = []
        self.aborted = self.peak = self._active = 0
        self._port = port
        self._loop: BackgroundLoop | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> ScriptedEngine:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> ScriptedEngine:
        self._loop = BackgroundLoop("scripted-engine")
        self._loop.call(self._listen())
        return self

    def stop(self) -> None:
        if self._loop is not None and self._loop.running:
            if self._runner is not None:
                self._loop.call(self._runner.cleanup())
            self._loop.stop()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=1024)
        await site.start()
        self._port = int(self._runner.addresses[0][1])

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response()

    async def _list(self, http: web.Request) -> web.Response:
        data = [{"id": m, "object": "model", "owned_by": "vllm"} for m in self.models]
        return web.json_response({"object": "list", "data": data})

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        body = json.loads(await http.read())
        self.requests.append(body)
        n = len(self.requests) - 1
        self._active += 1
        self.peak = max(self.peak, self._active)
        try:
            scripted = self.script(body)
            await asyncio.sleep(scripted.delay_s)
            while scripted.ready is not None and not scripted.ready():
                await asyncio.sleep(0.01)
            return await self._fault(http, scripted.fault) or await self._answer(
                http, body, scripted, n
            )
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self._active -= 1

    async def _fault(self, http: web.Request, fault: str | None) -> web.StreamResponse | None:
        if fault in ("400", "404", "429", "500"):
            return web.json_response(error_body(int(fault), f"scripted {fault}"), status=int(fault))
        if fault == "overflow":
            return web.json_response(error_body(400, _OVERFLOW), status=400)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "malformed":
            return web.Response(text='{"choices": [', content_type="application/json")
        if fault == "empty_200":
            return web.Response(text="", content_type="application/json")
        if fault in ("cut", "refuse"):
            if fault == "cut":
                response = web.StreamResponse(headers={"Content-Length": "1000"})
                await response.prepare(http)
                await response.write(b'{"id": "cut"')
            assert http.transport is not None
            http.transport.close()
            return web.Response()
        return None

    async def _answer(
        self, http: web.Request, body: dict[str, Any], scripted: Scripted, n: int
    ) -> web.StreamResponse:
        answer = _spoil(completion(body, scripted, n), scripted.fault)
        if not body.get("stream"):
            return web.json_response(answer)
        choice = answer["choices"][0]
        message = {k: v for k, v in choice["message"].items() if v}
        reply = WireReply(answer["id"], message, choice["finish_reason"], answer["usage"])
        data = render_sse(reply, parse_request(json.dumps(body).encode()))
        return web.Response(body=data, content_type="text/event-stream")
