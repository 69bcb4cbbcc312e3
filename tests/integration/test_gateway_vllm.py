"""The gateway before a real vLLM: exact tokens, sampling, routing, limits, cancellation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkit.seeds import derive_seed
from agentkit.serving.engine import Engine
from agentkit.serving.gateway import Gateway
from agentkit.types import Policy, Turn
from tests.gateway_house import read_sse, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant. " * 12},
    {"role": "user", "content": "Tell me a short story about a lighthouse keeper."},
]


@pytest.fixture(scope="module")
def gateway(tiny_engine: Engine) -> Iterator[Gateway]:
    with Gateway(tiny_engine.url, heartbeat_s=0.2) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


def ask(
    gateway: Gateway,
    policy: Policy,
    stream: bool = True,
    messages: list[dict[str, Any]] = MESSAGES,
) -> tuple[str, Turn]:
    """One turn in a session of its own: the text that the harness got, and the recorded turn."""
    key = gateway.open(policy)
    body = {"model": "m", "messages": messages, "tools": TOOLS, "stream": stream,
            "max_tokens": 4096, "temperature": 0.0, "stop": ["the"], "n": 2}  # fmt: skip
    url = f"{gateway.base_url(key)}/chat/completions"
    response = httpx.post(url, json=body, timeout=120)
    assert response.status_code == 200, response.text
    log = gateway.close(key)
    assert log.events == []
    (turn,) = log.turns
    if stream:
        return read_sse(response.content)[0]["content"], turn
    return response.json()["choices"][0]["message"]["content"], turn


def ask_engine(engine: Engine, policy: Policy, seed: int) -> tuple[str, list[int], list[float]]:
    """The same turn asked of vLLM itself, streamed and put together here."""
    body = {"model": policy.model, "messages": MESSAGES, "tools": TOOLS, "stream": True,
            "temperature": policy.temperature, "top_p": policy.top_p, "seed": seed,
            "max_tokens": policy.max_tokens, "logprobs": True,
            "return_token_ids": True}  # fmt: skip
    text, ids, logprobs = "", [], []
    with httpx.stream("POST", f"{engine.url}/v1/chat/completions", json=body, timeout=120) as r:
        for line in r.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
                ids += choice.get("token_ids") or []
                content = (choice.get("logprobs") or {}).get("content") or []
                logprobs += [entry["logprob"] for entry in content]
    return text, ids, logprobs


def readable(tokenizer: Any, ids: list[int]) -> str:
    """The text of sampled tokens without the end token and without torn UTF-8 sequences."""
    kept = ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids
    return str(tokenizer.decode(kept)).replace("\ufffd", "")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recorded_tokens_are_the_engines(
    tiny_engine: Engine, gateway: Gateway, tokenizer: Any, temperature: float
) -> None:
    policy = Policy("base", temperature=temperature, max_tokens=40, seed=12)
    streamed, turn = ask(gateway, policy, stream=True)
    plain, again = ask(gateway, policy, stream=False)
    text, ids, logprobs = ask_engine(tiny_engine, policy, derive_seed(12, "turn", 0))
    assert streamed == plain == text
    assert turn.token_ids == again.token_ids == ids
    assert len(turn.logprobs) == len(ids)
    assert turn.logprobs == pytest.approx(logprobs, abs=1e-3)
    assert ids and readable(tokenizer, ids) == text.replace("\ufffd", "")
    rendered = tokenizer.apply_chat_template(
        MESSAGES, tools=TOOLS, add_generation_prompt=True, tokenize=False
    )
    assert turn.prompt_token_ids == tokenizer.encode(rendered, add_special_tokens=False)
    assert turn.model == "base" and turn.engine_s > 0 and turn.gateway_s < 1


def test_seed_and_temperature_are_ours(gateway: Gateway) -> None:
    tokens = [
        tuple(ask(gateway, Policy("base", temperature=t, max_tokens=24, seed=s))[1].token_ids)
        for t, s in [(1.0, 1), (1.0, 1), (1.0, 2), (0.0, 1), (0.0, 2)]
    ]
    assert tokens[0] == tokens[1] != tokens[2]
    assert tokens[3] == tokens[4] != tokens[0]


def test_max_tokens_is_ours(gateway: Gateway) -> None:
    _, turn = ask(gateway, Policy("base", temperature=0.0, max_tokens=7))
    assert len(turn.token_ids) == 7 and turn.finish_reason == "length"


def test_next_turn_finds_its_prefix_cached(gateway: Gateway) -> None:
    key = gateway.open(Policy("base", max_tokens=24, seed=5))
    url = f"{gateway.base_url(key)}/chat/completions"
    # no other test's prompt begins so, and vLLM on a CPU caches blocks of 128 tokens
    messages = [{"role": "system", "content": f"Session {key}. " + "Be brief. " * 80}, MESSAGES[1]]
    for _ in range(2):
        body = {"messages": messages}
        answer = httpx.post(url, json=body, timeout=120).json()["choices"][0]["message"]
        messages = [*messages, answer, {"role": "user", "content": "Go on."}]
    first, second = gateway.close(key).turns
    prompt = first.prompt_token_ids
    assert second.prompt_token_ids[: len(prompt)] == prompt
    assert first.cached_tokens == 0
    assert second.cached_tokens >= len(prompt) // 128 * 128 > 0


def test_each_session_is_answered_by_its_own_adapter(
    tiny_engine: Engine, gateway: Gateway, tiny_adapters: list[Path]
) -> None:
    """Interleaved at once, every session gets the tokens that its adapter gives alone."""
    names = ["base", "gateway-red", "gateway-blue"]
    for name, path in zip(names[1:], tiny_adapters, strict=False):
        load = {"lora_name": name, "lora_path": str(path)}
        response = httpx.post(f"{tiny_engine.url}/v1/load_lora_adapter", json=load, timeout=60)
        response.raise_for_status()

    def turn(name: str) -> Turn:
        return ask(gateway, Policy(name, temperature=0.0, max_tokens=16))[1]

    try:
        alone = {name: turn(name) for name in names}
        assert len({tuple(t.token_ids) for t in alone.values()}) == 3
        with ThreadPoolExecutor(6) as pool:
            together = list(pool.map(turn, names * 4))
        for got in together:
            assert got.token_ids == alone[got.model].token_ids
            assert got.logprobs == pytest.approx(alone[got.model].logprobs, abs=1e-3)
        assert [t.model for t in together] == names * 4
    finally:
        for name in names[1:]:
            unload = {"lora_name": name}
            httpx.post(f"{tiny_engine.url}/v1/unload_lora_adapter", json=unload, timeout=60)


def test_model_that_is_not_served_is_an_engine_error(gateway: Gateway) -> None:
    key = gateway.open(Policy("green"))
    response = httpx.post(f"{gateway.base_url(key)}/chat/completions", json={"messages": MESSAGES})
    assert response.status_code == 404 and "green" in response.json()["error"]["message"]
    assert gateway.close(key).has("engine_error")


def test_prompt_beyond_the_context_is_told_apart(gateway: Gateway) -> None:
    key = gateway.open(Policy("base", max_tokens=8))
    messages = [{"role": "user", "content": "word " * 6000}]
    body = {"messages": messages, "stream": True}
    response = httpx.post(f"{gateway.base_url(key)}/chat/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert "maximum context length" in response.json()["error"]["message"]
    log = gateway.close(key)
    assert log.has("context_overflow") and log.has("bad_request") and log.turns == []


def counted(engine: Engine, metric: str) -> float:
    """A counter or gauge of vLLM, summed over its label sets."""
    lines = httpx.get(f"{engine.url}/metrics", timeout=30).text.splitlines()
    wanted = [x for x in lines if x.startswith(metric)]
    return sum(float(x.rsplit(" ", 1)[1]) for x in wanted)


@pytest.mark.parametrize("how", ["harness hangs up", "session is closed"])
def test_vllm_stops_working_for_a_harness_that_has_gone(
    tiny_engine: Engine, gateway: Gateway, how: str
) -> None:
    before = counted(tiny_engine, "vllm:generation_tokens_total")
    # greedily the tiny model never ends by itself: 1,700 tokens take seconds
    key = gateway.open(Policy("base", temperature=0.0, max_tokens=1700))
    url = f"{gateway.base_url(key)}/chat/completions"
    body = {"messages": MESSAGES[1:], "stream": True}
    with httpx.stream("POST", url, json=body, timeout=120) as response:
        parts = response.iter_bytes()  # held: httpx hangs up when its iterator is dropped
        assert next(parts).startswith(b": keep-alive")
        assert until(lambda: counted(tiny_engine, "vllm:num_requests_running") == 1, 20)
        if how == "session is closed":
            log = gateway.close(key)
    assert until(lambda: counted(tiny_engine, "vllm:num_requests_running") == 0, 20)
    sampled = counted(tiny_engine, "vllm:generation_tokens_total") - before
    assert 0 < sampled < 1600, "the answer must be cut off, not finished"
    if how == "harness hangs up":
        assert until(lambda: gateway.peek(key).has("client_gone"))
        log = gateway.close(key)
    assert log.turns == []
