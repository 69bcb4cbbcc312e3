"""Run directories: append-only records survive kills and full disks; resume or refuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit.errors import RunError
from agentkit.params import AnalyseParams
from agentkit.runs import Run, append_jsonl, read_jsonl, write_atomic

VALUES = {
    "seed": 0,
    "primary_harness": "pi",
    "baseline_arm": "a",
    "treatment_arm": "b",
    "resamples": 10,
    "confidence": 0.95,
    "equivalence_margin": 0.05,
    "usd_per_hour": 0.1,
}


def params(tmp_path, **changes):
    return AnalyseParams(**{**VALUES, "run_dir": str(tmp_path), **changes})


def test_a_torn_last_line_is_cut_off_and_the_rest_kept(tmp_path):
    path = tmp_path / "r.jsonl"
    append_jsonl(path, {"n": 1})
    with open(path, "a") as handle:
        handle.write('{"n": 2, "half')
    assert read_jsonl(path) == [{"n": 1}]
    append_jsonl(path, {"n": 3})
    assert read_jsonl(path) == [{"n": 1}, {"n": 3}]


def test_a_long_torn_line_is_cut_off(tmp_path):
    path = tmp_path / "r.jsonl"
    append_jsonl(path, {"n": 1})
    with open(path, "a") as handle:
        handle.write("x" * 200_000)
    append_jsonl(path, {"n": 2})
    assert read_jsonl(path) == [{"n": 1}, {"n": 2}]


def test_a_bad_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"n": 1}\nnonsense\n{"n": 2}\n')
    with pytest.raises(RunError, match=r"r\.jsonl:2"):
        read_jsonl(path)


def test_nan_never_reaches_a_record(tmp_path):
    with pytest.raises(ValueError):
        append_jsonl(tmp_path / "r.jsonl", {"x": float("nan")})
    assert not (tmp_path / "r.jsonl").exists()


def test_resume_with_the_same_parameters_and_refusal_of_others(tmp_path):
    with Run.open(params(tmp_path)) as run:
        run.update_manifest(rows=3)
    with Run.open(params(tmp_path)) as run:
        assert run.manifest["rows"] == 3 and len(run.manifest["resumed_at"]) == 1
    with pytest.raises(RunError, match="resamples=11"):
        Run.open(params(tmp_path, resamples=11))


def test_one_process_at_a_time_and_the_lock_dies_with_its_holder(tmp_path):
    code = (
        "import time\nfrom agentkit.params import AnalyseParams\nfrom agentkit.runs import Run\n"
        f"r = Run.open(AnalyseParams(**{ {**VALUES, 'run_dir': str(tmp_path)}!r}))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    with pytest.raises(RunError, match="another process"):
        Run.open(params(tmp_path))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    Run.open(params(tmp_path)).close()


def test_a_stopped_stage_says_so_in_its_manifest(tmp_path):
    with pytest.raises(ZeroDivisionError), Run.open(params(tmp_path)):
        raise ZeroDivisionError("x")
    manifest = json.loads((tmp_path / "05_analyse" / "manifest.json").read_text())
    assert manifest["status"] == "stopped" and "ZeroDivisionError" in manifest["stopped_by"]


def test_finish_records_hashes_and_row_counts(tmp_path):
    with Run.open(params(tmp_path)) as run:
        append_jsonl(run.path("a.jsonl"), {"n": 1})
        append_jsonl(run.path("a.jsonl"), {"n": 2})
        run.finish(outputs=[run.path("a.jsonl")])
        assert run.manifest["outputs"]["a.jsonl"]["rows"] == 2
        assert len(run.manifest["outputs"]["a.jsonl"]["sha256"]) == 64


FULL_DISK = """
import sys
from pathlib import Path
from agentkit.errors import RunError
from agentkit.runs import append_jsonl, read_jsonl, write_atomic
path = Path("/small/r.jsonl")
written = 0
try:
    while written < 10000:
        append_jsonl(path, {"n": written, "pad": "x" * 700})
        written += 1
except RunError as error:
    print(error)
assert [r["n"] for r in read_jsonl(path)] == list(range(written)), "torn or lost"
try:
    write_atomic(Path("/small/m.json"), "x" * 200000)
except RunError as error:
    print(error)
print(sorted(p.name for p in Path("/small").iterdir()))
"""


def test_a_full_disk_gives_one_line_and_no_torn_record(tmp_path):
    """A real full file system: a 128 KiB tmpfs made by bubblewrap."""
    from agentkit.sandboxes.layout import program

    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [str(program()), "--bind", "/", "/", "--dev", "/dev", "--size", "131072"]
        + ["--tmpfs", "/small", sys.executable, "-c", FULL_DISK],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 3 and all("no space left" in line for line in lines[:2]), lines
    assert lines[2] == "['r.jsonl']"


def test_write_atomic_replaces_whole_files(tmp_path):
    path = tmp_path / "x"
    write_atomic(path, "one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two" and list(tmp_path.iterdir()) == [path]
