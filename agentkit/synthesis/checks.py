"""Layer: sources. The hidden validator's checks, and their expected results.

Checks are data (``tests/spec.json``) for ``guest/check.py``: ``run`` a command and compare exit
status and output, ``calls`` of functions with held-out arguments, ``answer`` recomputed. What is
expected is what that same program observes on the reference's workspace.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

from agentkit.synthesis import heldout
from agentkit.synthesis.executor import Box, guest_source
from agentkit.synthesis.shell import split_command
from agentkit.synthesis.units import TEST_NAME, Unit
from agentkit.types import Files

CHECK_TIMEOUT_S = 5.0
Check = dict[str, Any]


class NotBuilt(Exception):
    """A unit that gives no fair task; ``category`` can be counted."""

    def __init__(self, category: str, detail: str = "") -> None:
        self.category = category
        super().__init__(f"{category}: {detail}" if detail else category)


def candidate_checks(unit: Unit, kept: Files, rng: random.Random) -> list[Check]:
    """All checks worth recording; those that the reference does not carry are dropped later."""
    restore = sorted(kept)
    if unit.kind == "qa":
        return [
            {
                "type": "answer",
                "path": unit.answer_path,
                "command": unit.checks[0],
                "restore": restore,
            }
        ]
    checks: list[Check] = [
        {"type": "run", "command": c, "restore": restore} for c in (*unit.checks, *unit.old_checks)
    ]
    for command in unit.checks:
        varied = heldout.vary_arguments(command, unit.replay.final, rng)
        if varied:
            checks.append({"type": "run", "command": varied, "restore": restore, "optional": True})
    data = heldout.vary_data(kept, [p for p in kept if not TEST_NAME.search(p)], rng)
    if data:
        checks.append(
            {
                "type": "run",
                "command": unit.checks[0],
                "restore": restore,
                "variant": data,
                "optional": True,
            }
        )
    if unit.kind == "repair":
        initial, final = unit.replay.initial, unit.replay.final
        scripts = [p for p in unit.changed if p in initial and heldout.is_code(p)]
        words = {p: heldout.vary_literals(initial[p], final[p], rng) for p in scripts}
        if any(words.values()):
            checks.append(
                {
                    "type": "run",
                    "command": unit.checks[0],
                    "restore": restore,
                    "substitute": {p: w for p, w in words.items() if w},
                    "optional": True,
                }
            )
    return checks + _call_checks(unit, restore, rng)


def _call_checks(unit: Unit, restore: list[str], rng: random.Random) -> list[Check]:
    """Calls of the reference's functions with held-out arguments, where the trace shows any."""
    final = unit.replay.final
    sources = [*(_text(d) for p, d in final.items() if p.endswith(".py")), *_inline_code(unit)]
    sources += re.findall(r"\b[a-z_]\w*\([^()\n]*\)", " ".join(unit.replay.trajectory.wishes))
    checks = []
    for path in unit.changed:
        if not path.endswith(".py") or TEST_NAME.search(path):
            continue
        functions = heldout.defined_functions(_text(final[path]))
        examples = heldout.example_calls(sources, functions)
        cases = heldout.vary_calls(examples, rng)
        if cases:
            checks.append(
                {
                    "type": "calls",
                    "module": path,
                    "cases": [
                        {"function": f, "args": [heldout.encode(a) for a in args]}
                        for f, args in cases
                    ],
                    "restore": restore,
                    "optional": True,
                }
            )
    return checks


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _inline_code(unit: Unit) -> list[str]:
    """Python given on the command line (``python3 -c``) by any call of the trace."""
    found = []
    for effect in unit.replay.effects:
        for simple in split_command(effect.action.command) or ():
            if "-c" in simple.words[1:-1] and simple.words[0].startswith("python"):
                found.append(simple.words[simple.words.index("-c") + 1])
    return found


def tests_of(spec: dict[str, Any], kept: Files, limit_s: float) -> Files:
    """The ``tests`` folder of a task in Harbor's layout."""
    script = guest_source("test.sh").replace("@LIMIT@", f"{max(1.0, limit_s - 1.5):g}")
    files = {
        "test.sh": script.encode(),
        "check.py": guest_source("check.py").encode(),
        "calls.py": guest_source("calls.py").encode(),
        "spec.json": (json.dumps(spec, indent=1, sort_keys=True) + "\n").encode(),
    }
    return files | {f"files/{path}": data for path, data in kept.items()}


def record(unit: Unit, checks: list[Check], kept: Files, box: Box) -> list[Check]:
    """Fill in expected results by running the validator itself on the reference's workspace."""
    spec = {"version": 1, "timeout_s": CHECK_TIMEOUT_S, "checks": checks}
    box.put(tests_of(spec, kept, 60.0), to="/tests")
    done = box.exec(
        ["python3", "-I", "-S", "/tests/check.py", "--record"],
        timeout_s=CHECK_TIMEOUT_S * (len(checks) + 2),
    )
    if done.exit_status != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["time limit"]
        raise NotBuilt("recording the reference failed", last[0])
    found: list[Check] = []
    for check, seen in zip(checks, json.loads(done.stdout), strict=True):
        settled = _settle(unit, check, seen, found)
        if settled is not None:
            found.append(settled)
    return found


def _settle(unit: Unit, check: Check, seen: dict[str, Any], earlier: list[Check]) -> Check | None:
    """The check with its expected result; None drops an optional one that says nothing new."""
    optional = check.pop("optional", False)
    if check["type"] == "answer":
        if seen["exit"] != 0 or seen["recomputed"].strip() != unit.answer.strip():
            raise NotBuilt("the answer cannot be recomputed", check["command"][:80])
        return check
    if check["type"] == "calls":
        cases = [
            (case, result)
            for case, result in zip(check["cases"], seen["results"], strict=False)
            if isinstance(result, dict) and "value" in result
        ]
        if not cases:
            return None
        expected = [
            {k: r[k] for k in ("value", "args") if k == "value" or r["args"] != c["args"]}
            for c, r in cases
        ]
        return {**check, "cases": [c for c, _ in cases], "expected": {"results": expected}}
    if seen["exit"] != 0:
        if optional:
            return None
        raise NotBuilt("the check fails alone", check["command"][:80])
    expected_run = {"exit": 0, "stdout": seen["stdout"]}
    if not seen["stdout"].strip():
        expected_run["stderr"] = seen["stderr"]  # unittest reports there
    if optional and any(c.get("expected") == expected_run for c in earlier):
        return None
    return {**check, "expected": expected_run}
