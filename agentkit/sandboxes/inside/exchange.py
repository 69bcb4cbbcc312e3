"""Layer: boundaries. Messages between host and sandbox, and files in and out of one.

A message is 8 bytes of length, then fields of 4 bytes of length and content each. The host
imports ``pack`` and ``unpack``; ``put`` and ``get`` run inside.
"""

from __future__ import annotations

import os


def pack(fields: list[bytes]) -> bytes:
    """Frame ``fields`` as one message."""
    body = b"".join(len(f).to_bytes(4, "big") + f for f in fields)
    return len(body).to_bytes(8, "big") + body


def unpack(body: bytes) -> list[bytes]:
    """Fields of a message body (without its 8 bytes of length). Raises ValueError when torn."""
    fields, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if at + 4 + size > len(body):
            raise ValueError("torn message")
        fields.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return fields


def put(request: list[bytes]) -> list[bytes]:
    """Write files (path, content, path, content, …) below the first field."""
    base = request[0]
    os.makedirs(base, exist_ok=True)
    for name, data in zip(request[1::2], request[2::2], strict=True):
        target = base + b"/" + name
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.lexists(target):
            os.unlink(target)
        mode = 0o755 if data.startswith(b"#!") else 0o644
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
    return [b"ok"]


def get(request: list[bytes]) -> list[bytes]:
    """Regular files below a path; no link is followed, nothing blocks, sizes are bounded first."""
    base, max_bytes, max_files = request[0], int(request[1]), int(request[2])
    found: list[bytes] = []
    total, seen, folders = 0, 0, [base]
    if os.path.islink(base) or not os.path.isdir(base):
        return [b"error", b"no such directory"]
    while folders:
        folder = folders.pop()
        try:
            os.chmod(folder, 0o700)
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > 4 * max_files or len(found) > 2 * max_files:
                return [b"too large", b"more than %d files" % max_files]
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_size
                if total > max_bytes or len(found) >= 2 * max_files:
                    what = b"more than %d bytes or %d files" % (max_bytes, max_files)
                    return [b"too large", what]
                found += [entry.path[len(base) :].lstrip(b"/"), read_regular(entry.path)]
    return [b"ok", *found]


def read_regular(path: bytes) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        os.chmod(path, 0o600)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as stream:
        return stream.read()
