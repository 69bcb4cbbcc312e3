"""What a trace shows of the initial workspace, and the shell grammar behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkit.synthesis.actions import Unmappable, localise, relative, to_actions
from agentkit.synthesis.known import Known, gather
from agentkit.synthesis.shell import split_command
from agentkit.trajectories import read_trajectories
from tests.unit import trace_files as trace


def known(tmp_path: Path, *calls: trace.Call) -> Known:
    path = tmp_path / "a.jsonl"
    path.write_bytes(trace.session("w", list(calls)))
    (found,), _ = read_trajectories(path)
    return gather(to_actions(found))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("a b; c", [["a", "b"], ["c"]]),
        ("a && b || c | d\ne", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("grep '>' \"f g\" h\\ i", [["grep", ">", "f g", "h i"]]),
        ("a > out 2>&1", [["a"]]),
        ("a # b; c", [["a"]]),
        ("a 2> err < in", [["a"]]),
    ],
)
def test_flat_commands_are_split(command: str, words: list[list[str]]) -> None:
    found = split_command(command)
    assert found is not None
    assert [s.words for s in found] == words


@pytest.mark.parametrize(
    "command",
    [
        "for f in *; do x; done",
        "cat <<E\nE",
        "(a)",
        "a $(b)",
        "'a",
        '"a',
        "if x; then y; fi",
        "a &",
    ],
)
def test_grammar_beyond_a_flat_line_is_not_guessed(command: str) -> None:
    assert split_command(command) is None


def test_a_word_that_needs_expansion_is_marked() -> None:
    for command in ("cat *.txt", 'cat "$f"', "cat `x`", "cat ~/a"):
        found = split_command(command)
        assert found and not found[0].literal, command
    found = split_command("cat '*.txt'")
    assert found and found[0].literal


@pytest.mark.parametrize(
    ("call", "files"),
    [
        (trace.bash("cat a.txt", "x\ny\n"), {"a.txt": b"x\ny\n"}),
        (trace.bash("cat ./d/a.txt", "x"), {"d/a.txt": b"x"}),
        (trace.bash("cat a.txt"), {"a.txt": b""}),
        (trace.bash("cat -n a", "     1\tx\n     2\ty\n"), {"a": b"x\ny\n"}),
        (trace.bash("head -n 5 a", "1\n2\n"), {"a": b"1\n2\n"}),
        (trace.bash("head -n 2 a", "1\n2\n"), {}),
        (trace.bash("tail -n 3 a", "1\n2\n"), {}),
        (trace.bash("tail -n +1 a", "1\n2\n"), {"a": b"1\n2\n"}),
        (
            trace.bash("tail -n +1 a b", "==> a <==\n1\n\n==> b <==\n\n2\n"),
            {"a": b"1\n", "b": b"\n2\n"},
        ),
        (trace.bash("cat a; echo --; cat b", "1\n--\n2\n"), {"a": b"1\n", "b": b"2\n"}),
        (trace.bash("cat a; echo --; cat b", "1\n--\n--\n2\n"), {}),
        (trace.bash("cat a b", "1\n2\n"), {}),
        (trace.bash("cat *.txt", "1\n"), {}),
        (trace.bash("cat a | head", "1\n"), {}),
        (trace.bash("cat a", "cat: a: No such file", 1), {}),
        (trace.bash("cat /etc/hostname", "x\n"), {}),
        (("read", {"path": "a"}, "1\n2\n", False), {"a": b"1\n2\n"}),
        (
            (
                "read",
                {"path": "a", "limit": 1},
                "1\n\n[2 more lines in file. Use offset=2 ...]",
                False,
            ),
            {},
        ),
    ],
)
def test_what_one_call_shows(tmp_path: Path, call: trace.Call, files: dict[str, bytes]) -> None:
    assert known(tmp_path, call).certain == files


def test_windows_are_joined_only_without_a_gap(tmp_path: Path) -> None:
    first = trace.bash("sed -n '1,2p' a", "1\n2\n")
    rest = trace.bash("sed -n '3,9p' a", "3\n")
    assert known(tmp_path, first, rest).certain == {"a": b"1\n2\n3\n"}
    assert known(tmp_path, first, trace.bash("sed -n '4,9p' a", "4\n")).certain == {}
    read = (
        "read",
        {"path": "a", "limit": 2},
        "1\n2\n\n[1 more lines in file. Use offset=3]",
        False,
    )
    then = ("read", {"path": "a", "offset": 3}, "3", False)
    assert known(tmp_path, read, then).certain == {"a": b"1\n2\n3"}


def test_after_an_unknown_command_content_is_doubtful(tmp_path: Path) -> None:
    found = known(tmp_path, trace.bash("python3 make.py", ""), trace.bash("cat out.txt", "x\n"))
    assert (found.certain, found.doubtful) == ({}, {"out.txt": b"x\n"})


def test_a_written_file_is_not_initial(tmp_path: Path) -> None:
    for first in (trace.write("a", "x\n"), trace.bash("echo x > a", "")):
        found = known(tmp_path, first, trace.bash("cat a", "x\n"))
        assert (found.certain, found.doubtful) == ({}, {})


def test_an_edit_of_an_unseen_file_is_noted(tmp_path: Path) -> None:
    edit = ("edit", {"path": "a", "edits": [{"oldText": "x", "newText": "y"}]}, "ok", False)
    assert known(tmp_path, edit).unread == {"a"}
    assert known(tmp_path, trace.bash("cat a", "x\n"), edit).unread == set()


def test_paths_of_the_trace_become_paths_of_the_workspace() -> None:
    assert (
        localise("cd /home/u/p && ls /home/u/p-old", "/home/u/p") == "cd /work && ls /home/u/p-old"
    )
    assert relative("/home/u/p/a/../b", "/home/u/p") == "b"
    assert relative("../x", "/home/u/p") == "/home/u/x"


def test_an_unknown_tool_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unmappable, match="'browse' is not in the table"):
        known(tmp_path, ("browse", {"url": "x"}, "", False))
