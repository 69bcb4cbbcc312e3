"""Layer: sources. Lines of a trace file in bounded memory.

A trace is foreign input: a line may be 50 MB long, the file may have lost its end, and the bytes
may be no text at all. Every such fault is a ``TraceError`` with file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from agentkit.errors import TraceError

MAX_LINE_BYTES = 8 << 20
"""Longest line that is read; a longer one is refused after this many bytes."""
MAX_FILE_BYTES = 512 << 20
"""Largest file that is read: entries of one session are held in memory."""
CHUNK_BYTES = 1 << 20


def iter_lines(
    handle: BinaryIO, where: str, max_line: int = MAX_LINE_BYTES
) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, bytes without newline), skipping blank lines.

    Raises TraceError for a line longer than ``max_line`` and for a last line that is no whole JSON
    value (a writer that was killed); a whole last value without a newline is accepted.
    """
    number = 0
    while True:
        parts: list[bytes] = []
        size = 0
        while True:
            piece = handle.readline(min(CHUNK_BYTES, max_line + 1 - size))
            parts.append(piece)
            size += len(piece)
            if not piece or piece.endswith(b"\n"):
                break
            if size > max_line:
                raise TraceError(
                    f"{where}:{number + 1}",
                    f"line longer than {max_line >> 20} MiB",
                    "one JSON value a line",
                )
        if not size:
            return
        number += 1
        line = b"".join(parts)
        if line.strip():
            yield number, line


def parse_line(line: bytes, number: int, where: str) -> dict[str, Any]:
    """One JSON object; TraceError names the line, and says so where its end is missing."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        torn = not line.endswith(b"\n")
        raise TraceError(
            f"{where}:{number}",
            "torn last line" if torn else f"not JSON ({type(error).__name__})",
            "one JSON object a line",
        ) from error
    if not isinstance(value, dict):
        raise TraceError(f"{where}:{number}", f"a JSON {type(value).__name__}", "a JSON object")
    return value


def open_checked(path: Path) -> BinaryIO:
    """Open a regular file of at most ``MAX_FILE_BYTES``; TraceError otherwise."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise TraceError(
                str(path), f"{size >> 20} MiB", f"at most {MAX_FILE_BYTES >> 20} MiB in one file"
            )
        if size == 0:
            raise TraceError(str(path), "empty file", "a session")
        return path.open("rb")
    except OSError as error:
        raise TraceError(str(path), f"{error.strerror}", "a readable trace file") from error
