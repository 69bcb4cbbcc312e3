"""The gateway before a real vLLM: exact tokens, sampling, routing, limits, cancellation."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from agentkit.serving.engine import Engine, EngineSettings
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
CONTEXT = 1024


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    settings = EngineSettings(
        "smollm2-135m", dtype="float32", max_model_len=CONTEXT, max_loras=2, max_lora_rank=8
    )
    with Engine.start(settings, log) as engine:
        yield engine.wait_ready(status=None)


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    with Gateway(engine.url, heartbeat_s=0.5) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def tokenizer(engine: Engine) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(engine.model_path)


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recorded_tokens_are_the_engines(
    engine: Engine, gateway: Gateway, tokenizer: Any, temperature: float
) -> None:
    from agentkit.seeds import derive_seed

    policy = Policy("base", temperature=temperature, max_tokens=40, seed=12)
    streamed, turn = ask(gateway, policy, stream=True)
    plain, again = ask(gateway, policy, stream=False)
    text, ids, logprobs = ask_engine(engine, policy, derive_seed(12, "turn", 0))
    assert streamed == plain == text
    assert turn.token_ids == again.token_ids == ids
    assert len(turn.logprobs) == len(ids)
    assert turn.logprobs == pytest.approx(logprobs, abs=1e-3)
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == text.strip()
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
    url, messages = f"{gateway.base_url(key)}/chat/completions", MESSAGES
    for _ in range(2):
        body = {"messages": messages, "tools": TOOLS}
        answer = httpx.post(url, json=body, timeout=120).json()["choices"][0]["message"]
        messages = [*messages, answer, {"role": "user", "content": "Go on."}]
    first, second = gateway.close(key).turns
    assert second.prompt_token_ids[: len(first.prompt_token_ids)] == first.prompt_token_ids
    assert second.cached_tokens >= len(first.prompt_token_ids) // 32 * 32 > 0


def write_adapter(folder: Path, model: Path, scale: float, seed: int) -> None:
    """A random rank-8 adapter on q_proj in peft's format, strong enough to change every answer."""
    from safetensors.numpy import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    rng = np.random.default_rng(seed)
    tensors = {}
    for i in range(layers):
        name = f"base_model.model.model.layers.{i}.self_attn.q_proj.lora"
        tensors[f"{name}_A.weight"] = rng.normal(0, 0.05, (8, hidden)).astype(np.float32)
        tensors[f"{name}_B.weight"] = rng.normal(0, scale, (hidden, 8)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    adapter = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"],
               "task_type": "CAUSAL_LM", "base_model_name_or_path": str(model), "bias": "none",
               "lora_dropout": 0.0, "fan_in_fan_out": False}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


def test_each_session_is_answered_by_its_own_adapter(
    engine: Engine, gateway: Gateway, tmp_path: Path
) -> None:
    assert engine.model_path is not None
    alone = {}
    for i, name in enumerate(("red", "blue")):
        write_adapter(tmp_path / name, engine.model_path, 0.3, i)
        load = {"lora_name": name, "lora_path": str(tmp_path / name)}
        httpx.post(f"{engine.url}/v1/load_lora_adapter", json=load, timeout=60).raise_for_status()
    for name in ("base", "red", "blue"):
        _, turn = ask(gateway, Policy(name, temperature=0.0, max_tokens=16))
        assert turn.model == name
        alone[name] = turn.token_ids
    assert len({tuple(t) for t in alone.values()}) == 3
    key = gateway.open(Policy("green"))
    response = httpx.post(f"{gateway.base_url(key)}/chat/completions", json={"messages": MESSAGES})
    assert response.status_code == 404 and "green" in response.json()["error"]["message"]
    assert gateway.close(key).has("engine_error")


def test_prompt_beyond_the_context_is_told_apart(gateway: Gateway) -> None:
    key = gateway.open(Policy("base", max_tokens=8))
    messages = [{"role": "user", "content": "word " * (2 * CONTEXT)}]
    body = {"messages": messages, "stream": True}
    response = httpx.post(f"{gateway.base_url(key)}/chat/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert "maximum context length" in response.json()["error"]["message"]
    log = gateway.close(key)
    assert log.has("context_overflow") and log.has("bad_request") and log.turns == []


def running(engine: Engine) -> float:
    text = httpx.get(f"{engine.url}/metrics", timeout=30).text
    lines = [x for x in text.splitlines() if x.startswith("vllm:num_requests_running")]
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines)


@pytest.mark.parametrize("how", ["harness hangs up", "session is closed"])
def test_vllm_stops_working_for_a_harness_that_has_gone(
    engine: Engine, gateway: Gateway, how: str
) -> None:
    key = gateway.open(Policy("base", max_tokens=700, seed=1))
    body = {"messages": MESSAGES, "stream": True, "ignore_eos": True}
    url = f"{gateway.base_url(key)}/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=120) as response:
        assert next(response.iter_bytes()).startswith(b": keep-alive")
        assert until(lambda: running(engine) == 1, 10)
        if how == "session is closed":
            log = gateway.close(key)
    stopped = time.monotonic()
    assert until(lambda: running(engine) == 0, 20), "vLLM must abort the request"
    assert time.monotonic() - stopped < 5
    if how == "harness hangs up":
        assert until(lambda: gateway.peek(key).has("client_gone"))
        log = gateway.close(key)
    assert log.turns == []


def test_dead_engine_is_an_engine_error(engine: Engine, gateway: Gateway) -> None:
    """Last, since it stops the engine."""
    key = gateway.open(Policy("base", max_tokens=8))
    engine.stop()
    body = {"messages": MESSAGES, "stream": True}
    response = httpx.post(f"{gateway.base_url(key)}/chat/completions", json=body, timeout=60)
    assert response.status_code == 502
    assert [e["type"] for e in gateway.close(key).events] == ["engine_error"]
