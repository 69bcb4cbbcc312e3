"""Layer: sources. One scripted coding session, and the small helpers that families share.

A scenario is what the recorder needs to let the real harness run one session: the user's wish, the
workspace, and the calls that the scripted policy makes, turn by turn. The recorded trace holds
only what the harness writes of it; synthesis never sees this object.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agentkit.types import Files, Kind

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One tool call of the scripted policy, in the harness's own tool names and arguments."""

    name: str
    arguments: dict[str, Any]


Turn = tuple[Call, ...]
"""The calls of one assistant message. Calls of one message never depend on each other."""


@dataclass(frozen=True)
class Scenario:
    """One scripted session.

    Attributes:
        family: name of the family that made it.
        kind: the unit that the trace is meant to show; for a refused family, what it looks like.
        wish: the user's message.
        files: the workspace before the first call (UTF-8 text, each file ends in one newline).
        turns: the scripted calls, turn by turn.
        final: the last assistant message.
        expected: standard output of the last call, worked out in Python and not by the commands
            of the script; None where a family promises nothing.
        refusal: why synthesis must refuse the trace; empty for a good one.
    """

    family: str
    kind: Kind
    wish: str
    files: Files
    turns: tuple[Turn, ...]
    final: str = "Done."
    expected: str | None = None
    refusal: str = ""

    def text(self) -> str:
        """Wish, files and calls as one text, for comparing scenarios."""
        parts = [self.wish]
        parts += [f"{name}\n{data.decode()}" for name, data in sorted(self.files.items())]
        for turn in self.turns:
            parts += [" ".join(map(str, call.arguments.values())) for call in turn]
        return "\n".join(parts)


Family = Callable[[random.Random], Scenario]


def bash(command: str) -> Call:
    return Call("bash", {"command": command})


def write(path: str, content: str) -> Call:
    return Call("write", {"path": path, "content": content})


def show(*names: str) -> Call:
    """Print files whole: ``cat`` for one, ``tail -n +1`` (with its headers) for several."""
    return bash(f"cat {names[0]}" if len(names) == 1 else f"tail -n +1 {' '.join(names)}")


def show_all(files: Files) -> Call:
    """Print a workspace: its check first, then the others by name.

    The wish names every file, so that the call can be made without a look at the folder.
    """
    return show(*sorted(files, key=lambda name: (not name.startswith("check."), name)))


def lines(*rows: str) -> bytes:
    """Rows as a text file."""
    return ("\n".join(rows) + "\n").encode()


def pick(rng: random.Random, options: Sequence[T], count: int) -> list[T]:
    """``count`` different options in random order."""
    return rng.sample(list(options), count)


RARE = 0.2
"""Share of the wishes that use none of the two common wordings of their family."""


def wording(rng: random.Random, cores: Sequence[str], **names: Any) -> str:
    """One of ``cores`` filled with ``names``: mostly one of the first two, at times a rarer one.

    So that a model of 135M parameters can learn the common ones from few demonstrations.
    """
    rare = rng.random() < RARE and cores[2:]
    return rng.choice(rare or cores[:2]).format(**names)


def typo(rng: random.Random, word: str) -> str:
    """``word`` without one inner letter; never a part of ``word`` itself."""
    found = [word[:i] + word[i + 1 :] for i in range(1, len(word) - 1)]
    found = [w for w in found if w not in word]
    return rng.choice(found)


def stem(rng: random.Random, nouns: Sequence[str], stems: Sequence[str]) -> str:
    """A file name without its extension: ``maple`` or ``maple_notes``."""
    noun = rng.choice(nouns)
    return noun if rng.random() < 0.4 else f"{noun}_{rng.choice(stems)}"
