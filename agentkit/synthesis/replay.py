"""Layer: sources. Rebuild a trace's workspace and prove it by running the trace's own calls again.

The initial files come from what the trace shows (``known``); the calls are then executed in a
fresh sandbox and every result is compared with the recorded one. A trace that shows too little,
or whose results cannot be had again, is refused: what is unknown is known to be unknown.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from dataclasses import dataclass, field

from agentkit.synthesis.actions import Action, Unmappable, localise, to_actions
from agentkit.synthesis.executor import Box, guest_source
from agentkit.synthesis.known import WINDOW_NOTE, Known, gather
from agentkit.synthesis.shell import split_command
from agentkit.types import Files, Trajectory

MAX_ACTIONS = 200
STEP_TIMEOUT_S, REPLAY_TIMEOUT_S = 10.0, 60.0


class ReplayRefused(Exception):
    """The workspace cannot be rebuilt; ``category`` is countable, the message is for a reader."""

    def __init__(self, category: str, detail: str) -> None:
        self.category = category
        super().__init__(f"{category}: {detail}")


@dataclass(frozen=True)
class Effect:
    """What one action did when it was executed again; ``changed`` maps path -> content or None."""

    action: Action
    exit_status: int | None
    output: str
    changed: dict[str, bytes | None]


@dataclass(frozen=True)
class Replay:
    """A trace with its workspace before the first and after the last call.

    ``unseen`` names files that a listing showed but no call ever printed: they are known to have
    existed and are not part of the rebuilt workspace.
    """

    trajectory: Trajectory
    initial: Files
    effects: tuple[Effect, ...]
    final: Files
    unseen: tuple[str, ...] = ()


@dataclass
class _Attempt:
    effects: list[Effect] = field(default_factory=list)
    diverged: str = ""
    category: str = ""
    unseen: set[str] = field(default_factory=set)


def replay(trajectory: Trajectory, box: Box) -> Replay:
    """Rebuild and re-execute in ``box``; it ends in the final workspace.

    Raises ReplayRefused.
    """
    try:
        actions = to_actions(trajectory)
    except Unmappable as error:
        raise ReplayRefused("a call that cannot be replayed", str(error)) from error
    if len(actions) > MAX_ACTIONS:
        raise ReplayRefused("trace too long", f"{len(actions)} calls, at most {MAX_ACTIONS}")
    known = gather(actions)
    attempt, initial = _settle(actions, known, dict(known.certain), trajectory.cwd, box)
    if attempt.diverged:
        raise ReplayRefused(attempt.category, attempt.diverged)
    _refuse_unknown(attempt, known, initial)
    final = dict(initial)
    for effect in attempt.effects:
        for path, data in effect.changed.items():
            if data is None:
                final.pop(path, None)
            else:
                final[path] = data
    return Replay(trajectory, initial, tuple(attempt.effects), final, tuple(sorted(attempt.unseen)))


def _settle(
    actions: list[Action], known: Known, initial: Files, cwd: str, box: Box
) -> tuple[_Attempt, Files]:
    """Try the certain files alone, then with the doubtful ones, then without those not needed."""
    attempt = _run(actions, initial, cwd, box, fresh=True)
    if not attempt.diverged or not known.doubtful:
        return attempt, initial
    wide = {**initial, **known.doubtful}
    attempt = _run(actions, wide, cwd, box)
    if attempt.diverged:
        return attempt, initial
    for path in sorted(known.doubtful):
        less = {p: d for p, d in wide.items() if p != path}
        narrower = _run(actions, less, cwd, box)
        if not narrower.diverged:  # the commands made this file themselves
            attempt, wide = narrower, less
    return _run(actions, wide, cwd, box), wide


def _run(
    actions: list[Action], initial: Files, cwd: str, box: Box, fresh: bool = False
) -> _Attempt:
    """Execute all actions on ``initial`` and compare each result with the recorded one."""
    if not fresh:
        box.exec("find /work /tmp -mindepth 1 -delete", timeout_s=10)
    if initial:
        box.put(initial)
    job = {"actions": [_wire(a) for a in actions], "timeout_s": STEP_TIMEOUT_S}
    done = box.exec(
        ["python3", "-I", "-S", "-c", guest_source("replay.py")],
        timeout_s=REPLAY_TIMEOUT_S,
        stdin=json.dumps(job).encode(),
    )
    if done.exit_status != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["time limit"]
        return _Attempt(diverged=reason[-1], category="replay failed")
    attempt = _Attempt()
    for action, step in zip(actions, json.loads(done.stdout)["steps"], strict=True):
        changed = {
            p: None if d is None else base64.b64decode(d) for p, d in step["changed"].items()
        }
        effect = Effect(action, step["exit"], step["output"], changed)
        problem = _compare(effect, cwd, attempt.unseen)
        if problem:
            attempt.diverged = f"call {action.index + 1}: {problem}"
            attempt.category = "replay diverged"
            return attempt
        attempt.effects.append(effect)
    return attempt


def _wire(action: Action) -> dict[str, object]:
    return {
        "kind": action.kind,
        "command": action.command,
        "path": action.path,
        "content": action.content,
        "edits": action.edits,
    }


def _compare(effect: Effect, cwd: str, unseen: set[str]) -> str:
    """Empty where the result is the recorded one, else what differs."""
    action, step = effect.action, effect.action.step
    if action.kind == "other":
        return ""
    if action.kind == "shell":
        return _compare_shell(effect, cwd, unseen)
    if bool(effect.exit_status) != step.is_error:
        return f"{action.kind} {action.path} " + (effect.output or "succeeded only now")
    if action.kind == "read" and not step.is_error:
        shown = WINDOW_NOTE.sub("", step.output)
        lines = effect.output.split("\n")[action.offset - 1 :]
        if not "\n".join(lines).startswith(shown):
            return f"read {action.path} shows another content"
    return ""


def _compare_shell(effect: Effect, cwd: str, unseen: set[str]) -> str:
    step, command = effect.action.step, effect.action.command
    name = command.strip().splitlines()[0][:60] if command.strip() else "empty command"
    if step.exit_status is not None and effect.exit_status != step.exit_status:
        return f"{name!r} exits with {effect.exit_status}, recorded {step.exit_status}"
    if step.exit_status is None and not effect.exit_status and effect.exit_status is not None:
        return f"{name!r} succeeds, recorded as failed"
    if effect.action.truncated:
        return ""
    now, then = normalise(effect.output), normalise(localise(step.output, cwd))
    if now == then or sorted(now) == sorted(then):  # stdout and stderr interleave freely
        return ""
    if step.exit_status and now[-1:] == then[-1:]:  # tracebacks name files of another machine
        return ""
    missing = [line for line in then if line not in now]
    if _is_listing(command) and all(line in then for line in now) and missing:
        unseen.update(posixpath.basename(line.split()[-1]) for line in missing if line.split())
        return ""
    return f"{name!r} prints another output"


def normalise(text: str) -> list[str]:
    """Lines without what differs between runs of the same command: times, addresses, owners."""
    text = re.sub(r"\bin \d+\.\d+ ?s(ec\w*)?\b", "in _s", text)
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x_", text)
    text = re.sub(r"/tmp/tmp\w+", "/tmp/_", text)
    text = re.sub(
        r"^([-dl][rwxsStT-]{9})[.+@]? +\d+ +\S+ +\S+ +\d+ +\w{3} +\d+ +[\d:]+ ",
        r"\1 ",
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r"^total \d+$", "total _", text, flags=re.MULTILINE)
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _is_listing(command: str) -> bool:
    simples = split_command(command)
    return bool(simples) and all(s.words[:1] in (["ls"], ["find"]) for s in simples or ())


def _refuse_unknown(attempt: _Attempt, known: Known, initial: Files) -> None:
    """A change of a file whose earlier content the trace never shows cannot be a task."""
    touched = {p for e in attempt.effects for p in e.changed}
    hidden = {posixpath.basename(p) for p in touched - set(initial)} & attempt.unseen
    if hidden:
        raise ReplayRefused("initial content unknown", f"{sorted(hidden)[0]} was never shown")
    for path in sorted(known.unread & touched):
        if path not in initial:
            raise ReplayRefused("initial content unknown", f"{path} was edited before it was shown")
