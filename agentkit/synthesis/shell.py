"""Layer: sources. The part of shell grammar that is needed to know what a command shows.

Only flat command lines are understood: simple commands joined by ``;``, newline, ``&&``, ``||``
and ``|``, with quotes and redirections. Everything else (loops, here-documents, substitutions,
subshells) gives None: what such a command shows or writes is left to re-execution.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEYWORDS = frozenset(
    {"if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac"}
    | {"in", "{", "}", "!", "function", "select", "[[", "((", "time"}
)
OPERATORS = ("&&", "||", ">>", "2>&1", "&>", ";", "|", "&", ">", "<", "\n")


@dataclass
class Simple:
    """One simple command: words with quotes removed, redirections, and what joins it to the next.

    ``literal`` is False where a word needs expansion (variables, globs), so that its words are not
    what the program saw.
    """

    words: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    literal: bool = True
    joiner: str = ";"


def split_command(command: str) -> list[Simple] | None:
    """Simple commands of ``command`` in order, or None where it is not flat."""
    tokens = _tokens(command)
    return None if tokens is None else _group(tokens)


def _group(tokens: list[tuple[str, str, bool]]) -> list[Simple] | None:
    found: list[Simple] = []
    current = Simple()
    target: list[str] | None = None
    for kind, text, literal in tokens:
        if kind == "word":
            current.literal &= literal
            if target is not None:
                target.append(text)
                target = None
                continue
            if not current.words and text in KEYWORDS:
                return None
            current.words.append(text)
        elif target is not None:
            return None  # a redirection without its file
        elif text in (">", ">>", "&>"):
            target = current.outputs
        elif text == "<":
            target = current.inputs
        elif text == "&":
            return None
        elif text != "2>&1":
            if current.words or current.outputs:
                current.joiner = text
                found.append(current)
            elif text != "\n":
                return None
            current = Simple()
    if target is not None:
        return None
    if current.words or current.outputs:
        found.append(current)
    return found


def _tokens(command: str) -> list[tuple[str, str, bool]] | None:
    """(word | op, text, literal) triples, or None for grammar beyond a flat line."""
    tokens: list[tuple[str, str, bool]] = []
    at, size = 0, len(command)
    while at < size:
        char = command[at]
        if char in " \t\r":
            at += 1
        elif command.startswith("\\\n", at):
            at += 2
        elif char == "#":
            end = command.find("\n", at)
            at = size if end < 0 else end
        elif char in "()" or command.startswith("<<", at) or command.startswith("<(", at):
            return None
        elif operator := next((o for o in OPERATORS if command.startswith(o, at)), ""):
            tokens.append(("op", operator, True))
            at += len(operator)
        else:
            word = _word(command, at)
            if word is None:
                return None
            text, literal, at = word
            if text == "2" and at < size and command[at] == ">":
                # standard error to a file: the file is an output, the digit no word
                continue
            tokens.append(("word", text, literal))
    return tokens


def _word(command: str, at: int) -> tuple[str, bool, int] | None:
    """(text, literal, end) of the word that starts at ``at``; None where it does not end."""
    out: list[str] = []
    literal = True
    size = len(command)
    while at < size and command[at] not in " \t\r\n;|&<>()":
        char = command[at]
        if char == "\\" and at + 1 < size:
            out.append(command[at + 1])
            at += 2
        elif char == "'":
            end = command.find("'", at + 1)
            if end < 0:
                return None
            out.append(command[at + 1 : end])
            at = end + 1
        elif char == '"':
            quoted = _double_quoted(command, at + 1)
            if quoted is None:
                return None
            text, fixed, at = quoted
            out.append(text)
            literal &= fixed
        else:
            if char in "$`*?[{~":
                literal = False
            out.append(char)
            at += 1
    return "".join(out), literal, at


def _double_quoted(command: str, at: int) -> tuple[str, bool, int] | None:
    out: list[str] = []
    literal = True
    while at < len(command):
        char = command[at]
        if char == '"':
            return "".join(out), literal, at + 1
        if char == "\\" and at + 1 < len(command) and command[at + 1] in '"\\$`\n':
            out.append(command[at + 1])
            at += 2
            continue
        if char in "$`":
            literal = False
        out.append(char)
        at += 1
    return None
