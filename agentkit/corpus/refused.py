"""Layer: sources. Sessions from which no task can be made, as real traces have them.

Each states in ``refusal`` why synthesis has to refuse it. Near-duplicate sessions are no family of
their own: ``generate`` makes them from good scenarios.
"""

from __future__ import annotations

import random
from dataclasses import replace

from agentkit.corpus import build, qa, repair
from agentkit.corpus.scenario import Family, Scenario, bash, lines, pick, show, stem, wording, write
from agentkit.corpus.words import FILE_STEMS, FUNCTIONS, NAMES, NOUNS, VARIABLES


def chat_only(rng: random.Random) -> Scenario:
    """A question of general knowledge, answered in words."""
    wish, answer = rng.choice(
        [
            ("What does chmod +x do?", "It makes a file executable."),
            ("How do I see hidden files?", "Use ls -a."),
            ("What is the difference between a list and a tuple?", "A tuple cannot be changed."),
            ("Which command shows the current folder?", "pwd prints it."),
            ("What does git stash do?", "It puts your changes aside."),
            ("How do I leave vim?", "Press Escape, then type :q!"),
            ("What does the -r flag of cp mean?", "It copies folders with all that is in them."),
            ("Is Python compiled or interpreted?", "Both: to bytecode, which is interpreted."),
            ("What is a shebang line?", "The first line of a script; it names the interpreter."),
            ("How can I stop a running program?", "Press Ctrl-C."),
            ("What does set -e do in bash?", "It ends the script at the first error."),
            ("What is the use of __init__.py?", "It marks a folder as a Python package."),
        ]
    )
    wish = wording(rng, (wish,))
    return Scenario("chat_only", "qa", wish, {}, (), answer, None, "no call at all")


def never_passes(rng: random.Random) -> Scenario:
    """The check fails, a wrong edit follows, the same check fails again."""
    good = repair.name_typo(rng)
    (printing, failing), _ = good.turns
    path = sorted(good.files)[0]
    comment = bash(f"sed -i '$a # {' '.join(pick(rng, NOUNS, 2))}' {path}")
    turns = ((printing, failing), (comment,), (failing,))
    return replace(
        good,
        family="never_passes",
        turns=turns,
        final="I could not fix it.",
        expected=None,
        refusal="the check never passes",
    )


def unchecked_edit(rng: random.Random) -> Scenario:
    """A file is shown and edited, and nothing is run."""
    path = f"{stem(rng, NOUNS, FILE_STEMS)}.py"
    old, new = pick(rng, FUNCTIONS, 2)
    k = rng.randint(2, 60)
    cores = (
        "Rename {old} to {new} in {path}.",
        "In {path} the function {old} should be called {new}.",
        "Please give {old} in {path} the name {new}.",
    )
    return Scenario(
        "unchecked_edit",
        "extend",
        wording(rng, cores, old=old, new=new, path=path),
        {path: lines(f"def {old}(x):", f"    return x + {k}")},
        ((show(path),), (bash(f"sed -i 's/{old}/{new}/' {path}"),)),
        "Renamed.",
        None,
        "an edit without a check",
    )


def answered_in_words(rng: random.Random) -> Scenario:
    """A question on the workspace that is answered in the last message only."""
    good = rng.choice(qa.FAMILIES)(rng)
    question = good.wish.rsplit("answer.txt", 1)[0]
    question = next(q for q in _cut(question) if q)
    return replace(
        good,
        family="answered_in_words",
        wish=question,
        turns=good.turns[:1],
        final=f"It is {good.expected}.",
        expected=None,
        refusal="the answer is not computed",
    )


def _cut(question: str) -> tuple[str, ...]:
    """The question without the half sentence that names answer.txt."""
    ends = [ending.split("{thing}")[0] for ending in qa.ENDINGS if not ending.startswith("The ")]
    positions = [question.rfind(end) for end in [*ends, "The "] if question.rfind(end) > 0]
    return (question[: max(positions)].strip() if positions else "", question.strip())


def passes_before(rng: random.Random) -> Scenario:
    """A rewrite whose check passed before as well: the untouched workspace is no failure."""
    path = f"{stem(rng, NOUNS, FILE_STEMS)}.py"
    first, second = pick(rng, VARIABLES, 2)
    a, b = pick(rng, range(2, 99), 2)
    cores = (
        "Rename the variable {first} to {second} in {path}. It must print the same.",
        "In {path} I would rather read {second} than {first}. The output stays as it is.",
        "Tidy {path}: call the variable {second} and not {first}.",
    )
    check = bash(f"python3 {path}")
    return Scenario(
        "passes_before",
        "repair",
        wording(rng, cores, first=first, second=second, path=path),
        {path: lines(f"{first} = {a} + {b}", f"print({first})")},
        ((show(path), check), (bash(f"sed -i 's/{first}/{second}/' {path} && python3 {path}"),)),
        "Done.",
        str(a + b),
        "the untouched workspace passes",
    )


def flaky(rng: random.Random) -> Scenario:
    """A check whose output differs at every run; the recorder writes a fixed number for it."""
    path = f"{stem(rng, NOUNS, FILE_STEMS)}.py"
    fn, word = rng.choice(FUNCTIONS), rng.choice(NOUNS)
    cores = (
        "Create {path} with a function {fn}() that returns the current time in nanoseconds.",
        "Write {path}. {fn}() gives the time now, in nanoseconds.",
        "I need {path} with {fn}(), the nanoseconds since 1970.",
    )
    code = f"import time\ndef {fn}():\n    return time.time_ns()\n"
    check = f"python3 -c 'from {path[:-3]} import {fn}; print(\"{word}\", {fn}())'"
    return Scenario(
        "flaky",
        "build",
        wording(rng, cores, path=path, fn=fn),
        {},
        ((write(path, code),), (bash(check),)),
        "Done.",
        None,
        "the check's output changes from run to run",
    )


def needs_network(rng: random.Random) -> Scenario:
    """A check that asks a server, which exists while recording and in no fresh sandbox."""
    path = f"{stem(rng, NOUNS, FILE_STEMS)}.py"
    fn, page = rng.choice(["ping", "probe", "ask", "knock"]), rng.choice(NOUNS)
    cores = (
        "Create {path} with {fn}(), which returns the HTTP status of /{page} on 127.0.0.1:8000.",
        "Write {path}: {fn}() asks 127.0.0.1:8000 for /{page} and returns the status.",
        "I need {fn}() in {path}. It gives the HTTP status of http://127.0.0.1:8000/{page}.",
    )
    code = (
        "from http.client import HTTPConnection\n"
        f"def {fn}():\n"
        "    server = HTTPConnection('127.0.0.1', 8000)\n"
        f"    server.request('GET', '/{page}')\n"
        "    return server.getresponse().status\n"
    )
    check = f"python3 -c 'from {path[:-3]} import {fn}; print({fn}())'"
    return Scenario(
        "needs_network",
        "build",
        wording(rng, cores, path=path, fn=fn, page=page),
        {},
        ((write(path, code),), (bash(check),)),
        "Done.",
        None,
        "the check needs the network",
    )


def unchecked_build(rng: random.Random) -> Scenario:
    """A build whose check was never run."""
    good = rng.choice([build.arithmetic, build.constants])(rng)
    return replace(
        good,
        family="unchecked_build",
        turns=good.turns[:1],
        final=f"Written, {rng.choice(NAMES)} can try it.",
        expected=None,
        refusal="nothing was checked",
    )


FAMILIES: tuple[Family, ...] = (
    chat_only, never_passes, unchecked_edit, answered_in_words, passes_before, flaky,
    needs_network, unchecked_build,
)  # fmt: skip
