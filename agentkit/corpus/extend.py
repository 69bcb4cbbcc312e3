"""Layer: sources. Extend families: old behaviour still passes, new behaviour is checked.

What each trace shows: message 1 prints every file of the workspace and runs the old check, which
passes; message 2 edits; message 3 runs ``<old check> && <new check>``. So the initial contents,
the old behaviour before and after, and the new behaviour all stand in the trace. The new check is
the agent's own and no part of the wish.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from agentkit.corpus.scenario import (
    Call,
    Family,
    Scenario,
    bash,
    lines,
    pick,
    show,
    stem,
    wording,
    write,
)
from agentkit.corpus.words import (
    COLORS,
    FILE_STEMS,
    FUNCTIONS,
    NAMES,
    NOUNS,
    SECTIONS,
    SETTINGS,
    VERBS,
)


def _scenario(
    family: str,
    wish: str,
    files: dict[str, bytes],
    checks: tuple[str, str],
    edit: Call,
    printed: tuple[str, str],
) -> Scenario:
    old, new = checks
    turns = ((show(*sorted(files)), bash(old)), (edit,), (bash(f"{old} && {new}"),))
    return Scenario(family, "extend", wish, files, turns, "Added.", "\n".join(printed))


def add_function(rng: random.Random) -> Scenario:
    """One more arithmetic function at the end of a module; check.py covers the old one."""
    module = stem(rng, NOUNS, FILE_STEMS)
    old, new = pick(rng, FUNCTIONS, 2)
    x = rng.choice(["x", "n", "k", "value"])
    j, k, a, b, c = (rng.randint(2, 20) for _ in range(5))
    c += b
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
        "{path} also needs {new}({x}), which returns {x} {sign} {k}. Keep {old} working, "
        "see check.py.",
        "Extend {path}: {new}({x}) gives {x} {sign} {k}. Do not break check.py.",
        "Next to {old} I want {new}({x}) = {x} {sign} {k} in {path}. check.py must pass as before.",
        "Please append {new}({x}) to {path}; it returns {x} {sign} {k}. check.py tests the rest.",
    )
    wish = wording(
        rng, cores, new=new, old=old, x=x, sign=sign, k=k, path=f"{module}.py"
    )  # fmt: skip
    edit = bash(f"echo 'def {new}({x}): return {x} {sign} {k}' >> {module}.py")
    check = f"python3 -c 'from {module} import {new}; print({new}({b}), {new}({c}))'"
    printed = f"{compute(b)} {compute(c)}"
    return _scenario(
        "add_function", wish, files, ("python3 check.py", check), edit, (word, printed)
    )


def add_text_function(rng: random.Random) -> Scenario:
    """A string function added by writing the short module anew."""
    module = rng.choice(NOUNS)
    old, new = pick(rng, ["label", "title_of", "clean", "polish", "render", "tidy", "mark"], 2)
    x = rng.choice(["text", "word", "name"])
    options: list[tuple[str, Callable[[str], str]]] = [
        (".upper()", str.upper),
        (".lower()", str.lower),
        (".strip()", str.strip),
        (".title()", str.title),
        ("[::-1]", lambda s: s[::-1]),
    ]
    (old_code, old_do), (new_code, new_do) = pick(rng, options, 2)
    one, two = rng.choice(NAMES), rng.choice(NAMES) + " " + rng.choice(NOUNS)
    word = rng.choice(["ok", "passed", "good", "fine"])
    code = f"def {old}({x}):\n    return {x}{old_code}\n"
    files = {
        f"{module}.py": code.encode(),
        "check.py": lines(
            f"from {module} import {old}",
            f"assert {old}('{one}') == '{old_do(one)}'",
            f"print('{word}')",
        ),
    }
    cores = (
        "Add {new}({x}) to {path}, it returns {x}{new_code}. python3 check.py must still pass.",
        "Write a second function {new}({x}) in {path} that returns {x}{new_code}. Keep {old}.",
        "{path} has {old}. Put {new}({x}) below it, returning {x}{new_code}; check.py stays green.",
        "Please extend {path} by {new}({x}): return {x}{new_code}. {old} must not change.",
        "I also need {new}({x}) in {path}. It returns {x}{new_code}. check.py covers {old}.",
    )
    wish = wording(rng, cores, new=new, old=old, x=x, new_code=new_code, path=f"{module}.py")
    edit = write(f"{module}.py", f"{code}\ndef {new}({x}):\n    return {x}{new_code}\n")
    check = f"""python3 -c 'from {module} import {new}; print({new}("{two}"), {new}("{one}"))'"""
    printed = f"{new_do(two)} {new_do(one)}"
    checks = ("python3 check.py", check)
    return _scenario("add_text_function", wish, files, checks, edit, (word, printed))


def add_json_key(rng: random.Random) -> Scenario:
    """One more key in a JSON file that a script reads."""
    name = stem(rng, NOUNS, FILE_STEMS)
    keys = pick(rng, SETTINGS, rng.randint(2, 3))
    *old, new = keys
    values = pick(rng, range(2, 99), len(keys))
    rows = [f'"{k}": {v}' for k, v in zip(old, values, strict=False)]
    script = rng.choice(["get.py", "read.py", "show.py", "value.py"])
    files = {
        f"{name}.json": lines("{", ",\n".join(rows), "}"),
        script: lines("import json, sys", f"print(json.load(open('{name}.json'))[sys.argv[1]])"),
    }
    cores = (
        "Add the key {new} with the value {value} to {path}. The other keys must stay.",
        "{path} needs one more key: {new} is {value}. python3 {script} {old} must work as before.",
        "Put {new} = {value} into {path}, keep what is there.",
        "Please extend {path} by {new}, value {value}. {script} reads this file.",
        "Set a new key {new} to {value} in {path} so that python3 {script} {new} prints it.",
    )
    wish = wording(
        rng, cores, new=new, value=values[-1], path=f"{name}.json", script=script, old=old[0]
    )
    edit = bash(f"sed -i '1a \"{new}\": {values[-1]},' {name}.json")
    checks = (f"python3 {script} {old[0]}", f"python3 {script} {new}")
    return _scenario("add_json_key", wish, files, checks, edit, (str(values[0]), str(values[-1])))


def add_ini_option(rng: random.Random) -> Scenario:
    """One more option at the end of an INI file; get.sh looks options up."""
    name, section = rng.choice(NOUNS), rng.choice(SECTIONS)
    keys = pick(rng, SETTINGS, rng.randint(3, 4))
    values = [rng.choice(NOUNS) if rng.random() < 0.5 else str(rng.randint(2, 99)) for _ in keys]
    *old, new = keys
    rows = [f"{k} = {v}" for k, v in zip(old, values, strict=False)]
    script = rng.choice(["get.sh", "look.sh", "find.sh", "opt.sh"])
    files = {
        f"{name}.ini": lines(f"[{section}]", *rows),
        script: lines(f'grep "^$1 = " {name}.ini'),
    }
    cores = (
        "Add the option {new} = {value} to {path}.",
        "{path} lacks the option {new}. Append it with the value {value}, keep the others.",
        "Please extend {path}: {new} = {value}. bash {script} {old} must work as before.",
        "I want bash {script} {new} to find {new} = {value} in {path}. Add it.",
        "Put {new} = {value} at the end of {path}, all other options stay.",
    )
    wish = wording(
        rng, cores, new=new, value=values[-1], path=f"{name}.ini", script=script, old=old[0]
    )
    edit = bash(f"echo '{new} = {values[-1]}' >> {name}.ini")
    checks = (f"bash {script} {old[0]}", f"bash {script} {new}")
    return _scenario(
        "add_ini_option", wish, files, checks, edit, (rows[0], f"{new} = {values[-1]}")
    )


def add_csv_row(rng: random.Random) -> Scenario:
    """One more row in a CSV file; a script looks rows up by their first field."""
    name = stem(rng, NOUNS, FILE_STEMS)
    names = pick(rng, NOUNS, rng.randint(3, 5))
    values = pick(rng, range(2, 99), len(names))
    rows = [f"{n},{v}" for n, v in zip(names, values, strict=True)]
    header = rng.choice(["item,price", "name,count", "thing,size", "product,points"])
    script = rng.choice(["look.sh", "row.sh", "find.sh", "query.sh"])
    files = {
        f"{name}.csv": lines(header, *rows[:-1]),
        script: lines(f'grep "^$1," {name}.csv'),
    }
    cores = (
        "Add the row {row} to {path}.",
        "{path} needs one more row at the end: {row}. The other rows stay.",
        "Please append {row} to {path}. bash {script} {old} must work as before.",
        "Put a row for {new} into {path}, with {value}: {row}.",
        "bash {script} {new} should find {row} in {path}. Add that row.",
    )
    wish = wording(
        rng, cores, row=rows[-1], path=f"{name}.csv", script=script, old=names[0],
        new=names[-1], value=values[-1],
    )  # fmt: skip
    edit = bash(f"echo '{rows[-1]}' >> {name}.csv")
    checks = (f"bash {script} {names[0]}", f"bash {script} {names[-1]}")
    return _scenario("add_csv_row", wish, files, checks, edit, (rows[0], rows[-1]))


def add_case(rng: random.Random) -> Scenario:
    """One more branch in a shell script's case statement."""
    script = stem(rng, NOUNS, FILE_STEMS)
    old, new = pick(rng, VERBS, 2)
    says = pick(rng, NOUNS, 2)
    other = rng.choice(["unknown", "what", "no such command", "usage error"])
    files = {
        f"{script}.sh": lines(
            "case $1 in", f"{old}) echo {says[0]};;", f"*) echo {other}; exit 1;;", "esac"
        )
    }
    cores = (
        "Add the command {new} to {path}: it prints {says}. {old} must work as before.",
        "{path} knows {old}. Teach it {new} as well, which prints {says}.",
        "Please extend {path} so that bash {path} {new} prints {says}.",
        "One more case in {path}: for {new}, echo {says}. Keep {old}.",
        "bash {path} {new} should say {says}. Add that case and leave {old} alone.",
    )
    wish = wording(rng, cores, new=new, old=old, says=says[1], path=f"{script}.sh")
    edit = bash(f"sed -i '2i {new}) echo {says[1]};;' {script}.sh")
    checks = (f"bash {script}.sh {old}", f"bash {script}.sh {new}")
    return _scenario("add_case", wish, files, checks, edit, (says[0], says[1]))


def add_shell_function(rng: random.Random) -> Scenario:
    """One more function in a shell library."""
    library = rng.choice(NOUNS)
    old, new = pick(rng, [f"{v}_{n}" for v in ("say", "do", "run") for n in pick(rng, NOUNS, 4)], 2)
    first, second = pick(rng, ["hello", "goodbye", "welcome", "dear", "thanks", "found", "new"], 2)
    one, two = pick(rng, NAMES, 2)
    files = {f"{library}.sh": lines(f"{old}() {{ echo {first} $1; }}")}
    cores = (
        "Add a function {new} to {path} that prints {second} and its first argument.",
        "{path} is a bash library. It also needs {new}, which echoes {second} and $1. Keep {old}.",
        "Please extend {path} by the shell function {new}: echo {second} $1.",
        "Like {old} in {path}, but with the word {second}: write {new}.",
        "I need {new} in {path}. It should echo {second} $1, and {old} must still work.",
    )
    wish = wording(rng, cores, new=new, old=old, second=second, path=f"{library}.sh")
    edit = bash(f"echo '{new}() {{ echo {second} $1; }}' >> {library}.sh")
    checks = (f". ./{library}.sh && {old} {one}", f"{new} {two}")
    printed = (f"{first} {one}", f"{second} {two}")
    return _scenario("add_shell_function", wish, files, checks, edit, printed)


def add_constant(rng: random.Random) -> Scenario:
    """One more constant in a Python module."""
    module = stem(rng, NOUNS, FILE_STEMS)
    keys = [k.upper() for k in pick(rng, SETTINGS, rng.randint(2, 4))]
    values = [str(rng.randint(2, 99)) if rng.random() < 0.6 else f'"{rng.choice(COLORS)}"']
    values = [values[0], *(str(v) for v in pick(rng, range(2, 99), len(keys) - 1))]
    *old, new = keys
    value = values.pop(0)
    files = {f"{module}.py": lines(*(f"{k} = {v}" for k, v in zip(old, values, strict=True)))}
    cores = (
        "Add the constant {new} = {value} to {path}.",
        "{path} needs one more constant, {new}, with the value {value}. {old} stays as it is.",
        "Please define {new} = {value} in {path} as well.",
        "Extend {path} by {new}, which is {value}. Do not change {old}.",
        "Below {old} in {path} I want {new} = {value}.",
    )
    wish = wording(rng, cores, new=new, value=value, old=old[0], path=f"{module}.py")
    edit = bash(f"echo '{new} = {value}' >> {module}.py")
    checks = tuple(f"python3 -c 'import {module}; print({module}.{k})'" for k in (old[0], new))
    printed = (values[0], value.strip('"'))
    return _scenario("add_constant", wish, files, (checks[0], checks[1]), edit, printed)


FAMILIES: tuple[Family, ...] = (
    add_function, add_text_function, add_json_key, add_ini_option, add_csv_row, add_case,
    add_shell_function, add_constant,
)  # fmt: skip
