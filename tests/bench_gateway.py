"""What the gateway adds to a model call: the same requests straight to an endpoint and through it.

``python -m tests.bench_gateway`` prints both side by side. The endpoint answers at once with one
prepared answer, in a process of its own, and so does the client, as harnesses do; the gateway
runs in this process. Latencies are the client's, in milliseconds; ``own`` is what the gateway
itself recorded as its own time for each turn (wall clock, median); ``cpu`` is this process's CPU
time over the number of turns, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import aiohttp
from aiohttp import web

from agentkit.serving.gateway import Gateway
from agentkit.serving.scripted import Scripted, completion
from agentkit.types import Policy

PROMPT_TOKENS, ANSWER_TOKENS = 3000, 120
LIMIT_MS = 3.0
"""The gateway's own time for a turn, median, at most."""


@dataclass(frozen=True)
class Line:
    """One comparison; milliseconds for each request, except ``ratio``."""

    at_once: int
    stream: bool
    turns: int
    direct_ms: float
    gateway_ms: float
    ratio: float
    own_ms: float
    cpu_ms: float


def request_body(stream: bool) -> dict[str, Any]:
    """A request of a harness's size: 10 kB of system prompt and tools, a short conversation."""
    tools = [{"type": "function", "function": {"name": f"t{i}", "description": "d" * 700}}
             for i in range(8)]  # fmt: skip
    messages = [
        {"role": "system", "content": "s" * 2500},
        {"role": "user", "content": "u" * 2000},
    ]
    return {"model": "base", "messages": messages, "tools": tools, "stream": stream}


def prepared_answer() -> bytes:
    """An answer in vLLM's dialect with ``PROMPT_TOKENS`` and ``ANSWER_TOKENS`` token ids."""
    scripted = Scripted("x" * 20, [("bash", {"command": "y" * 30})])
    asked = {"model": "base", "messages": [], "logprobs": True, "return_token_ids": True}
    answer = completion(asked, scripted, 0)
    entry = {"token": "abc", "logprob": -0.5, "bytes": [97, 98, 99], "top_logprobs": []}
    choice = answer["choices"][0]
    choice["token_ids"] = list(range(40_000, 40_000 + ANSWER_TOKENS))
    choice["logprobs"] = {"content": [entry] * ANSWER_TOKENS}
    answer["prompt_token_ids"] = list(range(10_000, 10_000 + PROMPT_TOKENS))
    answer["usage"].update(prompt_tokens=PROMPT_TOKENS, completion_tokens=ANSWER_TOKENS)
    return json.dumps(answer).encode()


async def serve_endpoint() -> None:
    data = prepared_answer()

    async def chat(http: web.Request) -> web.Response:
        await http.read()
        return web.Response(body=data, content_type="application/json")

    app = web.Application(client_max_size=32 << 20)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=256).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.sleep(3600)


async def ask_all(urls: list[str], turns: int, stream: bool) -> float:
    """Ask ``turns`` times at each URL, all URLs at once; return the median latency in ms."""
    data = json.dumps(request_body(stream)).encode()
    took: list[float] = []

    async def one(http: aiohttp.ClientSession, url: str) -> None:
        for _ in range(turns):
            start = time.perf_counter()
            async with http.post(url, data=data) as response:
                assert response.status == 200, await response.text()
                await response.read()
            took.append((time.perf_counter() - start) * 1000)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(one(http, url) for url in urls))
    return median(took)


def ask_in_a_process(urls: list[str], turns: int, stream: bool) -> float:
    argv = [sys.executable, "-m", "tests.bench_gateway", "--client", json.dumps(urls)]
    argv += ["--turns", str(turns), *(["--stream"] if stream else [])]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def compare(engine_url: str, at_once: int, turns: int, stream: bool) -> Line:
    direct = ask_in_a_process([f"{engine_url}/v1/chat/completions"] * at_once, turns, False)
    with Gateway(engine_url) as gateway:
        keys = [gateway.open(Policy("base", max_turns=turns)) for _ in range(at_once)]
        urls = [f"{gateway.base_url(key)}/chat/completions" for key in keys]
        cpu = time.process_time()
        through = ask_in_a_process(urls, turns, stream)
        cpu = (time.process_time() - cpu) * 1000
        logs = [gateway.close(key) for key in keys]
    own = [t.gateway_s * 1000 for log in logs for t in log.turns]
    assert len(own) == at_once * turns, "every turn must be recorded"
    turns = len(own)
    ratio = through / direct
    return Line(at_once, stream, turns, direct, through, ratio, median(own), cpu / turns)


def measure(turns: int = 320) -> list[Line]:
    """Compare 1, 16 and 64 requests at once, streamed and plain, ``turns`` for each line."""
    argv = [sys.executable, "-m", "tests.bench_gateway", "--endpoint"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as endpoint:
        try:
            assert endpoint.stdout is not None
            url = f"http://127.0.0.1:{int(endpoint.stdout.readline())}"
            return [
                compare(url, n, turns // n, stream) for n in (1, 16, 64) for stream in (True, False)
            ]
        finally:
            endpoint.terminate()


def report(lines: list[Line]) -> str:
    head = f"{'at once':>7} {'form':>6} {'turns':>5} {'direct ms':>9} {'gateway ms':>10} "
    rows = [head + f"{'ratio':>5} {'own ms':>6} {'cpu ms':>6}"]
    for x in lines:
        form = "stream" if x.stream else "plain"
        rows.append(
            f"{x.at_once:>7} {form:>6} {x.turns:>5} {x.direct_ms:>9.2f} {x.gateway_ms:>10.2f} "
            f"{x.ratio:>5.2f} {x.own_ms:>6.2f} {x.cpu_ms:>6.2f}"
        )
    alone = max(x.own_ms for x in lines if x.at_once == 1)
    verdict = "within" if alone <= LIMIT_MS else "ABOVE"
    rows.append(f"own time, one at a time: {alone:.2f} ms, {verdict} the limit of {LIMIT_MS} ms")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--turns", type=int, default=320)
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.endpoint:
        asyncio.run(serve_endpoint())
    elif args.client:
        print(asyncio.run(ask_all(json.loads(args.client), args.turns, args.stream)))
    else:
        lines = measure(args.turns)
        print(json.dumps([asdict(x) for x in lines]) if args.json else report(lines))


if __name__ == "__main__":
    main()
