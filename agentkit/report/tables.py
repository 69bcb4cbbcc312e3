"""Layer: faces. Tables and texts that a notebook shows as HTML and a terminal as plain text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkit.statistics import Interval

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """Something to look at. As the last value of a cell it is displayed; ``print`` works too."""

    markup: str
    text: str

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self.markup, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text

    def __add__(self, other: Shown) -> Shown:
        return Shown(self.markup + other.markup, f"{self.text}\n\n{other.text}")


def number(value: Any, digits: int = 2) -> str:
    """A value as a table shows it: thousands apart, a real minus sign, "–" for unknown."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if isinstance(value, float):
        return f"{value:,.{digits}f}".replace("-", "−")
    return str(value)


def span(interval: Interval, scale: float = 1.0, digits: int = 1, sign: bool = True) -> str:
    """``+9.4 [+3.1, +15.7]``."""
    if interval.estimate is None:
        return "–"
    form = f"{'+' if sign else ''}.{digits}f"
    text = format(scale * interval.estimate, form)
    if interval.low is not None and interval.high is not None:
        low, high = format(scale * interval.low, form), format(scale * interval.high, form)
        text += f" [{low}, {high}]"
    return text.replace("-", "−")


def p_value(p: float) -> str:
    """A p-value with two significant digits, in plain notation."""
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}"


def table(rows: Iterable[Row], caption: str = "") -> Shown:
    """Rows (equal keys) as a table; the first column is the row's head, numbers stand right."""
    held = list(rows)
    if not held:
        return Shown(f"<p>{html.escape(caption)}: no rows</p>", f"{caption}: no rows")
    names = list(dict.fromkeys(name for row in held for name in row))
    cells = [[number(row.get(name)) for name in names] for row in held]
    right = [all(isinstance(row.get(name), int | float | None) for row in held) for name in names]
    return Shown(_markup(names, cells, right, caption), _text(names, cells, right, caption))


def _markup(
    names: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], caption: str
) -> str:
    def cell(tag: str, text: str, to_right: bool, scope: str = "") -> str:
        style = ' style="text-align:right"' if to_right else ' style="text-align:left"'
        return f"<{tag}{scope}{style}>{html.escape(text)}</{tag}>"

    def head(name: str, to_right: bool) -> str:
        return cell("th", name, to_right, ' scope="col"')

    def line(row: Sequence[str]) -> str:
        first = cell("th", row[0], right[0], ' scope="row"')
        rest = (cell("td", x, r) for x, r in zip(row[1:], right[1:], strict=True))
        return "<tr>" + first + "".join(rest) + "</tr>"

    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    heads = "".join(head(n, r) for n, r in zip(names, right, strict=True))
    body = "".join(line(row) for row in cells)
    return f'<table class="kit">{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def _text(
    names: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], caption: str
) -> str:
    widths = [max(len(x) for x in column) for column in zip(names, *cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        parts = zip(row, widths, right, strict=True)
        return "  ".join(x.rjust(w) if r else x.ljust(w) for x, w, r in parts).rstrip()

    rule = "  ".join("-" * w for w in widths)
    return "\n".join([*([caption] if caption else []), line(names), rule, *map(line, cells)])


def markdown_table(rows: Iterable[Row]) -> str:
    """Rows as a GitHub table, for a README or a result's notes."""
    held = list(rows)
    names = list(dict.fromkeys(name for row in held for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for row in held:
        texts = (number(row.get(name)).replace("|", "\\|") for name in names)
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines)


def show_text(text: str) -> Shown:
    """Paragraphs (blank line between them)."""
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    return Shown("".join(f"<p>{html.escape(part)}</p>" for part in parts), text)


def show_block(title: str, text: str) -> Shown:
    """Verbatim text that can be folded away."""
    markup = (
        f"<details open><summary>{html.escape(title)}</summary>"
        f"<pre>{html.escape(text)}</pre></details>"
    )
    return Shown(markup, f"{title}\n{text}")
