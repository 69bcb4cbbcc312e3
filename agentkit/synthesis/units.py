"""Layer: sources. Verifiable units: the part of a trace from which a task can be made.

Repair: a check fails, edits, the same check passes. Build: files made from nothing, then a
passing check. Extend: existing files changed, the old check still passes, new behaviour checked.
QA: a question whose answer a command computes from the workspace. ``find_unit`` returns the unit
or says why there is none.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from agentkit.synthesis.heldout import is_code
from agentkit.synthesis.known import READ_ONLY
from agentkit.synthesis.replay import Effect, Replay
from agentkit.synthesis.shell import Simple, split_command
from agentkit.types import Kind

MAX_WISHES = 3
TEST_NAME = re.compile(
    r"(^|/)(tests?|checks?|expected|spec)([._/-]|$)|(^|/)test_|_test\.|(^|/)check"
)


class NoUnit(Exception):
    """Why a trajectory gives no task; ``category`` can be counted."""

    def __init__(self, category: str, detail: str = "") -> None:
        self.category = category
        super().__init__(f"{category}: {detail}" if detail else category)


@dataclass(frozen=True)
class Unit:
    """What a task is built from.

    Attributes:
        checks: commands that pass on the final workspace and show the wished behaviour; for QA the
            one command that computes the answer.
        old_checks: commands that pass before and after (Extend).
        changed: files that the reference creates or changes.
        edits: effects that make the change, in order.
        answer_path: file that holds the answer (QA), else empty.
        answer: the answer itself (QA), else empty.
    """

    kind: Kind
    replay: Replay
    checks: tuple[str, ...]
    old_checks: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    edits: tuple[Effect, ...] = ()
    answer_path: str = ""
    answer: str = ""


def find_unit(replay: Replay) -> Unit:
    """The one unit of a replayed trajectory. Raises NoUnit."""
    if not replay.effects:
        raise NoUnit("no calls")
    if len(replay.trajectory.wishes) > MAX_WISHES:
        raise NoUnit("several wishes", f"{len(replay.trajectory.wishes)}, at most {MAX_WISHES}")
    paths = sorted(replay.initial.keys() | replay.final.keys())
    changed = tuple(p for p in paths if replay.initial.get(p) != replay.final.get(p))
    if not changed:
        return _spoken_answer(replay)
    if any(p not in replay.final for p in changed):
        raise NoUnit("files are deleted")
    edits = tuple(e for e in replay.effects if e.changed)
    existing = [p for p in changed if p in replay.initial]
    if not existing and (unit := _question(replay, changed, edits)):
        return unit
    repair = _repair(replay, changed, edits) if existing else None
    if repair:
        return repair
    return _extend(replay, changed, edits) if existing else _build(replay, changed, edits)


def segments(command: str) -> list[str]:
    """``command`` cut at its top-level ``&&``; a command that is not flat is one segment."""
    simples = split_command(command)
    if not simples or not any(s.joiner == "&&" for s in simples[:-1]):
        return [command.strip()]
    parts, quote, start, at = [], "", 0, 0
    while at < len(command):
        char = command[at]
        if char == "\\" and quote != "'":
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif command.startswith("&&", at):
            parts.append(command[start:at].strip())
            at += 2
            start = at
            continue
        at += 1
    return [*parts, command[start:].strip()]


def _tail_of(command: str, check: str) -> bool:
    """True where ``command`` is ``check`` or ends in ``&& check``."""
    mine, wanted = segments(command), segments(check)
    return len(mine) >= len(wanted) and mine[-len(wanted) :] == wanted


def _checks_something(command: str, changed: tuple[str, ...]) -> bool:
    """True for a command that runs or compares something.

    Printing a changed data file counts, since its content is what was wished; printing code, other
    files or the folder does not.
    """
    simples = split_command(command)
    if simples is None:
        return True
    names = {posixpath.basename(p) for p in changed if not is_code(p)}
    for simple in simples:
        if not simple.words:
            continue
        if simple.words[0] not in READ_ONLY or simple.words[0] in ("diff", "cmp", "test", "["):
            return True
        if any(posixpath.basename(w) in names for w in simple.words[1:]):
            return True
    return False


def _shells(replay: Replay) -> list[Effect]:
    return [e for e in replay.effects if e.action.kind == "shell"]


def _repair(replay: Replay, changed: tuple[str, ...], edits: tuple[Effect, ...]) -> Unit | None:
    """The last check that failed before an edit and passed after it; None without a failed one."""
    first, last = edits[0].action.index, edits[-1].action.index
    failed = [
        e.action.command
        for e in _shells(replay)
        if e.exit_status not in (0, None)
        and e.action.index < last
        and not e.changed
        and _checks_something(e.action.command, changed)
    ]
    if not failed:
        return None
    passing = [e for e in _shells(replay) if e.exit_status == 0 and e.action.index >= first]
    for check in reversed(failed):
        after = [e for e in passing if _tail_of(e.action.command, check)]
        if after and after[-1].action.index >= last:
            if touched := [p for p in changed if TEST_NAME.search(p)]:
                raise NoUnit("the check itself is edited", touched[0])
            return Unit("repair", replay, (check,), (), changed, edits)
    if any(e.exit_status == 0 and e.action.index > last and not e.changed for e in passing):
        return None  # the failure was explored, the work was checked otherwise
    raise NoUnit("the check never passes", failed[-1][:80])


def _passing_checks(replay: Replay, changed: tuple[str, ...], after: int) -> list[str]:
    """Check commands that passed at or after action ``after``, without the edits joined to them."""
    found = []
    for effect in _shells(replay):
        if effect.exit_status != 0 or effect.action.index < after:
            continue
        command = effect.action.command
        if effect.changed:
            # An edit joined to its check: only what follows the last editing part is the check.
            parts = segments(command)
            keep = [i for i, part in enumerate(parts) if not writes_files(part)]
            tail = next(
                (i for i in range(len(parts)) if set(range(i, len(parts))) <= set(keep)), None
            )
            if tail in (None, 0):
                continue
            command = " && ".join(parts[tail:])
        if _checks_something(command, changed):
            found.append(command)
    return list(dict.fromkeys(found))


def writes_files(part: str) -> bool:
    """A part of a command line that writes files, as far as its words say."""
    simples = split_command(part)
    if simples is None:
        return True
    return any(_writes(s) for s in simples)


def _writes(simple: Simple) -> bool:
    if any(not o.startswith("/dev/") for o in simple.outputs):
        return True
    name = simple.words[0] if simple.words else ""
    if name in ("tee", "cp", "mv", "rm", "mkdir", "touch", "patch", "ln", "chmod", "install"):
        return True
    return name in ("sed", "perl") and any(w.startswith("-i") for w in simple.words[1:])


def _build(replay: Replay, changed: tuple[str, ...], edits: tuple[Effect, ...]) -> Unit:
    checks = _passing_checks(replay, changed, edits[-1].action.index)
    if not checks:
        raise NoUnit("nothing was checked")
    return Unit("build", replay, (checks[-1],), (), changed, edits)


def _extend(replay: Replay, changed: tuple[str, ...], edits: tuple[Effect, ...]) -> Unit:
    first, last = edits[0].action.index, edits[-1].action.index
    checks = _passing_checks(replay, changed, last)
    if not checks:
        raise NoUnit("an edit without a check")
    old = [
        e.action.command
        for e in _shells(replay)
        if e.exit_status == 0
        and e.action.index < first
        and not e.changed
        and _checks_something(e.action.command, ())
    ]
    old = list(dict.fromkeys(old))
    new = [c for c in checks if c not in old]
    if not old:
        raise NoUnit("no old check", "nothing shows what has to stay")
    if not new:
        raise NoUnit("no new behaviour is checked")
    # An old check that the new one begins with needs no second run.
    covered = [c for c in old if segments(new[-1])[: len(segments(c))] == segments(c)]
    return Unit(
        "extend", replay, (new[-1],), tuple(c for c in old if c not in covered), changed, edits
    )


def _question(replay: Replay, changed: tuple[str, ...], edits: tuple[Effect, ...]) -> Unit | None:
    """One new data file that a command computed from the workspace."""
    if len(changed) != 1 or is_code(changed[0]) or not replay.initial:
        return None
    path = changed[0]
    answer = replay.final[path].decode(errors="replace")
    command = ""
    if edits[-1].action.kind == "shell":
        command = computing_part(edits[-1].action.command, path)
    if not command:
        # Computed in one call and written down in another.
        same = [
            e
            for e in _shells(replay)
            if not e.changed
            and e.exit_status == 0
            and e.output.strip() == answer.strip()
            and _computes(e.action.command)
        ]
        command = same[-1].action.command if same else ""
    if not command or not answer.strip():
        return None
    return Unit("qa", replay, (command,), (), changed, edits, path, answer)


def computing_part(command: str, path: str) -> str:
    """``command`` without the redirection or ``tee`` that wrote ``path``; empty where unclear."""
    name = re.escape(path)
    for pattern in (rf"\s*\|\s*tee (?:\./)?{name}\s*\Z", rf"\s*>\s*(?:\./)?{name}\s*\Z"):
        found = re.search(pattern, command)
        if found:
            rest = command[: found.start()].strip()
            return rest if _computes(rest) else ""
    return ""


def _computes(command: str) -> bool:
    """False for a command that only repeats text: ``echo 17``, ``cat notes.txt``."""
    simples = split_command(command)
    if simples is None:
        return bool(command.strip())
    names = [s.words[0] for s in simples if s.words]
    return bool(names) and not set(names) <= {"echo", "printf", "cat", "ls", "pwd"}


def _spoken_answer(replay: Replay) -> Unit:
    """Nothing was written: a computed single value that the last message repeats."""
    words = replay.trajectory.final_text
    for effect in reversed(_shells(replay)):
        value = effect.output.strip()
        single = re.fullmatch(r"[\w.+-]{1,40}", value)
        command = effect.action.command
        said = single and re.search(rf"(?<![\w.]){re.escape(value)}(?!\w)", words)
        if said and effect.exit_status == 0 and _computes(command):
            return Unit(
                "qa", replay, (command,), (), ("answer.txt",), (), "answer.txt", value + "\n"
            )
    raise NoUnit("nothing was changed and no answer was computed")
