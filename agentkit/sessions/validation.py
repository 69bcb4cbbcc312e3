"""Layer: work. Hidden validators: run in a fresh sandbox that the agent never touched.

The contract of ``tests/test.sh``: it runs as ``bash /tests/test.sh`` in ``/work`` and always
writes one number in [0, 1] to ``/logs/verifier/reward.txt``, whatever the submission does; best
is to write 0 first. Who is to blame when it does not?

- The sandbox broke (SandboxError): the infrastructure; one more try, then ``score`` is None.
- The time limit ended it: the submission hangs; score 0.
- No number, or none in [0, 1], in two fresh sandboxes: the validator is run on the task's own
  workspace as a control. Where that gives a number, the submission broke the validator: score 0.
  Where it does not, the validator itself is broken: ``score`` is None.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import PurePosixPath

from agentkit.errors import SandboxError
from agentkit.sandboxes.base import WORK, ExecResult, Limits, Sandbox, SandboxBackend, TooLarge
from agentkit.types import Files, Task

REWARD_FOLDER, REWARD_FILE = "/logs/verifier", "reward.txt"
COMMAND = ("/bin/bash", "/tests/test.sh")
_SHOWN = 4000


@dataclass(frozen=True)
class Validation:
    """``score`` in [0, 1], or None where the validator's infrastructure failed.

    ``reason`` is empty for an ordinary score. ``output`` is the end of what test.sh printed.
    """

    score: float | None
    reason: str
    duration_s: float
    output: str = ""


def carried(workspace: Files) -> Files:
    """What of a submission goes to the validator: all but compiled Python, which could differ
    from the source beside it."""
    return {
        name: data
        for name, data in workspace.items()
        if "__pycache__" not in PurePosixPath(name).parts and not name.endswith(".pyc")
    }


def _read_score(box: Sandbox) -> float | None:
    try:
        text = box.get(REWARD_FOLDER, max_bytes=1 << 16, max_files=20).get(REWARD_FILE, b"")
        score = float(text.decode("ascii").strip())
    except (TooLarge, ValueError):
        return None
    return score if math.isfinite(score) and 0.0 <= score <= 1.0 else None


def _attempt(
    task: Task, workspace: Files, backend: SandboxBackend, limits: Limits
) -> tuple[float | None, ExecResult | None]:
    """One run in a fresh sandbox: (score, result). The result is None where it did not fit in."""
    with backend.open(limits=limits) as box:
        box.put({f"verifier/{REWARD_FILE}": b""}, "/logs")
        box.put(task.tests, "/tests")
        try:
            box.put(carried(workspace), WORK)
        except TooLarge:
            return None, None
        result = box.exec(COMMAND, timeout_s=task.verifier_timeout_s)
        return _read_score(box), result


def _shown(result: ExecResult) -> str:
    return (result.stdout + result.stderr)[-_SHOWN:].decode(errors="replace")


def validate(task: Task, workspace: Files, backend: SandboxBackend, limits: Limits) -> Validation:
    """Score ``workspace`` by the task's hidden validator; never raises SandboxError."""
    started = time.monotonic()
    output, trouble = "", ""
    for _ in range(2):
        try:
            score, result = _attempt(task, workspace, backend, limits)
        except SandboxError as error:
            trouble = str(error)
            continue
        trouble = ""
        spent = time.monotonic() - started
        if result is None:
            return Validation(0.0, "workspace too large", spent)
        output = _shown(result)
        if result.timed_out:
            return Validation(0.0, "validator time limit", spent, output)
        if score is not None:
            return Validation(score, "", spent, output)
    if trouble:
        return Validation(None, trouble, time.monotonic() - started, output)
    return _blame(task, backend, limits, started, output)


def _blame(
    task: Task, backend: SandboxBackend, limits: Limits, started: float, output: str
) -> Validation:
    """The validator gave no score twice: is it the submission or the validator?"""
    try:
        control, _ = _attempt(task, task.workspace, backend, limits)
    except SandboxError as error:
        return Validation(None, str(error), time.monotonic() - started, output)
    spent = time.monotonic() - started
    if control is None:
        return Validation(None, "test.sh wrote no number in [0, 1]", spent, output)
    return Validation(0.0, "the submission broke the validator", spent, output)
