"""Hidden validator of one task: run the checks of spec.json on the workspace in /work.

Exit status 0: every check passed. With ``--record`` it prints what it observed instead; the task
was built that way, so that building and grading are the same code. Standard library only.

The submission runs in processes of its own, in their own session, with a time and an output limit;
only text crosses. The tests are read into memory and removed before any of it runs.
"""

# os.path is loaded anyway, pathlib is not, and this starts often.
from __future__ import annotations

# Few and light imports: this program starts for every validation of every session.
import json
import math
import os
import re
import select
import stat
import sys

TYPE_CHECKING = False  # as typing has it, without loading typing

if TYPE_CHECKING:
    from typing import Any

    Tree = dict[str, tuple[bytes, int]]
    """Relative path -> (content, mode)."""

TESTS, WORK = "/tests", "/work"
MAX_OUTPUT = 1 << 20
SIGKILL = 9
MAX_FILE, MAX_FILES = 4 << 20, 2000
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "TZ", "LANG")
ENVIRONMENT = {k: os.environ[k] for k in KEPT_VARIABLES if k in os.environ}
# Two edits of a module within one second would otherwise run stale bytecode.
ENVIRONMENT["PYTHONDONTWRITEBYTECODE"] = "1"


def read_tree(root: str) -> Tree:
    """Relative path -> (content, mode) of regular files; links and devices are left out."""
    found: Tree = {}
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if n != "__pycache__"]
        for name in files:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE:
                continue
            with open(path, "rb") as handle:
                found[os.path.relpath(path, root)] = (handle.read(), info.st_mode & 0o777)
            if len(found) > MAX_FILES:
                raise SystemExit("too many files")
    return found


def empty(root: str) -> None:
    """Remove all that is below ``root``, as far as the rights allow; links are not followed."""
    for folder, names, files in os.walk(root, topdown=False):
        for name in files + names:
            path = os.path.join(folder, name)
            try:
                if name in names and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
            except OSError:
                pass


def write_file(path: str, data: bytes, mode: int) -> None:
    full = os.path.join(WORK, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "wb") as handle:
        handle.write(data)
    os.chmod(full, mode)


class Validator:
    """One run over all checks; every check starts from the submission as it was handed in."""

    def __init__(self, spec: dict[str, Any], kept: dict[str, bytes], runner: str) -> None:
        self.spec, self.kept, self.runner = spec, kept, runner
        self.submission = read_tree(WORK)

    def lay_out(self, check: dict[str, Any]) -> None:
        """The submission, with protected files put back and a check's own data on top."""
        empty(WORK)
        try:
            for path, (data, mode) in self.submission.items():
                write_file(path, data, mode)
            for path in check.get("restore", ()):
                data = self.kept[path]
                write_file(path, data, 0o755 if data.startswith(b"#!") else 0o644)
            for path, text in check.get("variant", {}).items():
                write_file(path, text.encode(), 0o644)
            for path, words in check.get("substitute", {}).items():
                data, mode = self.submission.get(path, (b"", 0o644))
                write_file(path, substitute(data, words), mode)
        except OSError as error:
            # A submission that made a folder where a protected file belongs.
            raise SystemExit(f"the workspace cannot be laid out: {error}") from error

    def execute(self, argv: list[str], stdin: bytes = b"") -> tuple[int | None, str, str]:
        """(exit status or None, stdout, stderr) of a process tree with limits."""
        # ulimit -f (KiB) ends a process that floods its output, which goes to memory files.
        limited = ["bash", "-c", 'ulimit -f 8192; exec "$@"', "run", *argv]
        given, out, err = (os.memfd_create(n) for n in ("stdin", "stdout", "stderr"))
        os.write(given, stdin)
        os.lseek(given, 0, os.SEEK_SET)
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                os.chdir(WORK)
                for number, descriptor in enumerate((given, out, err)):
                    os.dup2(descriptor, number)
                os.execvpe("bash", limited, ENVIRONMENT)
            finally:
                os._exit(127)
        status = _wait(child, self.spec["timeout_s"])
        try:
            texts = [os.pread(f, MAX_OUTPUT, 0).decode("utf-8", "replace") for f in (out, err)]
        finally:
            for descriptor in (given, out, err):
                os.close(descriptor)
        return status, texts[0], texts[1]

    def observe(self, check: dict[str, Any]) -> dict[str, Any]:
        """What the submission does under one check, as plain data."""
        self.lay_out(check)
        if check["type"] == "run":
            status, out, err = self.execute(["bash", "-c", check["command"]])
            return {"exit": status, "stdout": out, "stderr": err}
        if check["type"] == "calls":
            job = {"module": check["module"], "cases": check["cases"]}
            argv = ["python3", "-I", "-S", "-c", self.runner]
            _, out, _ = self.execute(argv, json.dumps(job).encode())
            return {"results": _json_lines(out)}
        answer = self.submission.get(check["path"])
        status, out, _ = self.execute(["bash", "-c", check["command"]])
        text = None if answer is None else answer[0].decode("utf-8", "replace")
        return {"answer": text, "exit": status, "recomputed": out}

    def passes(self, check: dict[str, Any]) -> bool:
        seen, expected = self.observe(check), check.get("expected", {})
        if check["type"] == "run":
            same = seen["exit"] == expected["exit"]
            same = same and normal(seen["stdout"]) == normal(expected["stdout"])
            if "stderr" in expected:
                same = same and normal(seen["stderr"]) == normal(expected["stderr"])
            return same
        if check["type"] == "calls":
            if len(seen["results"]) != len(expected["results"]):
                return False
            pairs = zip(seen["results"], expected["results"], strict=True)
            return all(
                isinstance(s, dict) and all(k in s and alike(s[k], e[k]) for k in e)
                for s, e in pairs
            )
        if seen["answer"] is None or seen["exit"] != 0 or not normal(seen["recomputed"]):
            return False
        return same_answer(seen["answer"], seen["recomputed"])


def _wait(child: int, timeout_s: float) -> int | None:
    """Exit status of ``child``, None at the time limit; its whole process group is then killed."""
    watch = os.pidfd_open(child)
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    ended = poll.poll(timeout_s * 1000)
    try:
        os.killpg(child, SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    os.close(watch)
    _, code = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(code) if ended else None


def substitute(data: bytes, words: dict[str, str]) -> bytes:
    """Whole words of a text exchanged for others, all at once."""
    names = "|".join(re.escape(w) for w in sorted(words, key=len, reverse=True))
    pattern = rf"(?<![\w.])(?:{names})(?![\w.])".encode()
    return re.sub(pattern, lambda m: words[m[0].decode()].encode(), data)


def _json_lines(text: str) -> list[Any]:
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append(None)
    return found


def normal(text: str) -> str:
    """Text without what may differ between honest runs: line ends, blank tail, times, addresses."""
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    text = "\n".join(lines).strip("\n")
    text = re.sub(r"\bin \d+\.\d+ ?s\b", "in _s", text)
    return re.sub(r"\b0x[0-9a-f]{6,}\b", "0x_", text)


def same_answer(given: str, wanted: str) -> bool:
    """Equal but for surrounding space; numbers by value, so that 3 and 3.0 are the same answer."""
    given, wanted = normal(given).strip(), normal(wanted).strip()
    if given == wanted:
        return True
    number = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)")
    if number.fullmatch(given) and number.fullmatch(wanted):
        return math.isclose(float(given), float(wanted), rel_tol=1e-9)
    return False


def alike(a: Any, b: Any) -> bool:
    """Equality of tagged plain data; floats within 1e-9, and an int equals the same float."""
    a, b = number(a), number(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and a == b


def number(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("float"), str):
        try:
            return float(value["float"])
        except ValueError:
            return value
    return value


def main() -> int:
    with open(os.path.join(TESTS, "spec.json")) as handle:
        spec = json.load(handle)
    with open(os.path.join(TESTS, "calls.py")) as handle:
        runner = handle.read()
    files = os.path.join(TESTS, "files")
    kept = {path: data for path, (data, _) in read_tree(files).items()}
    validator = Validator(spec, kept, runner)
    if sys.argv[1:] == ["--record"]:
        json.dump([validator.observe(check) for check in spec["checks"]], sys.stdout)
        return 0
    empty(TESTS)
    for index, check in enumerate(spec["checks"]):
        if not validator.passes(check):
            print(f"check {index + 1} of {len(spec['checks'])} ({check['type']}) failed")
            return 1
    print(f"{len(spec['checks'])} checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
