"""A small task and its script, for tests that run the real pi in the real sandbox."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentkit.serving.scripted import Scripted
from agentkit.types import Policy, Task

CHECK = """mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
[ "$(python3 hello.py)" = 42 ] && echo 1 > /logs/verifier/reward.txt
"""
WRITE = Scripted("I write.", [("write", {"path": "hello.py", "content": "print(42)\n"})])
WRONG = Scripted("I write.", [("write", {"path": "hello.py", "content": "print(41)\n"})])
DONE = Scripted("Done.")


def bash(command: str, **more: Any) -> Scripted:
    return Scripted("", [("bash", {"command": command, **more})])


def task(check: str = CHECK, **fields: Any) -> Task:
    values: dict[str, Any] = {
        "task_id": "hello",
        "kind": "build",
        "instruction": "Write hello.py that prints 42.",
        "workspace": {"README.md": b"Nothing yet.\n"},
        "tests": {"test.sh": check.encode()},
        "solution": {"solve.sh": b"echo 'print(42)' > hello.py\n"},
        "source": {"dataset": "d", "session_id": "s", "licence": "Apache-2.0"},
    }
    return Task(**{**values, **fields})


def policy(**fields: Any) -> Policy:
    return Policy(**{"model": "base", "max_turns": 15, "seed": 1, **fields})


def processes(wanted: Callable[[str], bool]) -> list[int]:
    """Pids of the host whose command line is wanted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, UnicodeDecodeError):
                continue
            if wanted(line):
                found.append(int(entry.name))
    return found


def children(pid: int) -> list[int]:
    """Pids of the direct children of a single-threaded process."""
    return [int(w) for w in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> list[int]:
    """Pids of all that descends from ``pid``, threads of a process taken together."""
    found = []
    for task_folder in Path(f"/proc/{pid}/task").glob("*"):
        for word in (task_folder / "children").read_text().split():
            found += [int(word), *descendants(int(word))]
    return found


def eventually(condition: Callable[[], Any], within_s: float = 20.0) -> Any:
    """The first true value of ``condition``; fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return value
