"""Demonstrations: the harness's form, the template, and labels on assistant turns only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest

from agentkit.errors import HarnessError
from agentkit.training.demonstrations import (
    MARK,
    PromptForm,
    Unusable,
    conversation,
    demonstrations,
    probe_form,
    result_text,
    tokenise,
)
from agentkit.types import Step, Task, ToolCall, Trajectory

TEMPLATE = (
    Path(__file__).resolve().parents[2] / "agentkit/data/chat_templates/smollm2.jinja"
).read_text()
TOOLS = [{"type": "function", "function": {"name": n, "parameters": {}}} for n in ("bash", "write")]


class Letters:
    """A tokenizer with one token a character, but for ``merges``, and the shipped template."""

    def __init__(self, *merges: str) -> None:
        self.merges = merges
        import json

        def generation(text: str) -> str:
            return text

        env = jinja2.Environment()
        env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
        source = TEMPLATE.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
        self.template = env.from_string(source)

    def apply_chat_template(
        self, messages: list[Any], *, tools: Any, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        assert not tokenize
        return self.template.render(
            messages=messages, tools=tools, add_generation_prompt=add_generation_prompt
        )

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        out: list[int] = []
        while text:
            size = next((len(m) for m in self.merges if text.startswith(m)), 1)
            out.append(hash(text[:size]) % 10**9 if size > 1 else ord(text[0]))
            text = text[size:]
        return {"input_ids": out}


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def step(command: str, output: str = "", status: int | None = 0) -> Step:
    return Step(ToolCall("1", "bash", {"command": command}), output, bool(status), status)


def trajectory(*steps: Step, wish: str = "Do it.", final: str = "Done.") -> Trajectory:
    return Trajectory("seed", "s1", "pi", "/work", "x", (wish,), steps, final)


def task(instruction: str = "Do it.\n") -> Task:
    return Task("t1", "qa", instruction, {}, {}, {}, {"dataset": "seed", "session_id": "s1"})


FORM = PromptForm(
    ({"role": "system", "content": "S"}, {"role": "user", "content": MARK}), tuple(TOOLS)
)


def test_labels_are_the_assistant_turns_with_their_end() -> None:
    messages = conversation(task(), trajectory(step("ls", "a\n"), step("cat b", "no", 1)), FORM)
    row = tokenise("t1", messages, FORM.tools, Letters())
    assert len(row.input_ids) == len(row.labels)
    pieces, piece = [], []
    for token, label in zip(row.input_ids, row.labels, strict=True):
        assert label in (-100, token)
        if label == -100 and piece:
            pieces.append(text(piece))
            piece = []
        elif label != -100:
            piece.append(label)
    pieces.append(text(piece))
    assert pieces == [
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>',
        '<tool_call>\n{"name": "bash", "arguments": {"command": "cat b"}}\n</tool_call><|im_end|>',
        "Done.<|im_end|>",
    ]
    whole = text(row.input_ids)
    assert whole.count("<|im_start|>assistant\n") == 3
    assert "<tool_response>\na\n\n</tool_response>" in whole
    assert "no\n\nCommand exited with code 1" in whole
    assert "<|im_start|>user\nDo it.\n<|im_end|>" in whole


def test_results_are_worded_as_pi_does() -> None:
    assert result_text(step("true")) == "(no output)"
    assert result_text(step("false", "", 1)) == "Command exited with code 1"
    assert result_text(step("x", "out\n", 2)) == "out\n\n\nCommand exited with code 2"
    written = Step(ToolCall("1", "write", {"path": "a"}), "Successfully wrote to a")
    assert result_text(written) == "Successfully wrote to a"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (trajectory(step("ls"), wish="Something else."), "says more than the wish"),
        (trajectory(), "no calls"),
        (trajectory(step("ls"), final=""), "no calls or no last words"),
        (trajectory(Step(ToolCall("1", "edit", {}), "")), "does not offer"),
        (trajectory(Step(ToolCall("1", "bash", "{bad"), "")), "not JSON"),
    ],
)
def test_trajectories_that_are_no_session_of_the_task_are_refused(
    made: Trajectory, reason: str
) -> None:
    with pytest.raises(Unusable, match=reason):
        conversation(task(), made, FORM)


def test_tokens_that_merge_across_a_border_are_refused() -> None:
    messages = conversation(task(), trajectory(step("ls")), FORM)
    with pytest.raises(Unusable, match="merge"):
        tokenise("t1", messages, FORM.tools, Letters("assistant\n<tool"))


def test_refusals_are_counted_and_the_rest_goes_on() -> None:
    other = Task("t2", "qa", "Do it.", {}, {}, {}, {"session_id": "gone"})
    rows, refused = demonstrations(
        [other, task()], {"s1": trajectory(step("ls"))}, FORM, Letters(), max_tokens=9999
    )
    assert [r.task_id for r in rows] == ["t1"]
    assert refused == {"its trajectory is not in the data set": 1}
    rows, refused = demonstrations(
        [task()], {"s1": trajectory(step("ls"))}, FORM, Letters(), max_tokens=50
    )
    assert not rows and refused == {"longer than 50 tokens": 1}


def test_the_form_is_probed_and_checked() -> None:
    def probe(instruction: str) -> dict[str, Any]:
        user = {"role": "user", "content": [{"type": "text", "text": f"{instruction}"}]}
        return {"request": {"messages": [{"role": "system", "content": "S"}, user], "tools": TOOLS}}

    form = probe_form(probe, 'say "x"\nand\\y')
    assert form.fill('a"b')[1]["content"][0]["text"] == 'a"b'
    assert form.tool_names == {"bash", "write"}

    def trimming(instruction: str) -> dict[str, Any]:
        return probe(instruction.strip())

    with pytest.raises(HarnessError, match="two probes differ"):
        probe_form(trimming, "with a newline\n")
