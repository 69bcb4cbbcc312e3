"""Set-up: what is missing or broken is told in one line, and nothing half-made counts as done."""

from __future__ import annotations

import ast
import http.server
import importlib.util
import json
import os
import resource
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "setup.py"
CLOSED_PORT = "http://127.0.0.1:9"  # discard: nothing listens


def load(root: Path) -> ModuleType:
    """scripts/setup.py as a module that works on another repository root."""
    spec = importlib.util.spec_from_file_location("setup_script", root / "scripts" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A copy of the files that set-up reads."""
    for name in ("scripts/setup.py", "requirements-cpu.lock", "pyproject.toml", "Makefile"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".node").mkdir()
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(ROOT / ".node" / name, tmp_path / ".node" / name)
    return tmp_path


@pytest.fixture
def bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PATH of one folder: the tools that set-up asks for, and no Python."""
    folder = tmp_path_factory.mktemp("bin")
    for tool in ("make", "git", "cc", "sh"):
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)
    return folder


def script(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def set_up(repo: Path, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run set-up as make does, with another PATH."""
    env = {**os.environ, "PATH": str(path), **variables}
    command = [sys.executable, str(repo / "scripts" / "setup.py")]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=repo)


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("set-up: "), done.stderr
    for word in words:
        assert word in lines[0]


def test_wrong_python(repo: Path, bin_dir: Path) -> None:
    script(bin_dir, "python3", "echo 3 9")
    done = set_up(repo, bin_dir)
    assert_one_line(done, "Python 3.11 is needed", "python3 is 3.9", "install python3.11")
    assert not (repo / ".venv").exists()


def test_python_that_does_not_start_is_passed_over(repo: Path, bin_dir: Path) -> None:
    script(bin_dir, "python3.11", "echo 'python3.11: command not found' >&2; exit 127")
    assert_one_line(set_up(repo, bin_dir), "there is no Python on PATH")
    (bin_dir / "python3").symlink_to(sys.executable)
    module = load(repo)
    os_path = os.environ["PATH"]
    try:
        os.environ["PATH"] = str(bin_dir)
        assert module.find_python() == str(bin_dir / "python3")
    finally:
        os.environ["PATH"] = os_path


def test_make_without_any_python(repo: Path, bin_dir: Path) -> None:
    command = [str(bin_dir / "make"), "--no-print-directory", "setup"]
    env = {"PATH": str(bin_dir)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=repo)
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert told == ["set-up: there is no Python on PATH; install python3.11 with its venv module"]


@pytest.mark.parametrize("tool", ["make", "git", "cc"])
def test_missing_tool(repo: Path, bin_dir: Path, tool: str) -> None:
    (bin_dir / tool).unlink()
    done = set_up(repo, bin_dir)
    assert_one_line(done, f"{tool} is not on PATH", "install")
    assert not (repo / ".venv").exists()


def test_no_room(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(repo)
    monkeypatch.setitem(module.ROOM_GIB, "environment", 1e9)
    with pytest.raises(module.SetupError, match=r"GiB free, 1000000000 GiB needed") as caught:
        module.check_room(repo / ".venv")
    assert "\n" not in str(caught.value) and str(repo) in str(caught.value)


def test_disk_that_fills_up_in_a_step(repo: Path) -> None:
    module = load(repo)
    command = ["sh", "-c", "cat /dev/zero > /dev/full"]
    with pytest.raises(module.SetupError, match="No space left on device; free some disk space"):
        module.call("installing packages", command, dict(os.environ))


class CutOff(http.server.BaseHTTPRequestHandler):
    """A package index that promises a file of 1 MB and hangs up after 5 bytes."""

    def do_GET(self) -> None:
        page = b'<a href="/torch-2.13.0-py3-none-any.whl">torch-2.13.0-py3-none-any.whl</a>'
        wheel = self.path.endswith(".whl")
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if wheel else "text/html")
        self.send_header("Content-Length", "1000000" if wheel else str(len(page)))
        self.end_headers()
        self.wfile.write(b"PK\x03\x04\x00" if wheel else page)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def cut_off_index() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), CutOff) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()


def test_broken_download_of_a_package(
    repo: Path, cut_off_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No index at all, then one whose file is cut off: told, and not taken as done."""
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    alone |= {"PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1", "PIP_TRUSTED_HOST": "127.0.0.1"}
    done = set_up(repo, Path(os.environ["PATH"]), PIP_INDEX_URL=CLOSED_PORT, **alone)
    assert_one_line(done, "installing torch failed: ", "check the network", ".setup.log")

    module = load(repo)
    environment = module.Environment(repo / ".venv")
    for name, value in {**alone, "PIP_INDEX_URL": cut_off_index}.items():
        monkeypatch.setenv(name, value)
    told = r"installing torch failed: .*(a download was damaged|check the network)"
    with pytest.raises(module.SetupError, match=told) as caught:
        module.install_torch(environment)
    assert "\n" not in str(caught.value)
    assert environment.python.exists() and not environment.usable()
    assert not (repo / ".venv" / module.STAMP).exists()


def test_broken_download_of_pi(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(repo)
    monkeypatch.setenv("npm_config_registry", CLOSED_PORT)
    monkeypatch.setenv("npm_config_cache", str(repo / "npm-cache"))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(module.SetupError, match=r"ECONNREFUSED.*check the network") as caught:
        module.install_node(module.Environment(Path(sys.prefix)))
    assert "\n" not in str(caught.value)
    assert not module.node_ready()


def made_environment(module: ModuleType, root: Path) -> Path:
    """An environment and Node folder that carry the stamps of a finished set-up."""
    venv = root / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text("version = 3.11.7\n")
    module.write_json(venv / module.STAMP, module.wanted_stamp(module.Environment(venv)))
    node = root / ".node" / "node_modules" / "node" / "bin"
    node.mkdir(parents=True)
    (node / "node").write_text("")
    module.write_json(node.parents[1] / module.STAMP, {"node": module.node_digest()})
    return venv


def test_nothing_is_done_where_all_is_there(repo: Path, bin_dir: Path) -> None:
    made_environment(load(repo), repo)
    (bin_dir / "git").unlink()  # would be reported if set-up looked any further
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = set_up(repo, bin_dir)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # Processor time: the bound of two seconds holds on a busy machine too.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    assert not (repo / ".setup.log").exists()


@pytest.mark.parametrize(
    "name", ["requirements-cpu.lock", "pyproject.toml", ".node/package-lock.json"]
)
def test_a_changed_file_is_noticed(repo: Path, bin_dir: Path, name: str) -> None:
    made_environment(load(repo), repo)
    with (repo / name).open("a") as file:
        file.write("\n")
    (bin_dir / "git").unlink()
    assert_one_line(set_up(repo, bin_dir), "git is not on PATH")


def test_interrupted_moved_or_foreign_environments_are_not_used(repo: Path) -> None:
    module = load(repo)
    venv = made_environment(module, repo)
    assert module.Environment(venv).usable()
    (venv / module.UNDER_WAY).write_text("installing packages\n")
    assert not module.Environment(venv).usable()
    (venv / module.UNDER_WAY).unlink()
    moved = venv.rename(repo / "moved")
    assert not module.Environment(moved).usable()
    (moved / module.STAMP).write_text('{"path": "/tor')  # torn: no step counts as done
    assert module.Environment(moved).usable()
    assert module.read_json(moved / module.STAMP) == {}
    (moved / "pyvenv.cfg").write_text("version = 3.12.1\n")
    assert not module.Environment(moved).usable()


def test_a_folder_that_is_no_environment_is_left_alone(repo: Path) -> None:
    (repo / ".venv").mkdir()
    (repo / ".venv" / "thesis.txt").write_text("mine")
    assert_one_line(set_up(repo, Path(os.environ["PATH"])), "not a Python environment")
    assert (repo / ".venv" / "thesis.txt").read_text() == "mine"


def test_npm_reason_is_one_line() -> None:
    module = load(ROOT)
    output = (
        "npm warn deprecated x\n"
        "npm error code EINTEGRITY\n"
        "npm error sha512-a integrity checksum failed: wanted sha512-a but got sha512-b\n"
        "npm error A complete log of this run can be found in: /home/x/.npm/_logs/1.log\n"
    )
    assert module.reason(output).startswith("code EINTEGRITY sha512-a integrity checksum failed")
    assert "complete log" not in module.reason(output)
    assert module.remedy(output) == "a download was damaged: run make setup again"


def test_debian_python_without_venv_names_the_package() -> None:
    output = (
        "The virtual environment was not created successfully because ensurepip is not\n"
        "available.  On Debian/Ubuntu systems, you need to install the python3-venv\n"
    )
    assert load(ROOT).remedy(output) == "install the package python3.11-venv"


def test_the_script_starts_under_an_older_python() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))


def test_clean_keeps_runs(repo: Path) -> None:
    made_environment(load(repo), repo)
    for folder in ("runs/first", "agentkit/__pycache__", "notebooks", "tests", ".ruff_cache"):
        (repo / folder).mkdir(parents=True)
    (repo / "runs" / "first" / "sessions.jsonl").write_text(json.dumps({"score": 1.0}) + "\n")
    subprocess.run(["make", "clean"], cwd=repo, check=True, capture_output=True)
    assert (repo / "runs" / "first" / "sessions.jsonl").exists()
    assert (repo / ".node" / "package-lock.json").exists()
    for gone in (".venv", ".node/node_modules", "agentkit/__pycache__", ".ruff_cache"):
        assert not (repo / gone).exists(), gone
