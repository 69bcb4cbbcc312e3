"""Layer: records. Task sets on disk, in Harbor's task-directory format.

``<root>/<split>/<task_id>/{task.toml, instruction.md, environment/, tests/, solution/}``. Other
tools that read Harbor's format (NeMo Gym, verifiers, TRL, OpenEnv) can run them; our provenance
stands under ``[metadata.agentkit]``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from agentkit.errors import TaskError
from agentkit.types import Files, Kind, Task

DOCKERFILE = "FROM python:3.11-slim\nWORKDIR /work\nCOPY workspace/ /work/\n"


def read_files(folder: Path) -> Files:
    """Regular files below ``folder`` (no links followed) as relative path -> bytes."""
    found = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def write_files(folder: Path, files: Files) -> None:
    """Write ``files`` below ``folder``; refuses a path that would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        target = folder / name
        if not target.resolve().is_relative_to(folder.resolve()):
            raise TaskError(str(folder), f"path {name!r} leaves the folder", "a relative path")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        if data.startswith(b"#!"):
            target.chmod(0o755)


def files_digest(files: Files) -> str:
    """sha256 over sorted (path, content) pairs."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    return total.hexdigest()


def _toml(task: Task) -> str:
    provenance: dict[str, Any] = {
        "kind": task.kind,
        "split": task.split,
        "difficulty": task.difficulty,
        "source_dataset": task.source.get("dataset", ""),
        "source_session_id": task.source.get("session_id", ""),
        "licence": task.source.get("licence", ""),
        "workspace_sha256": files_digest(task.workspace),
        "tests_sha256": files_digest(task.tests),
        "extra": json.dumps(task.extra, sort_keys=True),
    }
    # A JSON string is a valid TOML basic string for every text that json.dumps escapes.
    lines = [f"{key} = {json.dumps(value)}" for key, value in provenance.items()]
    return (
        'version = "1.0"\n\n[metadata]\nauthor_name = "agentkit"\n'
        f"category = {json.dumps(task.kind)}\n\n[metadata.agentkit]\n" + "\n".join(lines) + "\n\n"
        f"[verifier]\ntimeout_sec = {float(task.verifier_timeout_s)}\n\n"
        f"[agent]\ntimeout_sec = {float(task.agent_timeout_s)}\n\n"
        '[environment]\ncpus = 1\nmemory = "2G"\nstorage = "1G"\n'
    )


def write_task(root: Path, task: Task) -> Path:
    """Write ``task`` below ``root/<split>/`` atomically and return its directory."""
    target = root / task.split / task.task_id
    draft = target.with_name(f".{task.task_id}.{os.getpid()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    write_files(draft / "environment" / "workspace", task.workspace)
    write_files(draft / "tests", task.tests)
    write_files(draft / "solution", task.solution)
    (draft / "environment" / "Dockerfile").write_text(DOCKERFILE)
    (draft / "instruction.md").write_text(task.instruction)
    (draft / "task.toml").write_text(_toml(task))
    if target.exists():
        shutil.rmtree(target)
    os.replace(draft, target)
    return target


def read_task(folder: Path) -> Task:
    """Read one task directory; raises TaskError that names the file at fault."""
    try:
        data = tomllib.loads((folder / "task.toml").read_text())
        ours = data.get("metadata", {}).get("agentkit", {})
        kind = ours.get("kind", data.get("metadata", {}).get("category", ""))
        if kind not in get_args(Kind):
            raise TaskError(f"{folder}/task.toml", f"kind {kind!r}", "repair, build, extend or qa")
        task = Task(
            task_id=folder.name,
            kind=kind,
            instruction=(folder / "instruction.md").read_text(),
            workspace=read_files(folder / "environment" / "workspace"),
            tests=read_files(folder / "tests"),
            solution=read_files(folder / "solution"),
            source={
                "dataset": ours.get("source_dataset", ""),
                "session_id": ours.get("source_session_id", ""),
                "licence": ours.get("licence", ""),
            },
            split=ours.get("split", folder.parent.name),
            difficulty=ours.get("difficulty", "unknown"),
            agent_timeout_s=float(data.get("agent", {}).get("timeout_sec", 120.0)),
            verifier_timeout_s=float(data.get("verifier", {}).get("timeout_sec", 30.0)),
            extra=json.loads(ours.get("extra", "{}")),
        )
    except OSError as error:
        raise TaskError(
            str(folder), f"{error.strerror}: {error.filename}", "a task directory"
        ) from error
    except (tomllib.TOMLDecodeError, ValueError, TypeError, AttributeError) as error:
        raise TaskError(f"{folder}/task.toml", str(error), "a valid task.toml") from error
    if "test.sh" not in task.tests:
        raise TaskError(f"{folder}/tests", "no test.sh", "a hidden validator")
    return task


def read_tasks(root: Path, split: str, limit: int | None = None) -> list[Task]:
    """Tasks of ``split`` below ``root``, sorted by id; the first ``limit`` of them."""
    folder = root / split
    names: Iterable[Path] = sorted(p for p in folder.glob("*") if p.is_dir() and p.name[0] != ".")
    tasks = [read_task(p) for p in names][:limit]
    if not tasks:
        raise TaskError(str(folder), "no tasks", f"a {split} split", "run notebook 01 first")
    return tasks
