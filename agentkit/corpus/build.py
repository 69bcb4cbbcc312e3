"""Layer: sources. Build families: files made from nothing, with a passing check at the end.

What each trace shows: message 1 writes the file with the harness's ``write`` tool; message 2 runs
a check whose output depends on what the file does. The workspace is empty before. The check is the
agent's own and no part of the wish, so a validator made from it stays hidden.
"""

from __future__ import annotations

import random

from agentkit.corpus.scenario import Family, Scenario, bash, pick, stem, wording, write
from agentkit.corpus.words import COLORS, FILE_STEMS, FUNCTIONS, NOUNS


def _scenario(
    family: str, wish: str, path: str, content: str, check: str, expected: str
) -> Scenario:
    turns = ((write(path, content),), (bash(check),))
    return Scenario(family, "build", wish, {}, turns, "Done.", expected)


def arithmetic(rng: random.Random) -> Scenario:
    """A one-line function on one number."""
    module, fn = stem(rng, NOUNS, FILE_STEMS), rng.choice(FUNCTIONS)
    x = rng.choice(["x", "n", "k", "value", "number"])
    k, a, b = rng.randint(2, 30), 3, 10
    sign, compute = rng.choice(
        [("+", lambda v: v + k), ("-", lambda v: v - k), ("*", lambda v: v * k)]
    )
    cores = (
        "Create {path} with a function {fn}({x}) that returns {x} {sign} {k}.",
        "Write a module {path}. It needs one function, {fn}({x}), which returns {x} {sign} {k}.",
        "I need {path} with {fn}({x}) = {x} {sign} {k}.",
        "Make a new file {path}: the function {fn} takes {x} and returns {x} {sign} {k}.",
        "Please add a Python file {path} that defines {fn}({x}), returning {x} {sign} {k}.",
        "{path} does not exist yet. Write it with a function {fn}({x}) giving {x} {sign} {k}.",
    )
    wish = wording(rng, cores, path=f"{module}.py", fn=fn, x=x, sign=sign, k=k)
    code = f"def {fn}({x}):\n    return {x} {sign} {k}\n"
    check = f"python3 -c 'from {module} import {fn}; print({fn}({a}), {fn}({b}))'"
    return _scenario("arithmetic", wish, f"{module}.py", code, check, f"{compute(a)} {compute(b)}")


def csv_file(rng: random.Random) -> Scenario:
    """A CSV file with a header and two rows."""
    name = stem(rng, NOUNS, FILE_STEMS)
    one, two = pick(rng, NOUNS, 2)
    a, b = pick(rng, range(2, 99), 2)
    left = rng.choice(["item", "name", "product", "thing", "title"])
    right = rng.choice(["price", "count", "size", "weight", "points"])
    cores = (
        "Create {path} with the header {left},{right} and the rows {one},{a} and {two},{b}.",
        "Write a CSV file {path}. Header: {left},{right}. Rows: {one},{a} and {two},{b}.",
        "I need {path} with columns {left} and {right}; first row {one},{a}, second {two},{b}.",
        "Make {path}: the first line is {left},{right}, then {one},{a}, then {two},{b}.",
        "Please put {one},{a} and {two},{b} under the header {left},{right} in {path}.",
    )
    path = f"{name}.csv"
    wish = wording(rng, cores, path=path, left=left, right=right, one=one, two=two, a=a, b=b)
    rows = [f"{left},{right}", f"{one},{a}", f"{two},{b}"]
    return _scenario("csv_file", wish, path, "\n".join(rows) + "\n", f"cat {path}", "\n".join(rows))


def constants(rng: random.Random) -> Scenario:
    """A Python module that holds one dictionary."""
    module = stem(rng, NOUNS, FILE_STEMS)
    name = rng.choice(FILE_STEMS)
    one, two = pick(rng, COLORS + NOUNS[:40], 2)
    a, b = pick(rng, range(2, 99), 2)
    cores = (
        "Create {path} with a dict {name} that maps '{one}' to {a} and '{two}' to {b}.",
        "Write {path}: a dictionary {name} with '{one}': {a} and '{two}': {b}.",
        "I need a module {path} with {name}, a dict where '{one}' is {a} and '{two}' is {b}.",
        "Make {path}. It defines {name}, the keys are '{one}' ({a}) and '{two}' ({b}).",
        "Please put a dict {name} in the new file {path}: '{one}' gives {a}, '{two}' gives {b}.",
    )
    path = f"{module}.py"
    wish = wording(rng, cores, path=path, name=name, one=one, two=two, a=a, b=b)
    code = f"{name} = {{'{one}': {a}, '{two}': {b}}}\n"
    check = f"python3 -c 'from {module} import {name}; print(sorted({name}.items()))'"
    printed = str(sorted({one: a, two: b}.items()))
    return _scenario("constants", wish, path, code, check, printed)


FAMILIES: tuple[Family, ...] = (arithmetic, csv_file, constants)
