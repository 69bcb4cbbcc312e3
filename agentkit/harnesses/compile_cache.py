"""Layer: boundaries. Node's compile cache for a harness, made once and bound read-only.

A fresh sandbox has an empty /tmp, so that Node would compile the harness's code anew in every
session and write the cache away at its end. Node keys its cache by path, content, version, flags
and uid: it is made inside a sandbox of the same layout, by one run of the unmodified program.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentkit.errors import HarnessError
from agentkit.sandboxes.base import HOME, Limits, Mount, SandboxBackend
from agentkit.types import Files

TARGET = "/opt/node-compile-cache"
"""Where the cache is bound; ``NODE_COMPILE_CACHE`` names it."""
_MADE = "/tmp/cache"
_LOCK = threading.Lock()


def cache_folder(name: str, *parts: str) -> Path:
    """Where the cache of this program and version lies on the host."""
    root = os.environ.get("AGENTKIT_CACHE") or str(Path.home() / ".cache" / "agentkit")
    key = hashlib.sha256("\0".join([*parts, platform.machine()]).encode()).hexdigest()[:16]
    return Path(root) / "node-compile-cache" / f"{name}-{key}"


def make_cache(
    folder: Path,
    backend: SandboxBackend,
    mounts: Sequence[Mount],
    home: Files,
    argv: Sequence[str],
    env: Mapping[str, str],
) -> None:
    """Fill ``folder`` by one run of ``argv`` without a network, unless it exists already.

    Raises HarnessError when the run leaves no cache behind.
    """
    with _LOCK:
        if folder.is_dir():
            return
        with backend.open(limits=Limits(), mounts=mounts) as box:
            box.put(home, HOME)
            result = box.exec(argv, timeout_s=60, env={**env, "NODE_COMPILE_CACHE": _MADE})
            files = box.get(_MADE, max_bytes=64 << 20) if not result.timed_out else {}
        if not files:
            raise HarnessError(argv[0], "left no compile cache", "one after a run of the harness")
        try:
            _keep(folder, files)
        except OSError as error:
            raise HarnessError(
                str(folder), str(error.strerror), "a cache folder to write to",
                "set AGENTKIT_CACHE to one, or free space",
            ) from error  # fmt: skip


def _keep(folder: Path, files: Files) -> None:
    """Write ``files`` to ``folder``, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as drafts:
        draft = Path(drafts) / folder.name
        for name, data in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(data)
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, and its cache is as good
                raise
