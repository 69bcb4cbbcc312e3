"""Layer: sources. Extend families: old behaviour still passes, new behaviour is checked.

What each trace shows: message 1 prints every file of the workspace and runs the old check, which
passes; message 2 is ``<edit> && <old check> && <new check>``. So the initial contents, the old
behaviour before and after, and the new behaviour all stand in the trace. The new check is the
agent's own and no part of the wish.
"""

from __future__ import annotations

import random

from agentkit.corpus.scenario import Family, Scenario, bash, lines, pick, show_all, stem, wording
from agentkit.corpus.words import COLORS, FILE_STEMS, FUNCTIONS, NOUNS, SETTINGS
from agentkit.types import Files


def _scenario(
    family: str,
    wish: str,
    files: Files,
    checks: tuple[str, str],
    edit: str,
    printed: tuple[str, str],
) -> Scenario:
    old, new = checks
    turns = ((show_all(files), bash(old)), (bash(f"{edit} && {old} && {new}"),))
    return Scenario(family, "extend", wish, files, turns, "Added.", "\n".join(printed))


def add_function(rng: random.Random) -> Scenario:
    """One more arithmetic function at the end of a module; check.py covers the old one."""
    module = stem(rng, NOUNS, FILE_STEMS)
    old, new = pick(rng, FUNCTIONS, 2)
    x = rng.choice(["x", "n", "k", "value"])
    j, k, a = (rng.randint(2, 20) for _ in range(3))
    b, c = 3, 10
    sign, compute = rng.choice(
        [("+", lambda v: v + k), ("-", lambda v: v - k), ("*", lambda v: v * k)]
    )
    word = rng.choice(["ok", "passed", "good", "fine"])
    files = {
        f"{module}.py": lines(f"def {old}({x}):", f"    return {x} + {j}"),
        "check.py": lines(
            f"from {module} import {old}", f"assert {old}({a}) == {a + j}", f"print('{word}')"
        ),
    }
    cores = (
        "Add a function {new}({x}) to {path} that returns {x} {sign} {k}. "
        "python3 check.py must still pass.",
        "{path} also needs {new}({x}), which returns {x} {sign} {k}. Keep {old} and check.py "
        "working.",
        "Extend {path}: {new}({x}) gives {x} {sign} {k}. Do not break check.py.",
        "Next to {old} I want {new}({x}) = {x} {sign} {k} in {path}. check.py must pass as before.",
        "Please append {new}({x}) to {path}; it returns {x} {sign} {k}. check.py tests the rest.",
    )
    wish = wording(
        rng, cores, new=new, old=old, x=x, sign=sign, k=k, path=f"{module}.py"
    )  # fmt: skip
    edit = f"echo 'def {new}({x}): return {x} {sign} {k}' >> {module}.py"
    check = f"python3 -c 'from {module} import {new}; print({new}({b}), {new}({c}))'"
    printed = f"{compute(b)} {compute(c)}"
    return _scenario(
        "add_function", wish, files, ("python3 check.py", check), edit, (word, printed)
    )


def add_csv_row(rng: random.Random) -> Scenario:
    """One more row in a CSV file; check.sh looks for an old one."""
    name = stem(rng, NOUNS, FILE_STEMS)
    names = pick(rng, NOUNS, rng.randint(3, 5))
    values = pick(rng, range(2, 99), len(names))
    rows = [f"{n},{v}" for n, v in zip(names, values, strict=True)]
    header = rng.choice(["item,price", "name,count", "thing,size", "product,points"])
    path, old = f"{name}.csv", rng.choice(rows[:-1])
    files = {"check.sh": lines(f"grep -x '{old}' {path}"), path: lines(header, *rows[:-1])}
    cores = (
        "Add the row {row} to {path}. bash check.sh must still pass.",
        "{path} needs one more row at the end: {row}. Keep check.sh working.",
        "Please append {row} to {path}. Do not break check.sh.",
        "Put {row} below the other rows of {path}; bash check.sh tests the rest.",
        "The row {row} is missing in {path}. Add it, check.sh has to pass as before.",
    )
    wish = wording(rng, cores, row=rows[-1], path=path)
    edit, check = f"echo '{rows[-1]}' >> {path}", f"tail -n 1 {path}"
    return _scenario("add_csv_row", wish, files, ("bash check.sh", check), edit, (old, rows[-1]))


def add_constant(rng: random.Random) -> Scenario:
    """One more constant in a Python module; check.py covers an old one."""
    module = stem(rng, NOUNS, FILE_STEMS)
    keys = [k.upper() for k in pick(rng, SETTINGS, rng.randint(2, 4))]
    values = [str(v) for v in pick(rng, range(2, 99), len(keys) - 1)]
    values.append(str(rng.randint(2, 99)) if rng.random() < 0.6 else f'"{rng.choice(COLORS)}"')
    rows = [f"{k} = {v}" for k, v in zip(keys, values, strict=True)]
    old, word = keys[0], rng.choice(["ok", "passed", "good", "fine"])
    files = {
        "check.py": lines(
            f"from {module} import {old}", f"assert {old} == {values[0]}", f"print('{word}')"
        ),
        f"{module}.py": lines(*rows[:-1]),
    }
    cores = (
        "Add the constant {row} to {path}. python3 check.py must still pass.",
        "{path} needs one more constant, {row}. Keep check.py working.",
        "Please define {row} in {path} as well. Do not break check.py.",
        "Extend {path} by {row}; python3 check.py tests the rest.",
        "Below {old} in {path} I want {row}. check.py has to pass as before.",
    )
    wish = wording(rng, cores, row=rows[-1], old=old, path=f"{module}.py")
    edit = f"echo '{rows[-1]}' >> {module}.py"
    checks = ("python3 check.py", f"python3 -c 'import {module}; print({module}.{keys[-1]})'")
    return _scenario("add_constant", wish, files, checks, edit, (word, values[-1].strip('"')))


FAMILIES: tuple[Family, ...] = (add_function, add_csv_row, add_constant)
