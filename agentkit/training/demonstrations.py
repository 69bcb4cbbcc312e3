"""Layer: work (no torch). Trajectories of training tasks as token rows for supervised learning.

A demonstration is what a session of the harness would be if the policy made the calls of the
task's own trajectory, one call a turn: the harness's own system prompt and tools (probed, not
copied), its own form of the instruction, calls and results in the engine's chat template. Each
assistant turn is tokenised by itself behind its prompt, as sampled tokens come from the engine.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentkit.errors import HarnessError
from agentkit.training.renaming import rename
from agentkit.types import Step, Task, Trajectory

MARK = "INSTRUCTION-MARK"
Message = dict[str, Any]


@dataclass(frozen=True)
class Demonstration:
    """One task's row: ``input_ids`` (L) and ``labels`` (L), −100 outside assistant turns."""

    task_id: str
    input_ids: list[int]
    labels: list[int]


class Unusable(Exception):
    """Why a task gives no demonstration; the message is a countable category."""


@dataclass(frozen=True)
class PromptForm:
    """What the harness sends before the first turn, with the instruction left open.

    ``messages`` end with the user's message, in which MARK stands for the instruction.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]

    def fill(self, instruction: str) -> list[Message]:
        """The messages for one instruction."""
        quoted = json.dumps(instruction)[1:-1]
        return list(json.loads(json.dumps(self.messages).replace(MARK, quoted)))

    def sha256(self) -> str:
        """Digest of system prompt, message form and tools."""
        text = json.dumps([self.messages, self.tools], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(t["function"]["name"] for t in self.tools)


def probe_form(probe: Callable[[str], Mapping[str, Any]], example: str) -> PromptForm:
    """Learn the form from two probes and check it: one with MARK, one with a real instruction.

    Args:
        probe: ``probe(instruction)`` -> the harness's first request (see ``sessions.probe``).

    Raises:
        HarnessError: the request does not hold the instruction as it was given.
    """
    request = probe(MARK)["request"]
    form = PromptForm(tuple(request["messages"]), tuple(request.get("tools") or ()))
    seen = probe(example)["request"]
    if form.fill(example) != list(seen["messages"]) or list(form.tools) != seen.get("tools", []):
        raise HarnessError(
            "harness",
            "two probes differ by more than the instruction",
            "the instruction, unchanged, in an otherwise constant prompt",
            "such a harness needs its own demonstrations",
        )
    return form


def result_text(step: Step) -> str:
    """A call's result as pi words it; the trace readers take the wording off."""
    if step.call.name == "bash" and step.exit_status not in (0, None):
        return f"{step.output}\n\nCommand exited with code {step.exit_status}".lstrip("\n")
    return step.output if step.output or step.call.name != "bash" else "(no output)"


def conversation(task: Task, trajectory: Trajectory, form: PromptForm) -> list[Message]:
    """The whole session as messages.

    Raises:
        Unusable: the trajectory is no session of this task and these tools.
    """
    if "\n\n".join(trajectory.wishes).strip() != task.instruction.strip():
        raise Unusable("the instruction says more than the wish")
    if not trajectory.steps or not trajectory.final_text:
        raise Unusable("no calls or no last words")
    messages = form.fill(task.instruction)
    for number, step in enumerate(trajectory.steps):
        call = step.call
        if call.name not in form.tool_names:
            raise Unusable(f"calls {call.name}, which the harness does not offer")
        if not isinstance(call.arguments, dict):
            raise Unusable("call arguments are not JSON")
        function = {"name": call.name, "arguments": call.arguments}
        item = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [item]})
        messages.append({"role": "tool", "tool_call_id": item["id"], "content": result_text(step)})
    messages.append({"role": "assistant", "content": trajectory.final_text})
    return messages


def tokenise(
    task_id: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]], tokenizer: Any
) -> Demonstration:
    """Render and tokenise turn by turn; labels cover each assistant turn with its end mark.

    Raises:
        Unusable: the template does not extend its own prompts, or a prompt tokenised whole differs
            from prompt and turn tokenised apart (the engine would then fork the row).
    """

    def render(count: int, prompt: bool) -> str:
        return str(
            tokenizer.apply_chat_template(
                list(messages[:count]),
                tools=list(tools) or None,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        )

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    tokens: list[int] = []
    labels: list[int] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = render(index, True), render(index + 1, False).rstrip("\n")
        if not before.startswith(done) or not after.startswith(before):
            raise Unusable("the template does not extend its prompt")
        between, turn = ids(before[len(done) :]), ids(after[len(before) :])
        tokens += between
        labels += [-100] * len(between)
        if tokens != ids(before):
            raise Unusable("tokens merge across a turn's border")
        tokens += turn
        labels += turn
        done = after
    return Demonstration(task_id, tokens, labels)


def demonstrations(
    tasks: Sequence[Task],
    trajectories: Mapping[str, Trajectory],
    form: PromptForm,
    tokenizer: Any,
    *,
    max_tokens: int,
    renamed: np.random.Generator | None = None,
) -> tuple[list[Demonstration], Counter[str]]:
    """Demonstrations of ``tasks`` (in order) and a count of why others gave none.

    Args:
        trajectories: by session id; a task's ``source["session_id"]`` names its own.
        renamed: exchange the nouns of each demonstration by draws from this generator.
    """
    made: list[Demonstration] = []
    refused: Counter[str] = Counter()
    for task in tasks:
        try:
            trajectory = trajectories.get(task.source.get("session_id", ""))
            if trajectory is None:
                raise Unusable("its trajectory is not in the data set")
            messages = conversation(task, trajectory, form)
            if renamed is not None:
                messages = rename(messages, renamed)
            row = tokenise(task.task_id, messages, form.tools, tokenizer)
            if len(row.input_ids) > max_tokens:
                raise Unusable(f"longer than {max_tokens} tokens")
            made.append(row)
        except Unusable as reason:
            refused[str(reason)] += 1
    return made, refused


def data_sha256(rows: Sequence[Demonstration]) -> str:
    """Digest of task ids, tokens and labels."""
    total = hashlib.sha256()
    for row in rows:
        total.update(json.dumps([row.task_id, row.input_ids, row.labels]).encode())
    return total.hexdigest()
