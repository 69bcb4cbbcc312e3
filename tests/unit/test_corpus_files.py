"""Normalising, packing and the scripted policy of the seed corpus, without a harness."""

from __future__ import annotations

import io
import json
import lzma
import random
import tarfile
from pathlib import Path

import pytest

from agentkit.corpus.archive import pack, seed_folder, unpack
from agentkit.corpus.normalise import FIXED_NANOSECONDS, file_name, normalise, session_id
from agentkit.corpus.scenario import Scenario, bash, typo, write
from agentkit.corpus.script import model_name, script
from agentkit.errors import TraceError

OUTPUT = "now 1764563123456789012\n\u00e9 a1764563123456789012b 12\n"


def raw_session(chance: random.Random) -> bytes:
    """A session as pi writes it, with all that differs between two recordings drawn anew."""

    def word() -> str:
        return f"{chance.getrandbits(32):08x}"

    entry, call, answer = [word() for _ in range(4)], word(), word()
    output = OUTPUT.replace("1764563123456789012\n", f"17{chance.randrange(10**17):017d}\n")
    usage = {"input": chance.randrange(1, 999), "cost": {"total": chance.random()}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
        {
            "role": "assistant",
            "content": [{"type": "toolCall", "id": call, "name": "bash", "arguments": {"b": 1}}],
            "usage": usage,
            "responseId": answer,
            "durationMs": chance.randrange(99),
        },
        {
            "role": "toolResult",
            "toolCallId": call,
            "content": [{"type": "text", "text": output}],
            "durationMs": chance.randrange(99),
        },
    ]
    records = [{"type": "session", "version": 3, "id": word(), "timestamp": word(), "cwd": "/work"}]
    records.append({"type": "model_change", "id": entry[0], "parentId": None, "timestamp": word()})
    for i, message in enumerate(messages):
        record = {"type": "message", "id": entry[i + 1], "parentId": entry[i], "timestamp": word()}
        records.append({**record, "message": {**message, "timestamp": chance.randrange(10**12)}})
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()


def test_normalise_takes_out_chance_and_nothing_else() -> None:
    one = normalise(raw_session(random.Random(1)), seed=3, index=5)
    two = normalise(raw_session(random.Random(2)), seed=3, index=5)
    assert one == two
    records = [json.loads(line) for line in one.splitlines()]
    assert records[0]["id"] == session_id(3, 5) and records[0]["cwd"] == "/work"
    assert [r["parentId"] for r in records[1:]] == [None, *(r["id"] for r in records[1:-1])]
    call, result = records[3]["message"], records[4]["message"]
    assert call["content"][0]["id"] == result["toolCallId"]
    assert call["content"][0]["arguments"] == {"b": 1}
    assert call["usage"] == {"input": 0, "cost": {"total": 0}}
    expected = OUTPUT.replace("1764563123456789012\n", f"{FIXED_NANOSECONDS}\n")
    assert result["content"][0]["text"] == expected
    times = [r["timestamp"] for r in records]
    assert times == sorted(times) and len(set(times)) == len(times)


def test_normalise_differs_by_seed_and_index() -> None:
    raw = raw_session(random.Random(1))
    made = {normalise(raw, seed, index) for seed in (0, 1) for index in (0, 1)}
    assert len(made) == 4
    assert len({file_name(seed, index) for seed in (0, 1) for index in (0, 1)}) == 4


@pytest.mark.parametrize("raw", [b"", b'{"type":"session","id":"a"}\n', b'{"type":"message"}\n'])
def test_normalise_refuses_what_is_no_session(raw: bytes) -> None:
    with pytest.raises(TraceError, match="version 3"):
        normalise(raw, 0, 0)


def test_pack_depends_on_content_alone_and_unpacks(tmp_path: Path) -> None:
    files = {"b.jsonl": b"2\n", "a.jsonl": b"1\n"}
    data = pack(files)
    assert data == pack(dict(sorted(files.items())))
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(data))) as tar:
        facts = {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in tar}
    assert facts == {(0, 0, 0, "", 0o644)}
    unpack(data, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == files


def test_seed_folder_is_made_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTKIT_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "x.tar.xz"
    archive.write_bytes(pack({"a.jsonl": b"1\n"}))
    folder = seed_folder(archive)
    assert seed_folder(archive) == folder and (folder / "a.jsonl").read_bytes() == b"1\n"
    archive.write_bytes(pack({"a.jsonl": b"2\n"}))
    assert seed_folder(archive) != folder
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]


def test_seed_folder_refuses_damage_and_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTKIT_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "x.tar.xz"
    with pytest.raises(TraceError, match="shipped corpus"):
        seed_folder(archive)
    archive.write_bytes(pack({"a.jsonl": b"1\n"})[:-20])
    with pytest.raises(TraceError, match="damaged"):
        seed_folder(archive)
    archive.write_bytes(pack({"../a.jsonl": b"1\n"}))
    with pytest.raises(TraceError, match="plain files"):
        seed_folder(archive)
    assert not list((tmp_path / "cache").iterdir())


def test_script_answers_turn_by_turn_whatever_comes_back() -> None:
    turns = ((bash("ls"), bash("pwd")), (write("a", "b"),))
    scenario = Scenario("f", "build", "wish", {}, turns, "End.")
    reply = script([scenario, scenario], lambda text, calls: (text, calls))
    messages: list[dict[str, str]] = [{"role": "system"}, {"role": "user"}]
    seen = []
    for _ in range(3):
        seen.append(reply({"model": model_name(1), "messages": messages}))
        messages += [{"role": "assistant"}, {"role": "tool"}, {"role": "tool"}]
    assert seen == [
        ("", [("bash", {"command": "ls"}), ("bash", {"command": "pwd"})]),
        ("", [("write", {"path": "a", "content": "b"})]),
        ("End.", []),
    ]


def test_typo_is_never_a_part_of_the_word() -> None:
    rng = random.Random(0)
    for word in ("letter", "balance", "total", "message"):
        made = {typo(rng, word) for _ in range(50)}
        assert len(made) > 1
        assert all(len(m) == len(word) - 1 and m not in word for m in made)
