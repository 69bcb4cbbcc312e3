"""Runs inside a sandbox: execute a trace's actions in /work and report what each one did.

Standard input: {"actions": [...], "timeout_s": s}. Standard output: {"steps": [{"exit", "output",
"changed": {path: base64 or null}}]}. Standard library only; never imported by the kit.
"""

# os.path is loaded anyway, pathlib is not, and this starts often.
from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile

TYPE_CHECKING = False  # as typing has it, without loading typing
if TYPE_CHECKING:
    from typing import Any

WORK = "/work"
JUNK = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache")
MAX_BYTES = 4 << 20
MAX_OUTPUT = 1 << 20


def snapshot() -> dict[str, bytes]:
    """Relative path -> content of every regular file that is no cache."""
    found: dict[str, bytes] = {}
    total = 0
    for folder, names, files in os.walk(WORK):
        names[:] = sorted(n for n in names if n not in JUNK)
        for name in files:
            path = os.path.join(folder, name)
            if os.path.islink(path) or name.endswith(".pyc") or not os.path.isfile(path):
                continue
            with open(path, "rb") as handle:
                data = handle.read(MAX_BYTES + 1)
            total += len(data)
            if total > MAX_BYTES:
                raise SystemExit("workspace larger than 4 MiB")
            found[os.path.relpath(path, WORK)] = data
    return found


def shell(command: str, timeout_s: float) -> tuple[int | None, str]:
    """(exit status or None, merged output) of one command, as a harness's shell tool runs it."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=WORK,
            # Two edits of a module within one second would otherwise run stale bytecode.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        out.seek(0)
        return status, out.read(MAX_OUTPUT).decode("utf-8", "replace")


def place(path: str) -> str:
    full = os.path.normpath(os.path.join(WORK, path))
    if not full.startswith((WORK + "/", "/tmp/")):
        raise ValueError("outside the workspace")
    return full


def write(action: dict[str, Any]) -> None:
    full = place(action["path"])
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8", newline="") as handle:
        handle.write(action["content"])


def edit(action: dict[str, Any]) -> None:
    """Each old text must be unique in the file as it was before the call."""
    full = place(action["path"])
    with open(full, encoding="utf-8", newline="") as handle:
        text = handle.read()
    spans = []
    for old, new in action["edits"]:
        if not old or text.count(old) != 1:
            raise ValueError("old text is not unique in the file")
        spans.append((text.index(old), old, new))
    for at, old, new in sorted(spans, reverse=True):
        text = text[:at] + new + text[at + len(old) :]
    with open(full, "w", encoding="utf-8", newline="") as handle:
        handle.write(text)


def read(action: dict[str, Any]) -> str:
    with open(place(action["path"]), encoding="utf-8", errors="replace", newline="") as handle:
        return handle.read(MAX_OUTPUT)


def perform(action: dict[str, Any], timeout_s: float) -> tuple[int | None, str]:
    if action["kind"] == "shell":
        return shell(action["command"], timeout_s)
    try:
        if action["kind"] == "write":
            write(action)
        elif action["kind"] == "edit":
            edit(action)
        elif action["kind"] == "read":
            return 0, read(action)
        return 0, ""
    except (OSError, ValueError) as error:
        return 1, str(error)


def main() -> None:
    job = json.load(sys.stdin)
    before, steps = snapshot(), []
    for action in job["actions"]:
        status, output = perform(action, job["timeout_s"])
        after = snapshot()
        changed = {
            p: base64.b64encode(after[p]).decode() if p in after else None
            for p in sorted(before.keys() | after.keys())
            if before.get(p) != after.get(p)
        }
        steps.append({"exit": status, "output": output, "changed": changed})
        before = after
    json.dump({"steps": steps}, sys.stdout)


main()
