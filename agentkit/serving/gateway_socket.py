"""Layer: boundaries. The gateway's unix socket: a usable path, and none left behind by the dead."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from agentkit.errors import GatewayError

MAX_PATH = 107
"""Longest path of a unix socket in bytes (``sun_path`` of Linux is 108 with its NUL)."""

SOCKET_NAME = "gw.sock"
_PREFIX = "agentkit-gw-"
_SETTLED_S = 60.0
"""A folder younger than this may belong to a gateway that is about to listen."""


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True  # its backlog is full: somebody is there
        except OSError:
            return False
    return True


def claim(path: Path) -> None:
    """Make sure that a gateway can listen at ``path``; remove a socket of a process that died.

    Raises GatewayError for a path that is too long, taken by a file, or in use.
    """
    where, size = f"gateway socket {path}", len(os.fsencode(path))
    if size > MAX_PATH:
        todo = "choose a shorter folder"
        raise GatewayError(where, f"the path has {size} bytes", f"at most {MAX_PATH}", todo)
    if not path.exists():
        return
    if not path.is_socket():
        raise GatewayError(where, "the path is taken by a file", "a free path", "remove the file")
    if _answers(path):
        raise GatewayError(where, "another process listens there", "a free path", "choose another")
    path.unlink()


def new_folder() -> Path:
    """A fresh folder under the temporary folder that any uid may pass through; folders that
    killed gateways of this user left there are removed first."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            status = folder.stat()
            dead = status.st_uid == os.getuid() and time.time() - status.st_mtime > _SETTLED_S
        except OSError:
            continue  # removed meanwhile
        if dead and not _answers(folder / SOCKET_NAME):
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    folder.chmod(0o711)
    return folder
