"""Layer: sources. Repair families: a check fails, one edit, the same check passes.

What each trace shows: message 1 prints every file of the workspace and runs the check, which
fails; message 2 edits one file in place and runs the same check, joined by ``&&``. So the initial
contents, the failing check, the edit and the passing check all stand in the trace.
"""

from __future__ import annotations

import random

from agentkit.corpus.scenario import (
    Family,
    Scenario,
    bash,
    lines,
    pick,
    show_all,
    stem,
    typo,
    wording,
)
from agentkit.corpus.words import FILE_STEMS, FUNCTIONS, NOUNS, SECTIONS, SETTINGS, VARIABLES

OPERATORS = {"+": "add", "-": "subtract", "*": "multiply"}


def _scenario(
    family: str, wish: str, files: dict[str, bytes], check: str, edit: str, expected: str
) -> Scenario:
    turns = (show_all(files), bash(check)), (bash(f"{edit} && {check}"),)
    return Scenario(family, "repair", wish, files, turns, "Fixed.", expected)


def name_typo(rng: random.Random) -> Scenario:
    """A NameError: one misspelt variable in a short script."""
    path = f"{stem(rng, NOUNS, FILE_STEMS)}.py"
    fn, argument = rng.choice(FUNCTIONS), rng.choice("nxk")
    first, second = pick(rng, VARIABLES, 2)
    one, two = pick(rng, NOUNS, 2)
    a, b, c = (rng.randint(2, 60) for _ in range(3))
    while True:
        bad = typo(rng, first)
        body, printed = rng.choice(
            [
                (
                    [
                        f"def {fn}({argument}):",
                        f"    {first} = {argument} + {a}",
                        f"    return {bad}",
                        "",
                        f"print({fn}({b}))",
                    ],
                    f"{a + b}",
                ),
                ([f"{first} = [{a}, {b}, {c}]", f"print(sum({bad}))"], f"{a + b + c}"),
                (
                    [f"{first} = '{one} {two}'", f"{second} = {bad}.upper()", f"print({second})"],
                    f"{one} {two}".upper(),
                ),
                ([f"{first} = {a}", f"{second} = {b}", f"print({bad} + {second})"], f"{a + b}"),
                (
                    [
                        f"{first} = 0",
                        f"for {argument} in [{a}, {b}]:",
                        f"    {first} += {argument}",
                        f"print('{one}', {bad})",
                    ],
                    f"{one} {a + b}",
                ),
            ]
        )
        if "\n".join(body).count(bad) == 1:
            break
    cores = (
        "Running python3 {path} fails with a NameError. Please fix it.",
        "{path} stops with a NameError, somebody misspelt a variable. Make python3 {path} run.",
        "There is a typo in {path}: a name is not defined. Correct it so that it runs.",
        "python3 {path} crashes because of a misspelt name. Find it and repair it.",
        "Can you repair {path}? It says that a name is not defined.",
        "A variable in {path} is written wrong in one place. Fix that, then run it with python3.",
    )
    edit = f"sed -i 's/{bad}/{first}/' {path}"
    wish = wording(rng, cores, path=path)
    return _scenario("name_typo", wish, {path: lines(*body)}, f"python3 {path}", edit, printed)


def wrong_operator(rng: random.Random) -> Scenario:
    """A function with the wrong arithmetic operator; check.py holds the assertions."""
    module = stem(rng, NOUNS, FILE_STEMS)
    fn = rng.choice(FUNCTIONS)
    x, y = rng.choice([("a", "b"), ("x", "y"), ("n", "m"), ("p", "q"), ("first", "second")])
    bad, good = rng.choice([("+", "-"), ("-", "+"), ("+", "*"), ("-", "*")])
    compute = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}[good]
    cases = [(rng.randint(4, 30), rng.randint(3, 9)) for _ in range(2)]
    code = lines(f"def {fn}({x}, {y}):", f"    return {x} {bad} {y}")
    asserts = [f"assert {fn}({a}, {b}) == {compute(a, b)}" for a, b in cases]
    word = rng.choice(["ok", "passed", "good", "fine"])
    check = lines(f"from {module} import {fn}", *asserts, f"print('{word}')")
    cores = (
        "{fn} in {path} should return {x} {good} {y}, but python3 check.py fails. Fix {path}.",
        "python3 check.py fails: {fn}({x}, {y}) must {verb} its arguments ({x} {good} {y}). "
        "The fault is in {path}.",
        "The function {fn} in {path} uses the wrong operator. It has to be {x} {good} {y}. "
        "Check with python3 check.py.",
        "Please repair {path} so that check.py passes. {fn} has to return {x} {good} {y}.",
        "check.py complains about {fn}. In {path} it must {verb}: {x} {good} {y}.",
    )
    path = f"{module}.py"
    wish = wording(rng, cores, fn=fn, path=path, x=x, y=y, good=good, verb=OPERATORS[good])
    edit = f"sed -i 's/{x} {bad} {y}/{x} {good} {y}/' {path}"
    files = {path: code, "check.py": check}
    return _scenario("wrong_operator", wish, files, "python3 check.py", edit, word)


def ini_value(rng: random.Random) -> Scenario:
    """A wrong value in an INI file; check.sh looks for the right line."""
    name, section = rng.choice(NOUNS), rng.choice(SECTIONS)
    keys = pick(rng, SETTINGS, rng.randint(2, 3))
    values = [str(v) for v in pick(rng, range(2, 99), len(keys) + 1)]
    key, good = keys[0], values[-1]
    rows = [f"{k} = {v}" for k, v in zip(keys, values, strict=False)]
    rng.shuffle(rows)
    word = rng.choice(["ok", "passed", "good", "fine"])
    files = {
        f"{name}.ini": lines(f"[{section}]", *rows),
        "check.sh": lines(
            f"grep -x '{key} = {good}' {name}.ini || {{ echo wrong {key}; exit 1; }}",
            f"echo {word}",
        ),
    }
    cores = (
        "In {path} {key} has to be {good}. bash check.sh fails until then. Fix it.",
        "bash check.sh fails: set {key} to {good} in {path}.",
        "The value of {key} in {path} is wrong, it should be {good}. Verify with bash check.sh.",
        "Please correct {path}: {key} = {good}. check.sh must pass.",
        "check.sh says wrong {key}. The right value is {good}, the file is {path}.",
    )
    wish = wording(rng, cores, path=f"{name}.ini", key=key, good=good)
    edit = f"sed -i 's/^{key} = .*/{key} = {good}/' {name}.ini"
    return _scenario("ini_value", wish, files, "bash check.sh", edit, f"{key} = {good}\n{word}")


FAMILIES: tuple[Family, ...] = (name_typo, wrong_operator, ini_value)
