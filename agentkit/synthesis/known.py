"""Layer: sources. What a trace shows of the workspace before its first change.

A virtual file system by evidence: a file's content is *certain* where a call showed it whole
before anything could have changed it, *doubtful* where it was first shown after a command whose
effects are unknown (the command may have made it), and otherwise unknown. Re-execution decides
the doubtful ones (``replay``).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from agentkit.synthesis.actions import Action
from agentkit.synthesis.shell import Simple, split_command

READ_ONLY = frozenset(
    {"cat", "head", "tail", "nl", "ls", "find", "grep", "egrep", "fgrep", "wc", "sort", "uniq"}
    | {"cut", "tr", "diff", "cmp", "file", "stat", "pwd", "echo", "printf", "true", "test", "["}
    | {"which", "date", "sed", "awk", "paste", "column", "comm", "rev", "tac", "cd"}
)
"""Programs that write nothing without a redirection, ``-i`` or ``-o``."""
HEADER = re.compile(r"^==> (.+) <==\n", re.MULTILINE)
WINDOW_NOTE = re.compile(r"\n\n\[(?:\d+ more lines in file\.|Showing lines ).*\]\Z", re.DOTALL)


@dataclass
class Window:
    """Lines ``start`` (from 1) onward of a file; ``to_end`` where the last line is among them."""

    start: int
    lines: list[str]
    to_end: bool


@dataclass
class Known:
    """Evidence on the initial workspace; paths are relative to it."""

    certain: dict[str, bytes] = field(default_factory=dict)
    doubtful: dict[str, bytes] = field(default_factory=dict)
    windows: dict[str, list[Window]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    """Files that were edited before they were shown whole: their content cannot be known."""
    changed: bool = False
    """A command with unknown effects has run."""

    def has(self, path: str) -> bool:
        return path in self.certain or path in self.doubtful

    def show(self, path: str, window: Window) -> None:
        """Note that a call showed ``window`` of ``path``."""
        path = posixpath.normpath(path)
        if path in self.written or self.has(path) or path.startswith(("/", "..")):
            return
        self.windows.setdefault(path, []).append(window)
        whole = _join(self.windows[path])
        if whole is not None:
            (self.doubtful if self.changed else self.certain)[path] = whole.encode()


def _join(windows: list[Window]) -> str | None:
    """The whole text where the windows cover it from line 1 to its end without a gap."""
    text: dict[int, str] = {}
    last = None
    for window in windows:
        for number, line in enumerate(window.lines, window.start):
            text.setdefault(number, line)
        if window.to_end:
            last = window.start + len(window.lines) - 1
    if last is None or any(n not in text for n in range(1, last + 1)):
        return None
    return "".join(text[n] for n in range(1, last + 1))


def gather(actions: list[Action]) -> Known:
    """Walk the actions in order and collect the evidence."""
    known = Known()
    for action in actions:
        if action.kind == "read" and not action.step.is_error:
            _read_tool(action, known)
        elif action.kind == "write":
            known.written.add(action.path)
        elif action.kind == "edit" and not action.step.is_error:
            if not known.has(action.path) and action.path not in known.written:
                known.unread.add(action.path)
            known.written.add(action.path)
        elif action.kind == "shell":
            _shell(action, known)
    return known


def _read_tool(action: Action, known: Known) -> None:
    """pi's read tool: the text from a line on, with a note where lines are left."""
    output = action.step.output
    note = WINDOW_NOTE.search(output)
    if action.truncated and note is None:
        return
    body = output[: note.start()] + "\n" if note else output
    known.show(action.path, Window(action.offset, body.splitlines(keepends=True), note is None))


def _shell(action: Action, known: Known) -> None:
    simples = split_command(action.command)
    if simples is None or not all(_harmless(s) for s in simples):
        for simple in simples or ():
            known.written.update(posixpath.normpath(p) for p in simple.outputs)
        if simples is None or not all(_harmless(s, redirections=True) for s in simples):
            known.changed = True
        return
    if not action.truncated and action.step.exit_status == 0:
        for path, window in shown(simples, action.step.output):
            known.show(path, window)


def _harmless(simple: Simple, redirections: bool = False) -> bool:
    """True where a command changes nothing (or nothing beyond its redirections)."""
    if simple.outputs and not redirections and set(simple.outputs) != {"/dev/null"}:
        return False
    if not simple.words:
        return True
    name, rest = simple.words[0], simple.words[1:]
    if name not in READ_ONLY:
        return False
    if name == "sed":
        return not any(w.startswith(("-i", "--in-place", "w ")) for w in rest)
    if name == "awk":
        return not any(">" in w for w in rest if not w.startswith("-"))
    if name == "find":
        return not any(w in ("-delete", "-exec", "-execdir", "-ok") for w in rest)
    return not (name == "sort" and any(w.startswith("-o") for w in rest))


def shown(simples: list[Simple], output: str) -> list[tuple[str, Window]]:
    """Which windows of which files a flat, harmless command showed in ``output``."""
    if any(s.joiner in ("|", "||") for s in simples[:-1]) or any(not s.literal for s in simples):
        return []
    if len(simples) == 1:
        return _one(simples[0], output)
    found: list[tuple[str, Window]] = []
    rest = output
    for index, simple in enumerate(simples):
        literal = _literal(simple)
        if literal is not None:
            if not rest.startswith(literal):
                return []
            rest = rest[len(literal) :]
            continue
        following = _literal(simples[index + 1]) if index + 1 < len(simples) else None
        if index + 1 < len(simples):
            # The end of this part is known only by a printed separator that occurs just once.
            if not following or rest.count(following) != 1:
                return []
            part, rest = rest[: rest.index(following)], rest[rest.index(following) :]
        else:
            part, rest = rest, ""
        found += _one(simple, part)
    return found


def _literal(simple: Simple) -> str | None:
    """Output of an ``echo`` of plain words, or of a command that prints nothing."""
    if simple.words[:1] == ["echo"] and not re.match(r"-[neE]+\Z", (simple.words + [""])[1]):
        return " ".join(simple.words[1:]) + "\n"
    return "" if simple.words[:1] in (["true"], ["cd"]) else None


def _one(simple: Simple, output: str) -> list[tuple[str, Window]]:
    name, words = simple.words[0], simple.words[1:]
    lines = output.splitlines(keepends=True)
    files = [w for w in words if not w.startswith("-")]
    if name == "cat" and words == files and len(files) == 1:
        return [(files[0], Window(1, lines, True))]
    if name == "cat" and words[:1] == ["-n"] and len(files) == 1:
        return [(files[0], Window(1, [_unnumbered(x) for x in lines], True))]
    if name in ("head", "tail"):
        return _head_tail(name, words, output)
    if name == "sed" and words[:1] == ["-n"] and len(words) == 3:
        window = re.fullmatch(r"(\d+),(\d+|\$)p", words[1])
        if window:
            first, last = int(window[1]), window[2]
            ended = last == "$" or len(lines) < int(last) - first + 1
            return [(words[2], Window(first, lines, ended))]
    return []


def _unnumbered(line: str) -> str:
    return line.split("\t", 1)[1] if "\t" in line else line


def _head_tail(name: str, words: list[str], output: str) -> list[tuple[str, Window]]:
    """``head -n N f...`` and ``tail -n +K f...``, with the headers that several files get."""
    text = " ".join(words)
    asked = re.match(r"(?:-n ?|-)(\+?\d+) (.+)", text)
    count, names = (asked[1], asked[2].split(" ")) if asked else ("10", words)
    if any(n.startswith("-") for n in names):
        return []
    if name == "tail" and not count.startswith("+"):
        return []
    parts = [(names[0], output)] if len(names) == 1 else _split_headers(names, output)
    found = []
    for path, part in parts:
        lines = part.splitlines(keepends=True)
        if name == "tail":
            found.append((path, Window(int(count), lines, True)))
        else:
            found.append((path, Window(1, lines, len(lines) < int(count))))
    return found


def _split_headers(names: list[str], output: str) -> list[tuple[str, str]]:
    """Split at ``==> name <==`` lines; the blank line before the next header is not content."""
    marks = [m for m in HEADER.finditer(output) if m[1] in names]
    if [m[1] for m in marks] != names:
        return []
    ends = [m.start() for m in marks[1:]] + [len(output)]
    parts = [output[m.end() : end] for m, end in zip(marks, ends, strict=True)]
    return [
        (name, part.removesuffix("\n") if index < len(parts) - 1 else part)
        for index, (name, part) in enumerate(zip(names, parts, strict=True))
    ]
