"""Answers of the running server: seeds, exact tokens, tool calls rendered back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkit.serving.engine import Engine
from tests.integration.engine_fixtures import MAX_BATCHED_TOKENS

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


def post(engine: Engine, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(engine.url + path, json={"model": "base"} | body, timeout=120.0)
    assert answer.status_code == 200, answer.text
    return answer.json()


def sample(engine: Engine, ids: list[int], seed: int, n: int = 12) -> list[int]:
    body = {"prompt": ids, "max_tokens": n, "temperature": 1.0, "seed": seed, "ignore_eos": True}
    answer = post(engine, "/v1/completions", **body, return_token_ids=True, logprobs=0)
    return answer["choices"][0]["token_ids"]


def test_seeded_prompts_prefilled_in_parts_are_repeatable(tiny_engine: Engine) -> None:
    """vLLM's CPU build dies here without the plugin: a CPU generator has no offset."""
    ids = [3 + (i * 31) % 1900 for i in range(3 * MAX_BATCHED_TOKENS + 7)]
    alone = sample(tiny_engine, ids, seed=5)
    assert sample(tiny_engine, ids, seed=6) != alone
    # Twice more amid other requests: the prompt is then cut at other places.
    others = [[7 + (i * k) % 1900 for i in range(200 + k)] for k in range(5, 11)]
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(sample, tiny_engine, other, 1) for other in others]
        again = [pool.submit(sample, tiny_engine, [*ids], 5) for _ in range(2)]
        assert [job.result() for job in again] == [alone, alone]
        assert all(len(job.result()) == 12 for job in jobs)
    assert tiny_engine.alive()


def test_tokens_and_logprobs_of_a_chat_answer_are_exact(
    tiny_engine: Engine, tiny_model: Path
) -> None:
    from agentkit.serving.agreement import load_trainer_model, score

    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    body = {"messages": messages, "tools": TOOLS, "max_tokens": 16, "temperature": 1.0, "seed": 1}
    answer = post(tiny_engine, "/v1/chat/completions", **body, logprobs=True, return_token_ids=True)
    choice, prompt = answer["choices"][0], answer["prompt_token_ids"]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert len(choice["token_ids"]) == len(logprobs)
    theirs = score(load_trainer_model(tiny_model, "float32"), prompt + choice["token_ids"])[
        len(prompt) - 1 :
    ]
    assert logprobs == pytest.approx(theirs, abs=1e-3)


def test_logprobs_hold_the_temperature(tiny_engine: Engine, tiny_model: Path) -> None:
    import torch

    from agentkit.serving.agreement import load_trainer_model

    ids = list(range(5, 25))
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0.5, "seed": 3, "logprobs": 0}
    choice = post(tiny_engine, "/v1/completions", **body, return_token_ids=True)["choices"][0]
    with torch.no_grad():
        logits = load_trainer_model(tiny_model, "float32")(input_ids=torch.tensor([ids])).logits[
            0, -1
        ]
    expected = torch.log_softmax(logits / 0.5, -1)[choice["token_ids"][0]].item()
    assert choice["logprobs"]["token_logprobs"][0] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("content", [None, "Look.\n", [{"type": "text", "text": "Look.\n"}]])
def test_call_resent_by_a_harness_is_rendered_as_it_was_sampled(
    tiny_engine: Engine, tiny_model: Path, content: Any
) -> None:
    """pi sends arguments back as compact JSON; the template must give the sampled text again."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    arguments = {"command": 'echo "é\\n" > a.txt', "n": 1}
    start = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    compact = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": compact}}
    turn = {"role": "assistant", "content": content, "tool_calls": [call]}
    later = [*start, turn, {"role": "tool", "tool_call_id": "1", "content": "ok"}]

    def prompt(messages: list[dict[str, Any]]) -> list[int]:
        body = {"messages": messages, "tools": TOOLS, "max_tokens": 1, "return_token_ids": True}
        return post(tiny_engine, "/v1/chat/completions", **body)["prompt_token_ids"]

    text = "Look.\n" if content else ""
    sampled = (
        f'{text}<tool_call>\n{{"name": "bash", "arguments": '
        f"{json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call><|im_end|>"
    )
    held = prompt(start) + tokenizer(sampled, add_special_tokens=False)["input_ids"]
    assert prompt(later)[: len(held)] == held
