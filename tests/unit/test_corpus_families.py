"""Each family's script does, in a plain shell, what its docstring promises of the trace."""

from __future__ import annotations

import builtins
import keyword
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentkit.corpus import words
from agentkit.corpus.generate import GOOD, SIMILARITY, generate, jaccard, shingles
from agentkit.corpus.scenario import Call, Scenario, bash
from agentkit.tasks import write_files

COUNT = 110
"""Every family at least once, the refused ones and a near copy included."""
SCENARIOS = generate(COUNT, seed=7)
GOOD_ONES = [s for s in SCENARIOS if not s.refusal]


def run(call: Call, folder: Path) -> subprocess.CompletedProcess[str]:
    if call.name == "write":
        (folder / call.arguments["path"]).write_text(call.arguments["content"])
        return subprocess.CompletedProcess([], 0, "", "")
    # Without bytecode: an edit of the same length within a second would meet a stale cache.
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }
    return subprocess.run(
        ["bash", "-c", call.arguments["command"]],
        cwd=folder, env=env, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


def play(scenario: Scenario, folder: Path) -> list[subprocess.CompletedProcess[str]]:
    write_files(folder, scenario.files)
    return [run(call, folder) for turn in scenario.turns for call in turn]


@pytest.mark.parametrize("scenario", GOOD_ONES, ids=lambda s: s.family)
def test_good_session_keeps_the_promise_of_its_kind(scenario: Scenario, tmp_path: Path) -> None:
    results = play(scenario, tmp_path / "work")
    last = results[-1]
    assert not scenario.files or shows_every_file(scenario, results[0].stdout)
    assert last.returncode == 0, last.stdout + last.stderr
    assert last.stdout == f"{scenario.expected}\n"
    fresh = tmp_path / "fresh"
    write_files(fresh, scenario.files)
    if scenario.kind == "repair":
        assert results[1].returncode != 0
        assert len(scenario.turns[-1]) == 1
        assert (
            scenario.turns[-1][0]
            .arguments["command"]
            .endswith(" && " + scenario.turns[0][1].arguments["command"])
        )
    elif scenario.kind == "build":
        assert not scenario.files
        assert run(scenario.turns[-1][0], fresh).returncode != 0
    elif scenario.kind == "extend":
        assert results[1].returncode == 0
        old = scenario.turns[0][1].arguments["command"]
        edit, check = scenario.turns[-1][0].arguments["command"].split(" && ", 1)
        assert edit.startswith("echo ") and check.startswith(f"{old} && ")
        before = run(bash(check), fresh)
        assert before.returncode != 0 or before.stdout != last.stdout
    else:
        assert (tmp_path / "work" / "answer.txt").read_text() == f"{scenario.expected}\n"
        assert scenario.expected not in ("", None)


def test_wish_names_every_file_that_the_first_call_shows() -> None:
    for scenario in GOOD_ONES:
        assert all(name in scenario.wish for name in scenario.files), scenario.wish


def shows_every_file(scenario: Scenario, shown: str) -> bool:
    if len(scenario.files) == 1:
        return shown.encode() == next(iter(scenario.files.values()))
    order = sorted(scenario.files, key=lambda name: (not name.startswith("check."), name))
    parts = [f"==> {n} <==\n{scenario.files[n].decode()}" for n in order]
    return shown == "\n".join(parts)


def test_files_are_short_and_end_in_one_newline() -> None:
    for scenario in SCENARIOS:
        for data in scenario.files.values():
            assert data.endswith(b"\n") and not data.endswith(b"\n\n") and data.count(b"\n") <= 12


def test_calls_are_short_and_use_the_two_tools() -> None:
    for scenario in GOOD_ONES:
        assert 1 <= len(scenario.turns) <= 3
        for turn in scenario.turns:
            for call in turn:
                assert call.name in ("bash", "write")
                assert sum(len(str(v)) for v in call.arguments.values()) <= 180


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.refusal], ids=lambda s: s.family)
def test_refused_session_has_the_stated_fault(scenario: Scenario, tmp_path: Path) -> None:
    results = play(scenario, tmp_path)
    family = scenario.family
    if family == "chat_only":
        assert not scenario.turns
    elif family == "never_passes":
        assert results[1].returncode != 0 and results[-1].returncode != 0
    elif family == "passes_before":
        assert results[1].returncode == 0 and results[1].stdout == results[-1].stdout
    elif family == "answered_in_words":
        assert "answer.txt" not in scenario.wish and not (tmp_path / "answer.txt").exists()
        assert len(scenario.wish) > 15
    elif family == "flaky":
        again = run(scenario.turns[-1][0], tmp_path)
        assert again.returncode == 0 and again.stdout != results[-1].stdout
    elif family == "needs_network":
        assert "127.0.0.1:8000" in scenario.wish
    elif family in ("unchecked_edit", "unchecked_build"):
        assert len(scenario.turns[-1]) == 1
    else:
        assert family == "near_duplicate"
        twins = [s for s in GOOD_ONES if s.files == scenario.files and s.turns == scenario.turns]
        assert len(twins) == 1


def test_same_seed_same_corpus_other_seed_another() -> None:
    assert generate(60, seed=3) == generate(60, seed=3)
    assert generate(60, seed=3) != generate(60, seed=4)


def test_full_corpus_is_wide_and_without_near_copies() -> None:
    scenarios = generate(780, seed=0)
    good = [s for s in scenarios if not s.refusal]
    assert len(scenarios) == 780 and len(good) >= 700
    assert all(len(families) >= 3 for families in GOOD.values())
    per_family = Counter(s.family for s in good)
    assert len(per_family) >= 12 and min(per_family.values()) >= 50
    texts = [(s.family, shingles(s.text())) for s in good]
    for i, (family, one) in enumerate(texts):
        for other_family, other in texts[:i]:
            limit = SIMILARITY if family == other_family else SIMILARITY + 0.1
            assert jaccard(one, other) <= limit, (family, other_family)


def test_words_are_safe_as_names() -> None:
    taken = {*sys.stdlib_module_names, *dir(builtins), *keyword.kwlist, "check"}
    for pool in (words.NOUNS, words.FUNCTIONS, words.VARIABLES, words.SETTINGS):
        assert len(set(pool)) == len(pool)
    assert not taken & set(words.NOUNS)
    assert not taken & set(words.FUNCTIONS)
    shell_words = {"test", "time", "read", "export", "local", "return"}
    assert not shell_words & {*words.NOUNS, *words.VARIABLES}
