"""Runs a submission's functions in a process of their own; only plain data leaves it.

Standard input: {"module": path, "cases": [{"function", "args"}]}. Standard output: one JSON line
for each case, {"value", "args"} or {"error"}. Expected values never enter this process, so that
nothing in it can know what the grader compares with.
"""

# os.path is loaded anyway, pathlib is not, and this starts often.
from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # as typing has it, without loading typing
if TYPE_CHECKING:
    from typing import Any


def encode(value: Any, depth: int = 0) -> Any:
    """Plain data with its exact types as tagged JSON; TypeError for anything else."""
    kind = type(value)
    if depth > 20:
        raise TypeError("nested too deeply")
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind in (list, tuple):
        return {"list": [encode(x, depth + 1) for x in value]}
    if kind in (set, frozenset):
        return {"set": sorted((encode(x, depth + 1) for x in value), key=json.dumps)}
    if kind is dict:
        pairs = [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]
        return {"dict": sorted(pairs, key=json.dumps)}
    raise TypeError(f"{kind.__name__} is no plain data")


def decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    if tag == "float":
        return float(inner)
    if tag == "list":
        return [decode(x) for x in inner]
    if tag == "set":
        return {decode(x) for x in inner}
    return {decode(k): decode(v) for k, v in inner}


def main() -> None:
    job = json.load(sys.stdin)
    results = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    path = os.path.abspath(job["module"])
    sys.path[:0] = [os.path.dirname(path), os.getcwd()]
    name = os.path.splitext(os.path.basename(path))[0]
    sys.argv = [path]
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    with open(path, "rb") as handle:
        exec(compile(handle.read(), path, "exec"), module.__dict__)
    for case in job["cases"]:
        arguments = [decode(a) for a in case["args"]]
        try:
            value = encode(getattr(module, case["function"])(*arguments))
            line = {"value": value, "args": [encode(a) for a in arguments]}
        except Exception as error:
            line = {"error": type(error).__name__}
        results.write(json.dumps(line) + "\n")
        results.flush()


main()
