"""Layer: sources. Held-out inputs: variations of the inputs that a trace itself shows.

A variation keeps what an honest reader would take for granted: the type, the length of strings,
the place of upper and lower case, digits and punctuation, the sign of numbers. So a solution that
does what the instruction says gives the reference's result on it, and one that pasted the visible
results does not. Expected values are never written here: they come from running the reference.
"""

from __future__ import annotations

import ast
import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from agentkit.synthesis.shell import Simple, split_command
from agentkit.types import Files

MAX_CASES = 8
CODE_SUFFIXES = (
    ".py",
    ".sh",
    ".bash",
    ".js",
    ".ts",
    ".pl",
    ".rb",
    ".c",
    ".h",
    ".go",
    ".rs",
    ".awk",
)


def is_code(path: str) -> bool:
    return path.endswith(CODE_SUFFIXES) or path.rsplit("/", 1)[-1] in ("Makefile", "Dockerfile")


def defined_functions(source: str) -> dict[str, int]:
    """Top-level functions of a Python module -> number of positional parameters."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {
        n.name: len(n.args.args)
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and not n.args.kwonlyargs
    }


def example_calls(sources: Iterable[str], names: Iterable[str]) -> list[tuple[str, list[Any]]]:
    """(function, literal arguments) of every call of ``names`` in Python ``sources``, in order."""
    wanted, found = set(names), []
    for source in sources:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or node.keywords:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in wanted:
                try:
                    found.append((name, [ast.literal_eval(a) for a in node.args]))
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    continue
    return found


def vary(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind as ``value``."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _vary_int(value, rng)
    if isinstance(value, float):
        return round(value + (1 if value >= 0 else -1) * rng.choice([0.5, 1.25, 2.0]), 6)
    if isinstance(value, str):
        return vary_text(value, rng)
    if isinstance(value, list):
        items = [vary(v, rng) for v in value]
        return [*items, vary(rng.choice(items), rng)] if items and rng.random() < 0.5 else items
    if isinstance(value, tuple):
        return tuple(vary(v, rng) for v in value)
    if isinstance(value, dict):
        return {k: vary(v, rng) for k, v in value.items()}
    return value


def _vary_int(value: int, rng: random.Random) -> int:
    if value == 0:
        return rng.choice([0, 1, 2])
    size = max(1, abs(value) + rng.choice([-2, -1, 1, 2, 3, 7]))
    return size if value > 0 else -size


def vary_text(text: str, rng: random.Random) -> str:
    """Letters and digits replaced one by one, each by one of its own class; nothing moves."""
    return "".join(_vary_char(c, rng, first) for first, c in _with_first_digit(text))


def _with_first_digit(text: str) -> list[tuple[bool, str]]:
    """Whether each character is the leading digit of a number of two or more digits."""
    return [
        (
            c.isdigit()
            and not (i and (text[i - 1].isdigit() or text[i - 1] == "."))
            and text[i + 1 : i + 2].isdigit(),
            c,
        )
        for i, c in enumerate(text)
    ]


def _vary_char(char: str, rng: random.Random, leading: bool) -> str:
    if char in string.digits:
        return rng.choice("123456789" if leading or char != "0" else string.digits)
    if char in string.ascii_lowercase:
        return rng.choice(string.ascii_lowercase)
    if char in string.ascii_uppercase:
        return rng.choice(string.ascii_uppercase)
    return char


def vary_calls(
    examples: Sequence[tuple[str, list[Any]]], rng: random.Random, count: int = MAX_CASES
) -> list[tuple[str, list[Any]]]:
    """The examples and variations of them, without repeats, at most ``count`` for each function."""
    found: list[tuple[str, list[Any]]] = []
    for name in dict.fromkeys(n for n, _ in examples):
        mine = [args for n, args in examples if n == name]
        cases = [list(a) for a in mine[: count // 2]]
        for _ in range(4 * count):
            if len(cases) >= count:
                break
            case = [vary(a, rng) for a in rng.choice(mine)]
            if case not in cases:
                cases.append(case)
        found += [(name, case) for case in cases]
    return found


def encode(value: Any) -> Any:
    """Tagged JSON of plain data, as ``guest/calls.py`` reads it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, list | tuple):
        return {"list": [encode(v) for v in value]}
    if isinstance(value, set | frozenset):
        return {"set": [encode(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    raise TypeError(f"{type(value).__name__} is no plain data")


def vary_data(files: Files, paths: Iterable[str], rng: random.Random) -> dict[str, str]:
    """Data files with their numbers changed: path -> text; files without numbers are left out."""
    changed = {}
    for path in sorted(paths):
        if is_code(path) or len(files[path]) > 65536:
            continue
        try:
            text = files[path].decode()
        except UnicodeDecodeError:
            continue
        new = re.sub(r"(?<![\w.])\d+(?![\w])", lambda m: vary_text(m[0], rng), text)
        if new != text:
            changed[path] = new
    return changed


def vary_literals(before: bytes, after: bytes, rng: random.Random) -> dict[str, str]:
    """Numbers and quoted words that a repair left alone -> others of their kind.

    A repaired program still computes from its own literals: with these exchanged in its source, an
    honest repair gives what the reference gives, and one that prints the seen result does not.
    """
    literal = re.compile(r"(?<![\w.])\d+(?![\w.])|(?<=['\"])[A-Za-z]{3,}(?=['\" ])")
    texts = (before.decode(errors="replace"), after.decode(errors="replace"))
    counts = [Counter(literal.findall(t)) for t in texts]
    same = sorted(w for w in counts[0] if counts[0][w] == counts[1][w])
    words = {w: str(_vary_int(int(w), rng)) if w.isdigit() else vary_text(w, rng) for w in same}
    return {w: new for w, new in words.items() if new != w}


def vary_arguments(command: str, files: Files, rng: random.Random) -> str | None:
    """``command`` with its plain arguments changed; None where it has none.

    Plain arguments are words and numbers given to a script or shell function of the workspace, or
    to ``seq`` and ``echo``. Names of files, options, code and expansions stay as they are.
    """
    simples = split_command(command)
    words: dict[str, str] = {}
    for simple in simples or ():
        for word in _plain_arguments(simple, files):
            new = str(_vary_int(int(word), rng)) if word.isdigit() else vary_text(word, rng)
            words.setdefault(word, new)
    if not words:
        return None
    # Longest first, so that one argument that is a part of another cannot split it.
    names = "|".join(re.escape(w) for w in sorted(words, key=len, reverse=True))
    pattern = rf"(?<![\w./'\"=-])({names})(?![\w./'\"=-])"
    changed = re.sub(pattern, lambda m: words[m[1]], command)
    return changed if changed != command else None


def _plain_arguments(simple: Simple, files: Files) -> list[str]:
    if not simple.literal or not simple.words:
        return []
    name, rest = simple.words[0], simple.words[1:]
    if name in ("bash", "sh", "python3") and rest[:1] and rest[0] in files:
        rest = rest[1:]
    elif not (name in ("seq", "echo") or name.startswith("./") or _is_function(name, files)):
        return []
    return [w for w in rest if re.fullmatch(r"[A-Za-z]{2,}|\d{1,4}", w) and w not in files]


def _is_function(name: str, files: Files) -> bool:
    pattern = re.compile(rf"^\s*(?:function\s+)?{re.escape(name)}\s*\(\)", re.MULTILINE)
    scripts = (d.decode(errors="replace") for p, d in files.items() if p.endswith((".sh", ".bash")))
    return any(pattern.search(text) for text in scripts)
