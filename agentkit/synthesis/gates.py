"""Layer: sources. Execution gates: a task stays only if it can be solved and not be had for free.

Every validation runs in a fresh sandbox without a network. Gates, each repeated: the reference
solution passes; the untouched workspace fails; an empty answer (every file that the reference
creates or changes, emptied) fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentkit.synthesis.executor import Executor
from agentkit.types import Files, Task

SOLVE_TIMEOUT_S = 30.0
Validate = Callable[[Task, Files], float | None]
"""Run a task's hidden tests on a workspace in a fresh sandbox; None where the validator broke."""

GATES = ("reference passes", "untouched fails", "empty fails")


@dataclass
class GateReport:
    """Outcomes by gate: the scores of every repeat, and the first fault."""

    scores: dict[str, list[float | None]] = field(default_factory=dict)
    fault: str = ""

    @property
    def passed(self) -> bool:
        return not self.fault


class SolutionFailed(Exception):
    """``solve.sh`` did not run to its end."""


def reference_workspace(task: Task, executor: Executor) -> Files:
    """The workspace after ``solution/solve.sh`` in a fresh sandbox. Raises SolutionFailed."""
    with executor() as box:
        if task.workspace:
            box.put(task.workspace)
        box.put(task.solution, to="/solution")
        done = box.exec(
            ["bash", "/solution/solve.sh"],
            timeout_s=SOLVE_TIMEOUT_S,
            env={"PYTHONDONTWRITEBYTECODE": "1"},
        )
        if done.exit_status is None:
            raise SolutionFailed(f"no end within {SOLVE_TIMEOUT_S:g} s")
        return {p: d for p, d in box.get().items() if "__pycache__" not in p}


def empty_answer(task: Task, solved: Files) -> Files:
    """The workspace with every file that the reference creates or changes emptied."""
    changed = [p for p, d in solved.items() if task.workspace.get(p) != d]
    return {**task.workspace, **dict.fromkeys(changed, b"")}


def run_gates(task: Task, executor: Executor, validate: Validate, repeats: int = 2) -> GateReport:
    """All gates ``repeats`` times; stops at the first fault.

    The solution runs once here, in a sandbox of its own; the replay that gave the expected results
    was another run of the same edits, so that one which works only at times is caught.
    """
    report = GateReport()
    try:
        solved = reference_workspace(task, executor)
    except SolutionFailed as error:
        report.fault = f"reference does not run: {error}"
        return report
    if solved == task.workspace:
        report.fault = "reference changes nothing"
        return report
    workspaces = (solved, task.workspace, empty_answer(task, solved))
    for turn in range(repeats):
        for gate, workspace, wanted in zip(GATES, workspaces, (1.0, 0.0, 0.0), strict=True):
            score = validate(task, workspace)
            report.scores.setdefault(gate, []).append(score)
            if score != wanted:
                report.fault = _fault(gate, turn, score)
                return report
    return report


def _fault(gate: str, turn: int, score: float | None) -> str:
    if score is None:
        return f"validator broke ({gate})"
    words = {
        "reference passes": "reference fails",
        "untouched fails": "untouched workspace passes",
        "empty fails": "empty answer passes",
    }
    return words[gate] + (f" in repeat {turn + 1}" if turn else "")
