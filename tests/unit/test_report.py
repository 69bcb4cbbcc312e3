"""Tables, texts and the page: values shown as they are, text escaped, nothing from outside."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import pytest

from agentkit import report
from agentkit.errors import RunError
from agentkit.report.tables import number, span
from agentkit.statistics import Interval, compare, pair_records, reconstruct_published
from agentkit.types import Policy, SessionLog, SessionRecord, Task, Turn


def test_numbers_as_a_reader_expects_them() -> None:
    assert [number(x) for x in (None, True, 12345, -3, 1.005e3, -0.5, "a")] == [
        "–", "yes", "12,345", "−3", "1,005.00", "−0.50", "a"
    ]  # fmt: skip
    assert span(Interval(0.094, 0.031, 0.157, None, None), 100) == "+9.4 [+3.1, +15.7]"
    assert span(Interval(-1.0, None, None, None, None), digits=2) == "−1.00"
    assert span(Interval(None, None, None, None, None)) == "–"


def test_table_has_every_value_and_escapes_it() -> None:
    shown = report.table([{"name": "<b>", "n": 1}, {"name": "x", "n": 2500}], "a & b")
    assert "&lt;b&gt;" in shown.markup and "<b>" not in shown.markup
    assert "a &amp; b" in shown.markup and "2,500" in shown.markup
    lines = shown.text.splitlines()
    assert lines[0] == "a & b"
    assert lines[-1].split() == ["x", "2,500"]
    assert len({len(line.rstrip()) for line in lines[3:]}) == 1
    assert "no rows" in report.table([], "nothing").text


def test_markdown_table_is_a_github_table() -> None:
    text = report.markdown_table([{"a": "x|y", "b": 1.5}])
    assert text.splitlines() == ["| a | b |", "| --- | --- |", "| x\\|y | 1.50 |"]


def rows(n: int = 30) -> list[dict[str, Any]]:
    rng, out = np.random.default_rng(0), []
    for i in range(n):
        for arm, chance in (("warm_start", 0.5), ("trained", 0.9)):
            solved = bool(rng.random() < chance)
            out.append(
                {
                    "task_id": f"t{i}", "source_id": f"s{i}", "kind": ("repair", "qa")[i % 2],
                    "harness": "pi", "model": "m", "arm": arm, "attempt": 0,
                    "status": "completed", "correct": solved, "score": float(solved), "calls": 3,
                    "reward": float(solved), "duration_s": 1.0,
                }
            )  # fmt: skip
    return out


def test_pass_rates_and_sessions_count_what_is_there() -> None:
    held = rows()
    held[0].update(status="sandbox_error", correct=None, score=None, reward=None)
    solved = sum(bool(r["correct"]) for r in held if r["arm"] == "warm_start")
    text = report.show_pass_rates(held).text
    assert f"{solved} of 29" in text
    assert re.search(r"all +warm_start .* 1$", text, re.M)
    assert re.search(r"warm_start +30 +29 +0 +0 +1 ", report.show_sessions(held).text)


def test_cells_show_the_interval_the_test_and_the_table() -> None:
    comparison = compare(
        pair_records(rows(), "warm_start", "trained"), np.random.default_rng(0), resamples=300
    )
    cell = SimpleNamespace(comparison=comparison, primary=True, name="m", p_adjusted=0.01)
    text = report.show_cells(SimpleNamespace(primary=comparison, cells=[cell])).text  # type: ignore[arg-type]
    t = comparison.missing.table
    assert f"{t.both}, {t.gained}, {t.lost}, {t.neither}" in text
    assert span(comparison.missing.quantity.difference, 100) in text
    assert "By kind" in text


def test_reconstruction_says_what_it_is() -> None:
    text = report.show_reconstruction(reconstruct_published()).text
    assert "reconstruction from the write-up's printed digits, not its data" in text
    assert re.search(r"149 +103 \(69.1%\) +117 \(78.5%\) +19 +5 +\+9.40 ± 6.27 +0.0066", text)


def test_task_record_and_turns_are_shown_whole_and_escaped() -> None:
    workspace = {"a.txt": b"1", "b.bin": b"\xff\xfe"}
    source = {"dataset": "d", "session_id": "s"}
    tests, solution = {"test.sh": b"#!"}, {"solve.sh": b"echo"}
    task = Task("t", "qa", "what is <x>?", workspace, tests, solution, source)
    shown = report.show_task(task)
    assert "what is &lt;x&gt;?" in shown.markup
    assert "(2 bytes, not text)" in shown.text
    record = SessionRecord(
        session_id="i", task_id="t", kind="qa", source_id="d:s", harness="pi", model="m", arm="a",
        status="completed", score=0.0, correct=False, timing={"model_s": 1.5},
    )  # fmt: skip
    text = report.show_record(record).text
    assert "correct" in text and "model_s" in text
    call = {"function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    turn = Turn(0, "base", [1, 2], [3], [-0.5], {"content": "", "tool_calls": [call]}, "stop")
    shown = report.show_turns(SessionLog("k", Policy("base"), [turn], [], 1))
    assert "→ bash" in shown.text and "−0.50" in shown.text


@pytest.fixture
def executed(tmp_path: Path) -> Path:
    v4, png = nbformat.v4, "iVBORw0KGgo="
    defaults = v4.new_code_cell("x = 1", metadata={"tags": ["parameters"]})
    injected = v4.new_code_cell("x = 2", metadata={"tags": ["injected-parameters"]})
    image = v4.new_output(
        "display_data", {"image/png": png}, metadata={"image/png": {"alt": "A & B"}}
    )
    table = v4.new_output("display_data", {"text/html": report.table([{"a": 1}]).markup})
    bar = v4.new_output("stream", name="stderr", text="100%|####| 3/3")
    notebook = v4.new_notebook(
        cells=[
            v4.new_markdown_cell("# 05 · Title\n\ntext"),
            defaults,
            injected,
            v4.new_markdown_cell("## First part"),
            v4.new_code_cell("draw()", outputs=[image, table, bar]),
            v4.new_markdown_cell("## Second part"),
        ],
        metadata={"language_info": {"name": "python"}},
    )
    path = tmp_path / "run.ipynb"
    nbformat.write(notebook, path)
    return path


def test_page_is_self_contained_with_contents_and_folded_code(
    executed: Path, tmp_path: Path
) -> None:
    page = report.render_report(executed, tmp_path / "report.html").read_text()
    assert re.findall(r'(?:src|href)="(?!#|data:)', page) == []
    assert "<script" not in page and "@import" not in page and "url(" not in page
    assert "<title>05 · Title</title>" in page
    listed = re.findall(r'<li><a href="#([^"]+)">([^<]+)</a>', page)
    assert [text for _, text in listed] == ["First part", "Second part"]
    assert all(f'id="{anchor}"' in page for anchor, _ in listed)
    assert "data:image/png;base64,iVBORw0KGgo=" in page
    assert 'alt="A &amp; B"' in page or 'alt="A & B"' in page
    assert page.count("<summary>code</summary>") == 2
    assert '<table class="kit">' in page


def test_page_shows_the_values_in_force(executed: Path, tmp_path: Path) -> None:
    page = report.render_report(executed, tmp_path / "report.html").read_text()
    text = re.sub(r"<[^>]+>", "", page)
    assert re.search(r"x\s*=\s*2", text)
    assert not re.search(r"x\s*=\s*1\b", text)


def test_page_of_a_missing_or_torn_notebook(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="run notebook 05"):
        report.render_report(tmp_path / "no.ipynb", tmp_path / "x.html")
    (tmp_path / "torn.ipynb").write_text('{"cells": [')
    with pytest.raises(RunError, match="not a notebook"):
        report.render_report(tmp_path / "torn.ipynb", tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()
