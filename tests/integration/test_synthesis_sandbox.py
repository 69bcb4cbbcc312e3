"""Synthesis with the real sandbox: replay, tasks, gates, and validators under attack."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from agentkit.errors import RunError, TaskError
from agentkit.params import SynthesiseParams
from agentkit.runs import Run, read_jsonl
from agentkit.sandboxes import backend
from agentkit.sandboxes.base import Limits, Sandbox, SandboxBackend
from agentkit.sessions import Validation, validate
from agentkit.synthesis.builder import build_task
from agentkit.synthesis.gates import reference_workspace, run_gates
from agentkit.synthesis.replay import ReplayRefused, replay
from agentkit.synthesis.units import NoUnit, find_unit
from agentkit.synthesise import make_task, synthesise
from agentkit.tasks import read_tasks
from agentkit.trajectories import read_trajectories
from agentkit.types import Files, Task, Trajectory
from tests.unit import trace_files as trace

LIMITS = Limits(1024, 64, 64)
Open = Callable[[], AbstractContextManager[Sandbox]]


@pytest.fixture(scope="module")
def sandboxes() -> SandboxBackend:
    return backend("auto")


@pytest.fixture(scope="module")
def executor(sandboxes: SandboxBackend) -> Open:
    return lambda: sandboxes.open(limits=LIMITS)


def trajectory(tmp_path: Path, wish: str, *calls: trace.Call, final: str = "Done.") -> Trajectory:
    path = tmp_path / "t.jsonl"
    path.write_bytes(trace.session(wish, list(calls), final))
    (found,), _ = read_trajectories(path)
    return found


def task_of(tmp_path: Path, executor: Open, wish: str, *calls: trace.Call) -> Task:
    with executor() as box:
        return build_task(find_unit(replay(trajectory(tmp_path, wish, *calls), box)), box)


BUILD_CODE = "def double(n):\n    return n * 2\n"


@pytest.fixture
def build(tmp_path: Path, executor: Open) -> Task:
    check = "python3 -c 'from twice import double; print(double(4), double(11))'"
    wish = "Create twice.py with a function double(n) that returns n times two."
    return task_of(
        tmp_path, executor, wish, trace.write("twice.py", BUILD_CODE), trace.bash(check, "8 22\n")
    )


@pytest.fixture
def repair(tmp_path: Path, executor: Open) -> Task:
    code, test = "def add(a, b):\n    return a - b\n", "from m import add\nassert add(3, 4) == 7\n"
    shown = f"==> check.py <==\n{test}\n==> m.py <==\n{code}"
    fails = 'Traceback (most recent call last):\n  File "/work/check.py", line 2, in <module>\n'
    fails += "    assert add(3, 4) == 7\n           ^^^^^^^^^^^^^^\nAssertionError\n"
    return task_of(
        tmp_path,
        executor,
        "python3 check.py fails. Fix m.py.",
        trace.bash("tail -n +1 check.py m.py", shown),
        trace.bash("python3 check.py", fails, 1),
        trace.bash("sed -i 's/a - b/a + b/' m.py && python3 check.py", ""),
    )


@pytest.fixture
def question(tmp_path: Path, executor: Open) -> Task:
    return task_of(
        tmp_path,
        executor,
        "How many lines of a.txt hold the word fig? Write the number to answer.txt.",
        trace.bash("cat a.txt", "fig\nplum\nfig tree\n"),
        trace.bash("grep -c fig a.txt | tee answer.txt", "2\n"),
    )


def grade(task: Task, sandboxes: SandboxBackend, changes: Files) -> Validation:
    found = validate(task, {**task.workspace, **changes}, sandboxes, LIMITS)
    assert found.score is not None, found
    return found


def test_gates_hold_for_each_kind(
    build: Task, repair: Task, question: Task, executor: Open, sandboxes: SandboxBackend
) -> None:
    def score(task: Task, files: Files) -> float | None:
        return validate(task, files, sandboxes, LIMITS).score

    for task in (build, repair, question):
        report = run_gates(task, executor, score, 2)
        assert report.passed, (task.task_id, report.fault)
        assert report.scores == {
            "reference passes": [1.0, 1.0],
            "untouched fails": [0.0, 0.0],
            "empty fails": [0.0, 0.0],
        }


def test_a_solution_that_does_not_solve_is_caught(
    build: Task, executor: Open, sandboxes: SandboxBackend
) -> None:
    bad = replace(
        build, solution={"solve.sh": b"cd /work; echo 'def double(n): pass' > twice.py\n"}
    )
    report = run_gates(
        bad, executor, lambda t, f: validate(t, f, sandboxes, LIMITS).score, repeats=2
    )
    assert report.fault == "reference fails"
    idle = replace(build, solution={"solve.sh": b"true\n"})
    assert run_gates(idle, executor, lambda t, f: 1.0).fault == "reference changes nothing"


@pytest.mark.parametrize(
    "code",
    [
        b"def double(n):\n    return n + n\n",
        b"double = lambda n: 2 * n\nprint('loaded')\n",
        b"import sys\nclass D:\n    def __call__(self, n):\n        return n << 1\ndouble = D()\n",
    ],
)
def test_another_honest_solution_passes(
    build: Task, sandboxes: SandboxBackend, code: bytes
) -> None:
    expected = 0.0 if b"print" in code else 1.0  # extra output is not what the check shows
    assert grade(build, sandboxes, {"twice.py": code}).score == expected


SABOTAGE = {
    "syntax error": b"def double(n:\n",
    "endless loop": b"while True: pass\n",
    "sys.exit at import": b"import sys\nsys.exit(0)\n",
    "os._exit at import": b"import os\nos._exit(0)\n",
    "visible results only": b"def double(n):\n    return {4: 8, 11: 22}[n]\n",
    "prints the results": b"print('8 22')\nimport os\nos._exit(0)\n",
    "equal to everything": (
        b"class E(int):\n    def __eq__(self, o): return True\n"
        b"    def __repr__(self): return '8'\ndef double(n): return E(8)\n"
    ),
    "kills its parents": (
        b"import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef double(n): return n * 2\n"
    ),
    "writes the reward": (
        b"import os\n"
        b"try:\n    open('/logs/verifier/reward.txt', 'w').write('1')\nexcept OSError: pass\n"
        b"def double(n): return 0\n"
    ),
    "links the reward": (
        b"import os\n"
        b"try:\n    os.unlink('/logs/verifier/reward.txt')\n"
        b"    os.symlink('/tmp/r', '/logs/verifier/reward.txt')\nexcept OSError: pass\n"
        b"def double(n): return 0\n"
    ),
    "floods its output": b"while True: print('x' * 100000)\n",
    "reads the tests": (
        b"import json\ntry:\n    spec = json.load(open('/tests/spec.json'))\n"
        b"    table = {c['args'][0]: r['value'] for k in spec['checks'] if k['type'] == 'calls'\n"
        b"             for c, r in zip(k['cases'], k['expected']['results'])}\n"
        b"except OSError:\n    table = {}\ndef double(n): return table[n]\n"
    ),
    "removes the workspace": (
        b"import os\nfor f in os.listdir('/work'): os.unlink('/work/' + f)\n"
        b"def double(n): return 0\n"
    ),
    "memory": b"x = bytearray(1 << 40)\n",
    "nothing": b"",
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_submission_cannot_keep_the_validator_from_its_verdict(
    build: Task, sandboxes: SandboxBackend, name: str
) -> None:
    found = grade(build, sandboxes, {"twice.py": SABOTAGE[name]})
    assert found.score == 0.0, found
    assert found.duration_s < 3 * build.verifier_timeout_s


def test_edited_or_deleted_checks_are_put_back(repair: Task, sandboxes: SandboxBackend) -> None:
    assert grade(repair, sandboxes, {"check.py": b"print('ok')\n"}).score == 0.0
    good = {"m.py": b"def add(a, b):\n    return b + a\n", "check.py": b"import nothing\n"}
    assert grade(repair, sandboxes, good).score == 1.0
    folder = {"m.py": good["m.py"], "check.py/x": b""}
    workspace = {k: v for k, v in repair.workspace.items() if k != "check.py"}
    assert validate(repair, {**workspace, **folder}, sandboxes, LIMITS).score == 0.0


def test_answers_are_recomputed_on_the_original_data(
    question: Task, sandboxes: SandboxBackend
) -> None:
    for text, score in ((b"2", 1.0), (b" 2.0 \n", 1.0), (b"3\n", 0.0), (b"two\n", 0.0)):
        assert grade(question, sandboxes, {"answer.txt": text}).score == score
    bent = {"a.txt": b"fig\nfig\nfig\n", "answer.txt": b"3\n"}
    assert grade(question, sandboxes, bent).score == 0.0
    assert b"2" not in question.tests["spec.json"].replace(b'"version"', b"").split(b"checks")[0]


@pytest.mark.parametrize(
    ("calls", "category"),
    [
        ([trace.bash("cat a", "x\n"), trace.bash("cat a", "y\n")], "replay diverged"),
        ([trace.bash("wc -l < hidden.csv", "3\n")], "replay diverged"),
        ([trace.bash("date +%s%N", "1\n")], "replay diverged"),
        ([trace.bash("false", "")], "replay diverged"),
        (
            [
                ("edit", {"path": "a", "edits": [{"oldText": "x", "newText": "y"}]}, "ok", False),
            ],
            "replay diverged",
        ),
        ([("browse", {"url": "x"}, "", False)], "a call that cannot be replayed"),
        (
            [trace.bash("ls", "a\nb\n"), trace.bash("cat a", "1\n"), trace.write("b", "2\n")],
            "initial content unknown",
        ),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    tmp_path: Path, executor: Open, calls: list[trace.Call], category: str
) -> None:
    with executor() as box, pytest.raises(ReplayRefused) as caught:
        replay(trajectory(tmp_path, "w", *calls), box)
    assert caught.value.category == category


def test_the_initial_workspace_is_exact(tmp_path: Path, executor: Open) -> None:
    """A file that a command made itself is not part of it; one that it needed is."""
    found = trajectory(
        tmp_path,
        "w",
        trace.bash("ls", "a\nb\nseen\n"),
        trace.bash("sort a > out; sed -i 's/1/2/' a", ""),
        trace.bash("cat out", "1\n"),
        trace.bash("cat b", "keep\n"),
        trace.bash("cat a", "2\n"),
        trace.bash("cat seen", "s\n"),
    )
    with executor() as box, pytest.raises(ReplayRefused):
        replay(found, box)  # a was changed before it was shown
    shown = trajectory(
        tmp_path,
        "w",
        trace.bash("cat a", "1\n"),
        trace.bash('sort a > out; python3 -c \'open("made", "w").write("m")\'', ""),
        trace.bash("cat made", "m"),
        trace.bash("cat b", "keep\n"),
        trace.bash("cat out", "1\n"),
    )
    with executor() as box:
        done = replay(shown, box)
    assert done.initial == {"a": b"1\n", "b": b"keep\n"}
    assert done.final == {**done.initial, "out": b"1\n", "made": b"m"}


def test_an_unread_file_of_a_listing_is_known_to_be_unknown(tmp_path: Path, executor: Open) -> None:
    found = trajectory(
        tmp_path,
        "w",
        trace.bash("ls", "README.md\na.txt\n"),
        trace.bash("cat a.txt", "1\n2\n"),
        trace.bash("wc -l < a.txt | tee n.txt", "2\n"),
    )
    with executor() as box:
        done = replay(found, box)
    assert done.unseen == ("README.md",)
    assert done.initial == {"a.txt": b"1\n2\n"}


def test_pi_edit_and_read_tools_are_replayed(tmp_path: Path, executor: Open) -> None:
    text = "x = 1\ny = 2\n"
    edit = {"path": "a.py", "edits": [{"oldText": "y = 2", "newText": "y = x +"}]}
    mend = {"path": "a.py", "oldText": "y = x +", "newText": "y = x + 3\nprint(y)"}
    wrong = '  File "/work/a.py", line 2\n    y = x +\n           ^\nSyntaxError: invalid syntax\n'
    task = task_of(
        tmp_path,
        executor,
        "Make a.py print x + 3.",
        ("read", {"path": "a.py"}, text, False),
        ("edit", edit, "Successfully replaced 1 block(s) in a.py.", False),
        trace.bash("python3 a.py", wrong, 1),
        ("edit", mend, "Successfully replaced 1 block(s) in a.py.", False),
        trace.bash("python3 a.py", "4\n"),
    )
    assert task.workspace == {"a.py": text.encode()}
    assert reference_workspace(task, executor)["a.py"] == b"x = 1\ny = x + 3\nprint(y)\n"


def test_a_time_out_of_a_call_is_no_hang(tmp_path: Path, executor: Open) -> None:
    calls = [trace.bash("sleep 60", "", 0)]
    with executor() as box, pytest.raises(ReplayRefused, match="exits with None"):
        replay(trajectory(tmp_path, "w", *calls), box)


def test_a_trace_without_a_unit_says_why(
    tmp_path: Path, sandboxes: SandboxBackend, executor: Open
) -> None:
    found = trajectory(tmp_path, "Look around.", trace.bash("pwd", "/work\n"))
    with executor() as box, pytest.raises(NoUnit):
        find_unit(replay(found, box))
    task, gates, refusal = make_task(found, params(tmp_path), sandboxes)
    assert (task, gates) == (None, [])
    assert refusal and refusal.stage == "unit"


def params(tmp_path: Path, **changes: object) -> SynthesiseParams:
    fields: dict[str, object] = {
        "run_dir": str(tmp_path / "run"),
        "seed": 0,
        "sandbox": "auto",
        "memory_mb": 1024,
        "disk_mb": 64,
        "processes": 64,
        "concurrency": 4,
        "dataset": "seed",
        "max_traces": 24,
        "kinds": ["repair", "build", "extend", "qa"],
        "train_tasks": 6,
        "heldout_tasks": 4,
        "heldout_share": 0.4,
        "near_duplicate_threshold": 0.85,
        "gate_repeats": 2,
        "verifier_timeout_s": 10.0,
    }
    return SynthesiseParams.from_mapping({**fields, **changes}, "test")


def test_the_stage_from_the_seed_corpus(
    tmp_path: Path, sandboxes: SandboxBackend, executor: Open
) -> None:
    wanted = params(tmp_path)
    seen: list[tuple[int, int]] = []
    with Run.open(wanted) as run:
        summary = synthesise(wanted, run, sandboxes, progress=lambda a, b: seen.append((a, b)))
        root = run.folder
    assert seen[-1] == (24, 24)
    train, held = read_tasks(root / "tasks", "train"), read_tasks(root / "tasks", "heldout")
    assert len(held) == 4
    assert len(train) >= 6
    assert {t.source_id for t in train} & {t.source_id for t in held} == set()
    refused = read_jsonl(root / "refused.jsonl")
    assert sum(r["count"] for r in summary.refused) == len(refused)
    assert summary.traces == 24 == len(train) + len(held) + len(refused)
    rows = _parquet(root / "tasks.parquet")
    assert {r["task_id"] for r in rows} == {t.task_id for t in [*train, *held]}
    for task in [*train[:2], *held[:2]]:
        workspace = reference_workspace(task, executor)
        assert validate(task, workspace, sandboxes, LIMITS).score == 1.0
        assert validate(task, task.workspace, sandboxes, LIMITS).score == 0.0
    _again(wanted, sandboxes, root)


def _parquet(path: Path) -> list[dict[str, object]]:
    import datasets

    return list(datasets.Dataset.from_parquet(str(path)))


def _again(wanted: SynthesiseParams, sandboxes: SandboxBackend, root: Path) -> None:
    """A second call does no work again, and a torn record costs one trajectory only."""
    before = {p: p.read_bytes() for p in sorted((root / "tasks").rglob("*")) if p.is_file()}
    record = root / "outcomes.jsonl"
    record.write_bytes(record.read_bytes()[:-20])
    done: list[int] = []
    with Run.open(wanted) as run:
        summary = synthesise(wanted, run, sandboxes, progress=lambda a, _: done.append(a))
    assert done == [24], "one trajectory was left to do"
    assert {p: p.read_bytes() for p in before} == before
    assert summary.total("heldout") == 4


def test_too_few_tasks_is_one_line_and_the_refusals_are_kept(
    tmp_path: Path, sandboxes: SandboxBackend
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(trace.session("Hi.", [trace.bash("pwd", "/work\n")]))
    (folder / "torn.jsonl").write_bytes(trace.session("Hi.", [])[:-9])
    wanted = params(tmp_path, dataset=str(folder))
    with Run.open(wanted) as run, pytest.raises(TaskError, match="0 heldout tasks from 1 traces"):
        synthesise(wanted, run, sandboxes)
    rows = read_jsonl(tmp_path / "run" / "01_synthesise" / "refused.jsonl")
    assert {r["stage"] for r in rows} == {"read", "unit"}
    assert (
        json.loads((tmp_path / "run" / "01_synthesise" / "summary.json").read_text())["traces"] == 1
    )
    with pytest.raises(RunError):
        Run.open(params(tmp_path, dataset="seed"))


def test_the_validator_runs_outside_the_kit(build: Task, tmp_path: Path) -> None:
    """test.sh is plain bash that any runner of Harbor tasks can parse."""
    script = tmp_path / "test.sh"
    script.write_bytes(build.tests["test.sh"])
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
