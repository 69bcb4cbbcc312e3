"""SmolLM2's chat template: the next prompt must extend what the policy sampled, byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentkit.serving.models import CHAT_TEMPLATES

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": 'Run a "command" é',
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
            "strict": None,
        },
    }
]
START = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
BASH = '<tool_call>\n{"name": "bash", "arguments": %s}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Bytes as tokens: what is tested is the text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=raw)
    made.chat_template = (CHAT_TEMPLATES / "smollm2.jinja").read_text()
    return made


def render(tokenizer: Any, messages: list[dict[str, Any]], prompt: bool = False) -> str:
    return tokenizer.apply_chat_template(
        messages, tools=TOOLS, add_generation_prompt=prompt, tokenize=False
    )


def call(arguments: dict[str, Any] | str) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": "bash", "arguments": arguments}}


AWKWARD = {"command": 'printf "é\\n" | head -n 12 > "out file.txt"', "timeout": 1.5, "n": None}

TURNS = {
    "a call": (BASH % json.dumps(AWKWARD, ensure_ascii=False), None, [call(AWKWARD)]),
    "arguments as text": (BASH % '{"a": 1}', "", [call('{"a": 1}')]),
    "text and a call": ("Look.\n" + BASH % "{}", "Look.\n", [call({})]),
    "text whose newline was trimmed": ("Look.\n" + BASH % "{}", "Look.", [call({})]),
    "two calls": (BASH % "{}" + "\n" + BASH % '{"b": [1]}', None, [call({}), call({"b": [1]})]),
    "text alone": ("Done, 42.", "Done, 42.", None),
    "text in parts": ("Done.", [{"type": "text", "text": t} for t in ("Do", "ne.")], []),
    "nothing": ("", None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNS)
def test_next_prompt_extends_prompt_and_sampled_text(tokenizer: Any, name: str) -> None:
    sampled, content, calls = TURNS[name]
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    if calls is not None:
        turn["tool_calls"] = calls
    after = [{"role": "tool", "content": "out", "tool_call_id": "x"} for _ in calls or []]
    later = [*START, turn, *(after or [{"role": "user", "content": "more"}])]
    held = render(tokenizer, START, prompt=True) + sampled + "<|im_end|>"
    following = render(tokenizer, later, prompt=True)
    assert following.startswith(held)
    rest = following.removeprefix(held)
    assert rest.startswith("\n<|im_start|>user\n")
    assert rest.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert rest.count("<tool_response>\nout\n</tool_response>") == len(after)


@pytest.mark.parametrize("name", TURNS)
def test_generation_markers_hold_exactly_the_sampled_text(tokenizer: Any, name: str) -> None:
    sampled, content, calls = TURNS[name]
    turn = {"role": "assistant", "content": content, "tool_calls": calls}
    out = tokenizer.apply_chat_template(
        [*START, turn], tools=TOOLS, return_dict=True, return_assistant_tokens_mask=True
    )
    trained = [i for i, m in zip(out["input_ids"], out["assistant_masks"], strict=True) if m]
    assert tokenizer.decode(trained) == sampled + "<|im_end|>"


def test_tools_are_rendered_as_json_without_extra_fields(tokenizer: Any) -> None:
    text = render(tokenizer, START)
    block = text.split("<tools>\n")[1].split("\n</tools>")[0]
    function = {k: TOOLS[0]["function"][k] for k in ("name", "description", "parameters")}
    assert json.loads(block) == {"type": "function", "function": function}
    assert "é" in block


def test_without_system_message_the_models_own_is_used(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    )
