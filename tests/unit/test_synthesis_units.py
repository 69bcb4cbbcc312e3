"""Units and what is built from them, on replays made by hand."""

from __future__ import annotations

import pytest

from agentkit.synthesis.actions import Action
from agentkit.synthesis.builder import (
    NotBuilt,
    instruction_of,
    protected_files,
    scan_for_leaks,
    solution_of,
)
from agentkit.synthesis.replay import Effect, Replay
from agentkit.synthesis.units import NoUnit, computing_part, find_unit, segments
from agentkit.types import Files, Step, ToolCall, Trajectory

Done = tuple[str, int, str, dict[str, bytes | None]]
"""(command, exit status, output, changed files)."""


def replayed(
    initial: Files, *calls: Done, wish: str = "Do it.", final_text: str = "Done."
) -> Replay:
    effects, final = [], dict(initial)
    for index, (command, status, output, changed) in enumerate(calls):
        step = Step(ToolCall(f"c{index}", "bash", {"command": command}), output)
        action = Action(index, "shell", step, command=command)
        effects.append(Effect(action, status, output, changed))
        for path, data in changed.items():
            if data is None:
                final.pop(path)
            else:
                final[path] = data
    trajectory = Trajectory("d", "s", "pi", "/work", "x", (wish,), (), final_text)
    return Replay(trajectory, initial, tuple(effects), final)


BAD, GOOD = b"print(1 +)\n", b"print(1 + 1)\n"
EDIT = "sed -i 's/+/+ 1/' a.py"


@pytest.mark.parametrize(
    "calls",
    [
        (("python3 a.py", 1, "", {}), (EDIT, 0, "", {"a.py": GOOD}), ("python3 a.py", 0, "2", {})),
        (("python3 a.py", 1, "", {}), (f"{EDIT} && python3 a.py", 0, "2", {"a.py": GOOD})),
        (
            ("python3 a.py", 1, "", {}),
            (EDIT, 0, "", {"a.py": BAD + b"\n"}),
            ("python3 a.py", 1, "", {}),
            (EDIT, 0, "", {"a.py": GOOD}),
            ("python3 a.py", 0, "2", {}),
        ),
    ],
)
def test_repair(calls: tuple[Done, ...]) -> None:
    unit = find_unit(replayed({"a.py": BAD}, *calls))
    assert (unit.kind, unit.checks, unit.changed) == ("repair", ("python3 a.py",), ("a.py",))


def test_build() -> None:
    unit = find_unit(
        replayed({}, ("tee a.py", 0, "", {"a.py": GOOD}), ("python3 a.py", 0, "2\n", {}))
    )
    assert (unit.kind, unit.checks) == ("build", ("python3 a.py",))


def test_a_data_file_is_checked_by_showing_it_and_code_is_not() -> None:
    unit = find_unit(replayed({}, ("x", 0, "", {"a.csv": b"1,2\n"}), ("cat a.csv", 0, "1,2\n", {})))
    assert (unit.kind, unit.checks) == ("build", ("cat a.csv",))
    with pytest.raises(NoUnit, match="nothing was checked"):
        find_unit(replayed({}, ("x", 0, "", {"a.py": GOOD}), ("cat a.py", 0, "", {})))


def test_extend_needs_an_old_and_a_new_check() -> None:
    old, new = ("python3 t.py", 0, "ok", {}), ("python3 t.py && python3 a.py 2", 0, "ok 2", {})
    edit = ("echo x >> a.py", 0, "", {"a.py": GOOD + b"x\n"})
    unit = find_unit(replayed({"a.py": GOOD, "t.py": b"x"}, old, edit, new))
    assert unit.kind == "extend"
    assert unit.checks == ("python3 t.py && python3 a.py 2",)
    assert unit.old_checks == (), "the new check begins with it"
    apart = find_unit(
        replayed({"a.py": GOOD, "t.py": b"x"}, old, edit, ("python3 a.py 2", 0, "2", {}))
    )
    assert apart.old_checks == ("python3 t.py",)
    for calls, reason in [
        ((edit, new), "no old check"),
        ((old, edit, old), "no new behaviour"),
        ((old, edit), "an edit without a check"),
    ]:
        with pytest.raises(NoUnit, match=reason):
            find_unit(replayed({"a.py": GOOD, "t.py": b"x"}, *calls))


@pytest.mark.parametrize(
    ("calls", "command"),
    [
        ((("wc -l < n.txt | tee answer.txt", 0, "3\n", {"answer.txt": b"3\n"}),), "wc -l < n.txt"),
        ((("sort -u n.txt > answer.txt", 0, "", {"answer.txt": b"3\n"}),), "sort -u n.txt"),
        (
            (
                ("grep -c a n.txt", 0, "3\n", {}),
                ("echo 3 > answer.txt", 0, "", {"answer.txt": b"3\n"}),
            ),
            "grep -c a n.txt",
        ),
    ],
)
def test_qa(calls: tuple[Done, ...], command: str) -> None:
    unit = find_unit(replayed({"n.txt": b"a\na\na\n"}, *calls))
    assert (unit.kind, unit.checks, unit.answer.strip()) == ("qa", (command,), "3")


def test_qa_answered_in_words_counts_only_when_computed() -> None:
    files = {"n.txt": b"a\nb\n"}
    unit = find_unit(replayed(files, ("wc -l < n.txt", 0, "2\n", {}), final_text="There are 2."))
    assert (unit.kind, unit.answer_path) == ("qa", "answer.txt")
    assert "answer.txt" in instruction_of(unit)
    for call in (("cat n.txt", 0, "a\nb\n", {}), ("echo 2", 0, "2\n", {})):
        with pytest.raises(NoUnit, match="no answer was computed"):
            find_unit(replayed(files, call, final_text="There are 2."))


@pytest.mark.parametrize(
    ("replay", "reason"),
    [
        (replayed({}), "no calls"),
        (replayed({"a": b"x"}, ("rm a", 0, "", {"a": None})), "files are deleted"),
        (
            replayed(
                {"a.py": BAD},
                ("python3 a.py", 1, "", {}),
                ("e", 0, "", {"a.py": BAD + b"#"}),
                ("python3 a.py", 1, "", {}),
            ),
            "the check never passes",
        ),
        (
            replayed(
                {"a.py": BAD, "test_a.py": b"assert 0\n"},
                ("python3 test_a.py", 1, "", {}),
                ("e", 0, "", {"test_a.py": b"\n"}),
                ("python3 test_a.py", 0, "", {}),
            ),
            "the check itself is edited",
        ),
    ],
)
def test_why_there_is_no_unit(replay: Replay, reason: str) -> None:
    with pytest.raises(NoUnit, match=reason):
        find_unit(replay)


def test_command_parts() -> None:
    assert segments("a && b 'x && y' && c") == ["a", "b 'x && y'", "c"]
    assert segments("for i in 1 2; do a && b; done") == ["for i in 1 2; do a && b; done"]
    assert computing_part("grep x f | tee answer.txt", "answer.txt") == "grep x f"
    assert computing_part("echo 17 > answer.txt", "answer.txt") == ""
    assert computing_part("cat a > answer.txt && true", "answer.txt") == ""


def qa_unit(wish: str, answer: str, files: Files) -> None:
    data = (answer + "\n").encode()
    call = ("grep -o x n.txt > answer.txt", 0, "", {"answer.txt": data})
    unit = find_unit(replayed(files, call, wish=wish))
    scan_for_leaks(unit, instruction_of(unit))


def test_the_leak_scan() -> None:
    files = {"n.txt": b"apple\npear\n", "m.txt": b"plum\n"}
    qa_unit("Which fruit is last? Put it in answer.txt.", "pear", files)
    with pytest.raises(NotBuilt, match="stands in the instruction"):
        qa_unit("Is it pear? Put it in answer.txt.", "pear", files)
    with pytest.raises(NotBuilt, match="a workspace file holds just the answer"):
        qa_unit("Which fruit is alone?", "plum", files)
    qa_unit("Is it in n.txt or in m.txt?", "n.txt", files)  # a choice names its options


def test_a_line_of_the_reference_in_the_instruction_is_a_leak() -> None:
    line = "    return sorted(set(names), key=str.lower)"
    code = f"def tidy(names):\n{line}\n".encode()
    calls: list[Done] = [("x", 0, "", {"a.py": code}), ("python3 -c 'import a'", 0, "", {})]
    unit = find_unit(replayed({}, *calls, wish=f"Write a.py:\ndef tidy(names):\n{line}\n"))
    with pytest.raises(NotBuilt, match="reference leaks"):
        scan_for_leaks(unit, instruction_of(unit))
    fair = find_unit(replayed({}, *calls, wish="Write a.py with def tidy(names): sorted names."))
    scan_for_leaks(fair, instruction_of(fair))


def test_a_file_that_the_wish_does_not_name_is_named() -> None:
    calls: list[Done] = [("x", 0, "", {"a.py": GOOD}), ("python3 a.py", 0, "2\n", {})]
    assert "`a.py`" in instruction_of(find_unit(replayed({}, *calls, wish="Write a script.")))
    assert instruction_of(find_unit(replayed({}, *calls, wish="Write a.py."))) == "Write a.py.\n"


def test_check_files_and_data_are_protected_and_modules_are_not() -> None:
    files = {"a.py": BAD, "lib.py": b"x = 1\n", "check.py": b"import a\n", "d.csv": b"1\n"}
    unit = find_unit(
        replayed(
            files,
            ("python3 check.py", 1, "", {}),
            ("e", 0, "", {"a.py": GOOD}),
            ("python3 check.py", 0, "", {}),
        )
    )
    assert set(protected_files(unit)) == {"check.py", "d.csv"}


def test_the_solution_holds_the_edits_without_the_checks() -> None:
    unit = find_unit(
        replayed(
            {"a.py": BAD},
            ("python3 a.py", 1, "", {}),
            (f"{EDIT} && python3 a.py", 0, "2", {"a.py": GOOD}),
        )
    )
    assert solution_of(unit).splitlines()[-1] == EDIT
