"""Messages and files of a sandbox's inside, run on the host."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.sandboxes.inside.exchange import get, pack, put, unpack


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_fields_come_back(fields):
    message = pack(fields)
    assert int.from_bytes(message[:8], "big") == len(message) - 8
    assert unpack(message[8:]) == fields


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=5))
def test_a_torn_message_is_refused(fields):
    with pytest.raises(ValueError, match="torn"):
        unpack(pack(fields)[8:-1])


def test_put_writes_below_its_folder_and_marks_scripts(tmp_path):
    base = os.fsencode(tmp_path / "new")
    assert put([base, b"a/b.txt", b"text", b"run.sh", b"#!/bin/sh\n"]) == [b"ok"]
    assert (tmp_path / "new/a/b.txt").read_bytes() == b"text"
    assert (tmp_path / "new/run.sh").stat().st_mode & 0o111 == 0o111
    assert (tmp_path / "new/a/b.txt").stat().st_mode & 0o111 == 0


def test_put_replaces_a_link_instead_of_following_it(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "w").mkdir()
    (tmp_path / "w/f").symlink_to(victim)
    put([os.fsencode(tmp_path / "w"), b"f", b"theirs"])
    assert victim.read_text() == "mine"
    assert not (tmp_path / "w/f").is_symlink()


def _get(folder, max_bytes=1 << 20, max_files=100):
    answer = get([os.fsencode(folder), b"%d" % max_bytes, b"%d" % max_files])
    return answer[0], dict(zip(answer[1::2], answer[2::2], strict=True)) if answer[
        0
    ] == b"ok" else answer[1]


def test_get_takes_regular_files_only(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    work = tmp_path / "work"
    (work / "d").mkdir(parents=True)
    (work / "d/f").write_bytes(b"\0data")
    (work / "link").symlink_to(outside / "secret")
    (work / "folder").symlink_to(outside)
    os.mkfifo(work / "pipe")
    assert _get(work) == (b"ok", {b"d/f": b"\0data"})


def test_get_of_a_linked_or_missing_folder_is_an_error(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert _get(tmp_path / "link")[0] == b"error"
    assert _get(tmp_path / "none")[0] == b"error"


def test_get_bounds_bytes_before_reading(tmp_path):
    with (tmp_path / "sparse").open("wb") as f:
        f.truncate(1 << 40)
    assert _get(tmp_path)[0] == b"too large"


@pytest.mark.parametrize("count", [100, 101])
def test_get_bounds_the_number_of_files(tmp_path, count):
    for i in range(count):
        (tmp_path / str(i)).touch()
    assert _get(tmp_path)[0] == (b"ok" if count <= 100 else b"too large")


def test_get_reads_what_its_owner_made_unreadable(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"x")
    (tmp_path / "d/f").chmod(0)
    (tmp_path / "d").chmod(0)
    assert _get(tmp_path) == (b"ok", {b"d/f": b"x"})
