"""Layer: sources. Walk a source, detect each file's format, read it or say why not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from agentkit.errors import TraceError
from agentkit.trajectories import hub, pi
from agentkit.trajectories.detect import detect_format
from agentkit.trajectories.lines import MAX_LINE_BYTES, iter_lines, open_checked, parse_line
from agentkit.trajectories.refusal import Refusal
from agentkit.types import Trajectory

Records = Iterable[tuple[int, dict[str, Any]]]
"""(line number, decoded object) of one file, in order."""
READERS: dict[str, Callable[[Records, pi.Origin], list[Trajectory]]] = {"pi": pi.read_records}
"""Format name -> reader of one file's records."""

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SKIPPED_SUFFIXES = {".md", ".lock", ".sha256"}


def iter_trajectories(
    source: str | Path, *, dataset: str = "", licence: str = "", max_line: int = MAX_LINE_BYTES
) -> Iterator[Trajectory | Refusal]:
    """Stream trajectories and refusals of a file, a folder (sorted, recursive) or a Hub data set.

    ``dataset`` and ``licence`` name them where the source itself does not (default: the file's or
    folder's name, and the ``license`` of its README.md's front matter).

    Raises:
        TraceError: the source does not exist, is an empty folder, or the Hub cannot be reached.
    """
    path = Path(source)
    if path.is_file():
        origin = pi.Origin(dataset or path.stem, path.name, licence or _licence(path.parent))
        yield from _read_path(path, origin, max_line)
    elif path.is_dir():
        yield from _read_folder(path, dataset or path.name, licence or _licence(path), max_line)
    elif HUB_ID.fullmatch(str(source)):
        yield from _read_hub(str(source))
    else:
        raise TraceError(
            str(source), "no such file or folder", "seed, a file, a folder or a Hub id owner/name"
        )


def read_trajectories(
    source: str | Path,
    limit: int | None = None,
    *,
    dataset: str = "",
    licence: str = "",
    max_line: int = MAX_LINE_BYTES,
) -> tuple[list[Trajectory], list[Refusal]]:
    """At most ``limit`` trajectories of ``source`` and all refusals met on the way."""
    trajectories: list[Trajectory] = []
    refusals: list[Refusal] = []
    for item in iter_trajectories(source, dataset=dataset, licence=licence, max_line=max_line):
        if isinstance(item, Refusal):
            refusals.append(item)
        elif limit is None or len(trajectories) < limit:
            trajectories.append(item)
        if limit is not None and len(trajectories) >= limit:
            break
    return trajectories, refusals


def _read_folder(
    folder: Path, dataset: str, licence: str, max_line: int
) -> Iterator[Trajectory | Refusal]:
    files = [
        p
        for p in sorted(folder.rglob("*"))
        if p.is_file()
        and p.suffix not in SKIPPED_SUFFIXES
        and not p.name.startswith((".", "LICENSE", "LICENCE"))
    ]
    if not files:
        raise TraceError(str(folder), "no trace files", "at least one session file")
    for file in files:
        origin = pi.Origin(dataset, file.relative_to(folder).as_posix(), licence)
        yield from _read_path(file, origin, max_line)


def _read_hub(name: str) -> Iterator[Trajectory | Refusal]:
    for origin, text in hub.session_texts(name):
        numbered = enumerate(text.encode().splitlines(keepends=True), 1)
        yield from _read(origin, (x for x in numbered if x[1].strip()))


def _read_path(path: Path, origin: pi.Origin, max_line: int) -> Iterator[Trajectory | Refusal]:
    try:
        with open_checked(path) as handle:
            yield from _read(origin, iter_lines(handle, origin.path, max_line))
    except TraceError as error:
        yield _refusal(origin, error)


def _read(origin: pi.Origin, lines: Iterator[tuple[int, bytes]]) -> list[Trajectory | Refusal]:
    """Trajectories of one file, or its one refusal."""
    try:
        records = _records(lines, origin.path)
        first = next(records, None)
        if first is None:
            raise TraceError(origin.path, "empty file", "a session")
        name = detect_format(first[1])
        if name is None:
            raise TraceError(f"{origin.path}:{first[0]}", "foreign file", "a known trace format")
        if name not in READERS:
            known = ", ".join(sorted(READERS))
            raise TraceError(origin.path, f"format {name} has no reader", f"one of: {known}")
        return list(READERS[name](_chain(first, records), origin))
    except TraceError as error:
        return [_refusal(origin, error)]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        # A shape that no rule foresaw is the file's fault, and must not stop the other files.
        line = f"malformed entries ({type(error).__name__}: {error})"
        return [_refusal(origin, TraceError(origin.path, line, "a whole session"))]


def _chain(first: tuple[int, dict[str, Any]], rest: Records) -> Records:
    yield first
    yield from rest


def _records(
    lines: Iterator[tuple[int, bytes]], where: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Decode lines; a file whose first line is no whole value may be one indented document."""
    first = next(lines, None)
    if first is None:
        return
    try:
        yield first[0], parse_line(first[1], first[0], where)
    except TraceError:
        if first[1].lstrip()[:1] not in (b"{", b"["):
            raise
        yield first[0], _document(first, lines, where)
        return
    for number, line in lines:
        yield number, parse_line(line, number, where)


def _document(
    first: tuple[int, bytes], rest: Iterator[tuple[int, bytes]], where: str
) -> dict[str, Any]:
    whole = first[1] + b"".join(line for _, line in rest)
    try:
        value = json.loads(whole)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}:{first[0]}", "torn or not JSON", "JSON or JSON lines") from error
    if isinstance(value, list) and any(isinstance(m, dict) and "role" in m for m in value):
        # A bare list of chat messages is one session.
        value = {"messages": value}
    if not isinstance(value, dict):
        raise TraceError(f"{where}:1", f"a JSON {type(value).__name__}", "a session")
    return value


def _refusal(origin: pi.Origin, error: TraceError) -> Refusal:
    head, _, tail = error.where.rpartition(":")
    line = int(tail) if head and tail.isdigit() else 0
    category = re.sub(r"\s*\(.*", "", error.got)
    return Refusal("read", category, str(error), path=origin.path, line=line)


def _licence(folder: Path) -> str:
    """``license:`` of a data set card's front matter (README.md), as the Hub keeps it."""
    card = folder / "README.md"
    if not card.is_file():
        return "unknown"
    head = card.read_text(errors="replace")[:20000]
    found = re.search(r"^licen[sc]e:\s*[\"']?([\w.+-]+)", head, re.MULTILINE)
    return found.group(1) if head.startswith("---") and found else "unknown"
