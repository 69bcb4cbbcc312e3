"""Readers of traces: what is read, and what is refused by file, line and reason."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.errors import TraceError
from agentkit.trajectories import Refusal, read_trajectories
from agentkit.trajectories.detect import detect_format
from tests.unit import trace_files as trace

REAL = Path(__file__).resolve().parents[3] / "shared" / "traces"


def read_one(tmp_path: Path, data: bytes, name: str = "a.jsonl") -> Refusal:
    """The one refusal of a folder that holds ``data`` and one good session."""
    (tmp_path / name).write_bytes(data)
    (tmp_path / "good.jsonl").write_bytes(trace.session("Do it.", [trace.bash("ls", "x\n")]))
    found, refused = read_trajectories(tmp_path, max_line=1 << 20)
    assert [t.path for t in found] == ["good.jsonl"], "the rest must go on"
    assert len(refused) == 1
    assert refused[0].path == name
    return refused[0]


def test_a_session_is_read(tmp_path: Path) -> None:
    calls = [trace.bash("cat a", "1\n"), trace.bash("false", "no\n", 3), trace.write("b", "x\n")]
    path = tmp_path / "x.jsonl"
    path.write_bytes(trace.session("Make b.", calls, "All done."))
    (found,), refused = read_trajectories(path)
    assert refused == []
    assert (found.session_id, found.harness, found.cwd, found.wishes, found.final_text) == (
        "s-1", "pi", "/work", ("Make b.",), "All done.",
    )  # fmt: skip
    assert [s.exit_status for s in found.steps] == [0, 3, None]
    assert [s.output for s in found.steps] == ["1\n", "no\n", "Successfully wrote to b"]
    assert [s.is_error for s in found.steps] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "output", "status"),
    [
        ("(no output)\n\nCommand exited with code 1", "", 1),
        ("a\n\n\nCommand exited with code 127", "a\n", 127),
        ("a\n\nCommand timed out after 3 seconds", "a", None),
        ("Command aborted", "", None),
        ("Command exited with code 2", "", 2),
    ],
)
def test_exit_status_of_a_failed_command(
    tmp_path: Path, text: str, output: str, status: int | None
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(trace.session("w", [("bash", {"command": "c"}, text, True)]))
    (found,), _ = read_trajectories(path)
    assert (found.steps[0].output, found.steps[0].exit_status) == (output, status)


def test_only_the_branch_of_the_last_entry_counts(tmp_path: Path) -> None:
    left = [trace.user("wish"), trace.assistant("", ("a", "bash", {"command": "one"}))]
    left += [trace.result("a", "bash", "1\n")]
    lines = trace.entries(left)
    branch = [
        trace.assistant("", ("b", "bash", {"command": "two"})),
        trace.result("b", "bash", "2\n"),
        trace.assistant("end"),
    ]
    for i, message in enumerate(branch):
        parent = "e0" if i == 0 else f"f{i - 1}"
        lines.append({"type": "message", "id": f"f{i}", "parentId": parent, "message": message})
    (tmp_path / "x.jsonl").write_bytes(trace.dump([trace.header(), *lines]))
    (found,), _ = read_trajectories(tmp_path)
    assert [s.call.arguments for s in found.steps] == [{"command": "two"}]
    assert found.wishes == ("wish",)
    assert found.metadata["entries_on_other_branches"] == 2


def test_a_compaction_neither_repeats_nor_drops_calls(tmp_path: Path) -> None:
    lines = trace.entries(
        [trace.user("w"), trace.assistant("", ("a", "bash", {"command": "1"}))]
        + [trace.result("a", "bash", "x"), trace.assistant("end")]
    )
    middle = {
        "type": "compaction",
        "id": "k",
        "parentId": "e2",
        "summary": "ran 1",
        "tokensBefore": 9,
    }
    lines[3]["parentId"] = "k"
    (tmp_path / "x.jsonl").write_bytes(trace.dump([trace.header(), *lines[:3], middle, lines[3]]))
    (found,), _ = read_trajectories(tmp_path)
    assert len(found.steps) == 1
    assert found.wishes == ("w",)


def test_the_older_format_without_ids_is_linear(tmp_path: Path) -> None:
    messages = [trace.user("/model"), trace.user("wish"), trace.assistant("words")]
    old = [{"type": "message", "timestamp": "t", "message": m} for m in messages]
    head = {"type": "session", "id": "old", "timestamp": "t", "cwd": "/home/u/p"}
    (tmp_path / "x.jsonl").write_bytes(trace.dump([head, *old]))
    (found,), _ = read_trajectories(tmp_path)
    assert found.wishes == ("wish",), "a slash command is no wish"
    assert found.final_text == "words"


def test_a_call_without_a_result_is_counted_not_kept(tmp_path: Path) -> None:
    lines = trace.entries(
        [trace.user("w"), trace.assistant("", ("a", "bash", {"command": "1"}))]
        + [trace.assistant("", ("b", "bash", {"command": "2"})), trace.result("b", "bash", "x")]
    )
    (tmp_path / "x.jsonl").write_bytes(trace.dump([trace.header(), *lines]))
    (found,), _ = read_trajectories(tmp_path)
    assert [s.call.id for s in found.steps] == ["b"]
    assert found.metadata["unfinished_calls"] == 1


def test_a_torn_last_line_is_refused_with_its_number(tmp_path: Path) -> None:
    whole = trace.session("w", [trace.bash("ls", "a\n")])
    refused = read_one(tmp_path, whole[:-30])
    assert refused.category == "torn last line"
    assert refused.line == whole.count(b"\n")
    assert refused.stage == "read"


@pytest.mark.parametrize(
    ("data", "category", "line"),
    [
        (b"hello\n", "not JSON", 1),
        (b'{"a": 1}\n', "foreign file", 1),
        (b"[1, 2]\n", "a JSON list", 1),
        (b"\x00\xff\xfe\n", "not JSON", 1),
        (b"", "empty file", 0),
        (b"\n\n", "empty file", 0),
        (b"[" * 100_000 + b"\n", "torn or not JSON", 1),
        (b'{"type":"session_meta","payload":{"id":"x"}}\n', "format codex has no reader", 0),
        (
            b'{"type":"user","sessionId":"x","message":{"role":"user"}}\n',
            "format claude_code has no reader",
            0,
        ),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, data: bytes, category: str, line: int) -> None:
    refused = read_one(tmp_path, data)
    assert (refused.category, refused.line) == (category, line)
    assert "\n" not in refused.reason


@pytest.mark.parametrize(
    ("change", "category"),
    [
        (lambda e: e[1].update(parentId="nowhere"), "parent entry missing"),
        (lambda e: e[0].update(parentId="e2"), "parents form a cycle"),
        (lambda e: e[1].update(id="e0"), "entry id repeated"),
        (lambda e: e[1].pop("id"), "entry without id"),
        (lambda e: e[1].update(message=[1]), "message without role"),
        (lambda e: e[0].update(message={"role": "system", "content": 3}), "no user message"),
    ],
)
def test_a_broken_tree_is_refused(tmp_path: Path, change: object, category: str) -> None:
    lines = trace.entries([trace.user("w"), trace.assistant("a"), trace.assistant("b")])
    change(lines)  # type: ignore[operator]
    assert read_one(tmp_path, trace.dump([trace.header(), *lines])).category == category


def test_a_50_mb_line_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    lines = trace.dump([trace.header(), *trace.entries([trace.user("w")])])
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as handle:
        handle.write(lines + b'{"type":"message","id":"e1","text":"')
        for _ in range(50):
            handle.write(b"x" * (1 << 20))
        handle.write(b'"}\n')
    (tmp_path / "z.jsonl").write_bytes(trace.session("w", []))
    tracemalloc.start()
    found, refused = read_trajectories(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [t.path for t in found] == ["z.jsonl"]
    assert (refused[0].path, refused[0].line) == ("huge.jsonl", 3)
    assert "longer than 8 MiB" in refused[0].reason
    assert peak < 24 << 20


def test_an_empty_folder_and_a_missing_one_are_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace files"):
        read_trajectories(tmp_path)
    with pytest.raises(TraceError, match="no such file or folder"):
        read_trajectories(tmp_path / "nowhere")


def test_the_licence_of_a_data_set_card_is_carried(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# Traces\n")
    (tmp_path / "a.jsonl").write_bytes(trace.session("w", []))
    (found,), refused = read_trajectories(tmp_path)
    assert (found.licence, refused) == ("cc-by-4.0", [])


def test_the_limit_counts_trajectories(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.jsonl").write_bytes(trace.session("w", [], name=f"s{i}"))
    found, _ = read_trajectories(tmp_path, 3)
    assert [t.session_id for t in found] == ["s0", "s1", "s2"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "id", "parentId", "message", "role", "content", "text", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(_JSON, max_size=6), tail=st.binary(max_size=12))
def test_no_input_raises_anything_but_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, lines: list[object], tail: bytes
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    data = b"".join(json.dumps(x).encode() + b"\n" for x in [trace.header(), *lines]) + tail
    (folder / "a.jsonl").write_bytes(data)
    found, refused = read_trajectories(folder)
    assert len(found) + len(refused) == 1


def test_a_real_session_of_the_older_format() -> None:
    path = REAL / "pi" / "large-session.jsonl"
    if not path.exists():
        pytest.skip("the shared real traces are not here")
    (found,), refused = read_trajectories(path)
    raw = [json.loads(line) for line in path.read_text().splitlines()]
    roles = [e["message"]["role"] for e in raw if e["type"] == "message"]
    assert refused == []
    assert len(found.steps) == roles.count("toolResult")
    failed = [s for s in found.steps if s.call.name == "bash" and s.is_error]
    assert len(failed) == 19
    aborted = path.read_text().count("Command aborted")
    assert sum(s.exit_status is None for s in failed) == aborted > 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("swe-agent/humanevalfix-python-0.traj", "swe_agent"),
        ("swe-agent/function_calling_simple.traj", "swe_agent"),
        ("mini-swe-agent/github_issue.traj.json", "mini_swe_agent"),
    ],
)
def test_other_real_formats_are_named_when_refused(name: str, expected: str) -> None:
    if not (REAL / name).exists():
        pytest.skip("the shared real traces are not here")
    found, refused = read_trajectories(REAL / name)
    assert found == []
    assert refused[0].category == f"format {expected} has no reader"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"type": "session", "id": "a", "cwd": "/w"}, "pi"),
        ({"type": "session", "harness": "x", "id": "a"}, "hub_session"),
        ({"type": "response_item", "payload": {}}, "codex"),
        ({"type": "text", "sessionID": "s"}, "opencode"),
        ({"schema_version": "1.8", "steps": []}, "atif"),
        ({"conversations": []}, "hermes_sharegpt"),
        ({"trajectory": [], "instance_id": "i"}, "openhands"),
        ({"id": "x", "source": "cli", "messages": []}, "hermes"),
        ({"x": 1}, None),
    ],
)
def test_formats_are_told_apart(record: dict[str, object], expected: str | None) -> None:
    assert detect_format(record) == expected
