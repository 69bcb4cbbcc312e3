"""Layer: sources. Unit -> task: instruction, workspace, hidden validator, reference solution.

The instruction is the user's own wish, completed only by file names that a reader could not know
otherwise. The hidden validator comes from ``checks``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import random
import re
import shlex
from dataclasses import dataclass

from agentkit.seeds import derive_seed
from agentkit.synthesis import heldout
from agentkit.synthesis.checks import CHECK_TIMEOUT_S, NotBuilt, candidate_checks, record, tests_of
from agentkit.synthesis.executor import Box
from agentkit.synthesis.replay import Effect
from agentkit.synthesis.units import TEST_NAME, Unit, segments, writes_files
from agentkit.types import Files, Task

LEAK_LINE_CHARS = 24
"""A line of the reference that is at least this long may not stand in the instruction."""


@dataclass(frozen=True)
class BuildSettings:
    verifier_timeout_s: float = 10.0
    agent_timeout_s: float = 120.0


def build_task(unit: Unit, box: Box, settings: BuildSettings | None = None) -> Task:
    """Build the task; ``box`` holds the reference's final workspace (as ``replay`` leaves it).

    Raises NotBuilt.
    """
    settings = settings or BuildSettings()
    trajectory = unit.replay.trajectory
    task_id = _task_id(unit)
    instruction = instruction_of(unit)
    scan_for_leaks(unit, instruction)
    rng = random.Random(derive_seed(0, "held-out inputs", task_id))
    kept = protected_files(unit)
    checks = record(unit, candidate_checks(unit, kept, rng), kept, box)
    spec = {"version": 1, "timeout_s": min(CHECK_TIMEOUT_S, settings.verifier_timeout_s / 2)}
    return Task(
        task_id=task_id,
        kind=unit.kind,
        instruction=instruction,
        workspace=dict(unit.replay.initial),
        tests=tests_of({**spec, "checks": checks}, kept, settings.verifier_timeout_s),
        solution={"solve.sh": solution_of(unit).encode()},
        source={
            "dataset": trajectory.dataset,
            "session_id": trajectory.session_id,
            "licence": trajectory.licence,
        },
        agent_timeout_s=settings.agent_timeout_s,
        verifier_timeout_s=settings.verifier_timeout_s,
        extra={
            "trace_path": trajectory.path,
            "harness": trajectory.harness,
            "checks": [c["type"] for c in checks],
            "changed": list(unit.changed),
            "unseen_files": list(unit.replay.unseen),
        },
    )


def _task_id(unit: Unit) -> str:
    """Kind and a hash of source and content, so that a rebuilt corpus gives the same ids."""
    trajectory = unit.replay.trajectory
    text = json.dumps([trajectory.session_id, trajectory.wishes, unit.kind, unit.checks])
    return f"{unit.kind}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def instruction_of(unit: Unit) -> str:
    """The user's wishes; a changed file that neither they nor the workspace name is added."""
    text = "\n\n".join(unit.replay.trajectory.wishes)
    if unit.kind == "qa":
        if unit.answer_path not in text:
            text += f"\n\nWrite only the answer to `{unit.answer_path}`."
        return text + "\n"
    unnamed = [
        p
        for p in unit.changed
        if p not in unit.replay.initial
        and posixpath.basename(p) not in text
        and not TEST_NAME.search(p)
    ]
    if unnamed:
        text += "\n\nFiles to create: " + ", ".join(f"`{p}`" for p in unnamed) + "."
    return text + "\n"


def scan_for_leaks(unit: Unit, instruction: str) -> None:
    """Refuse an instruction or a workspace that holds the answer or lines of the reference."""
    initial, final = unit.replay.initial, unit.replay.final
    if unit.kind == "qa":
        answer = unit.answer.strip()
        named = [p for p in initial if p in instruction]
        choice = answer in initial and len(named) > 1  # "which of these files": all are named
        if not choice and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", instruction):
            raise NotBuilt("answer leaks", "it stands in the instruction")
        if any(data.decode(errors="replace").strip() == answer for data in initial.values()):
            raise NotBuilt("answer leaks", "a workspace file holds just the answer")
        return
    before = {line.strip() for data in initial.values() for line in _lines(data)}
    for path in unit.changed:
        for line in map(str.strip, _lines(final[path])):
            # A signature belongs to the wish: "write def area(width, height)".
            head = re.match(r"(def|class|function|import|from)\b", line)
            long = len(line) >= LEAK_LINE_CHARS and not head and line not in before
            if long and line in instruction:
                raise NotBuilt("reference leaks", f"a line of {path} is in the instruction")


def _lines(data: bytes) -> list[str]:
    return data.decode(errors="replace").splitlines()


def protected_files(unit: Unit) -> Files:
    """Files that grading puts back: check files and data that the reference left alone.

    A module of the workspace is not among them, since an honest solution may change another one
    than the reference did. Check files that the trace wrote itself come with the hidden tests.
    """
    initial, final = unit.replay.initial, unit.replay.final
    if unit.kind == "qa":  # the answer is computed from the workspace as it was
        return {path: data for path, data in initial.items() if path != unit.answer_path}
    kept = {
        path: data
        for path, data in initial.items()
        if path not in unit.changed and (TEST_NAME.search(path) or not heldout.is_code(path))
    }
    written = {p: final[p] for p in unit.changed if p not in initial and TEST_NAME.search(p)}
    mentioned = " ".join([*unit.checks, *unit.old_checks])
    return kept | {p: d for p, d in written.items() if posixpath.basename(p) in mentioned}


def solution_of(unit: Unit) -> str:
    """``solve.sh``: the trace's own edits in their order, as shell commands in /work."""
    lines = ["#!/bin/bash", "# Reference solution: the edits of the source trajectory.", "cd /work"]
    if unit.kind == "qa":
        lines.append(f"{{ {unit.checks[0]}\n}} > {shlex.quote(unit.answer_path)}")
        return "\n".join(lines) + "\n"
    for effect in unit.edits:
        lines += _as_shell(effect, unit)
    return "\n".join(lines) + "\n"


def _as_shell(effect: Effect, unit: Unit) -> list[str]:
    action = effect.action
    if action.kind == "shell":
        parts = segments(action.command)
        while len(parts) > 1 and not writes_files(parts[-1]):
            parts.pop()  # the check that was joined to the edit
        # A failed part of the trace must not stop the rest, as it did not then.
        return ["(", " && ".join(parts), ")"] if len(parts) > 1 else [parts[0]]
    lines = []
    for path, data in effect.changed.items():
        if data is not None:
            lines += _write(path, data)
    return lines


def _write(path: str, data: bytes) -> list[str]:
    """A here-document; base64 where the content is no text that ends in one newline."""
    target = shlex.quote(path)
    folder = posixpath.dirname(path)
    lines = [f"mkdir -p {shlex.quote(folder)}"] if folder else []
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    mark = "EOF"
    while mark in text.splitlines():
        mark += "_"
    if not text.endswith("\n") or "\r" in text or "\0" in text:
        return [*lines, f"base64 -d > {target} <<'EOF'", base64.b64encode(data).decode(), "EOF"]
    return [*lines, f"cat > {target} <<'{mark}'", text.removesuffix("\n"), mark]
