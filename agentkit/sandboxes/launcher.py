"""Layer: boundaries. The process that starts every bubblewrap of one kit process; run as a script.

Why a process of its own: it is small and has one thread, so that forking is cheap and safe
beside a trainer with gigabytes and threads; ``--die-with-parent`` watches the *thread* that
forked, which in a pool ends too early; and it ends, and with it every sandbox, when the kit's
process ends in any way. As root it lives in a private mount namespace where it binds what a
sandbox needs (the kit's Python may lie below a home of mode 0700) to paths that an unprivileged
uid can reach; these mounts vanish with it.

Requests come over a SOCK_SEQPACKET socket as JSON with descriptors attached:
``{"op": "stage", "path"}`` -> ``{"path"}``; ``{"op": "start", "argv", "number"}`` with descriptors
[standard error, exit notice, 10, 11, …] -> ``{"pid"}``; ``{"op": "kill", "pid"}`` -> ``{}``.
The exit notice closes once that bubblewrap, and so its whole process namespace, is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys

FIRST_FD = 10
"""Descriptors given to bubblewrap are numbered from here on."""

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
_NO_SUID_DEV = 2 | 4


class Stage:
    """As root: a private mount namespace with binds that any uid can reach. Else, and for a root
    that may not make one, nothing: ``root`` is empty and paths stay as they are."""

    def __init__(self) -> None:
        self.root = ""
        self.known: dict[str, str] = {}
        self.libc = ctypes.CDLL(None, use_errno=True)
        if os.geteuid() == 0 and self.libc.unshare(_CLONE_NEWNS) == 0:
            self._mount(None, "/", None, _MS_REC | _MS_PRIVATE)
            # Any directory does that holds nothing which a sandbox binds.
            self.root = next(p for p in ("/sys/kernel", "/media", "/mnt") if os.path.isdir(p))
            self._mount("tmpfs", self.root, "tmpfs", _NO_SUID_DEV, "mode=0755,size=1m")

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    def _mount(
        self, source: str | None, target: str, kind: str | None, flags: int, data: str = ""
    ) -> None:
        words = [None if w is None else os.fsencode(w) for w in (source, target, kind)]
        self._check(self.libc.mount(*words, flags, os.fsencode(data) or None), f"mount {target}")

    def path(self, path: str) -> str:
        """Where an unprivileged process of this namespace finds ``path``."""
        if not self.root:
            return path
        status = os.stat(path)
        key = f"{path}\0{status.st_dev}\0{status.st_ino}"
        if key not in self.known:
            target = f"{self.root}/{len(self.known)}"
            if os.path.isdir(path):
                os.mkdir(target, 0o755)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
            self._mount(path, target, None, _MS_BIND | _MS_REC)
            self.known[key] = target
        return self.known[key]


def spare_uid(number: int) -> int | None:
    """An unprivileged uid for one sandbox; None where this user namespace maps none.

    1879048192 to 2147483647 is listed as unused by systemd; a container maps 65536 uids at least.
    """
    with open("/proc/self/uid_map") as stream:
        spans = [tuple(map(int, line.split())) for line in stream]
    for first, count in ((1_900_000_000, 1 << 24), (20_000, 40_000)):
        if any(a <= first and first + count <= a + size for a, _, size in spans):
            return first + number % count
    return None


def become(uid: int | None) -> None:
    """Drop to ``uid`` for good, where there is one, and set limits that a child inherits."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 4096 if most == resource.RLIM_INFINITY else min(4096, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def start(argv: list[str], uid: int | None, descriptors: list[int]) -> int:
    """Fork and execute bubblewrap with ``descriptors`` [stderr, 10, 11, …]; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200) for fd in descriptors]
        os.dup2(high[0], 2)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        for number, fd in enumerate(high[1:], FIRST_FD):
            os.dup2(fd, number)
        become(uid)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        # An empty environment: bubblewrap's own shows inside as /proc/1/environ.
        os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin"})
    except BaseException as error:
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


class Server:
    """Serves requests until the kit's process is gone."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self.control, self.stage = control, Stage()
        self.exits: dict[int, tuple[int, int]] = {}
        """pidfd -> (pid, exit notice)."""
        self.poll = select.poll()
        self.parent = os.pidfd_open(parent)
        for fd in (self.parent, control.fileno()):
            self.poll.register(fd, select.POLLIN)

    def handle(self, request: dict, fds: list[int]) -> dict:  # type: ignore[type-arg]
        if request["op"] == "stage":
            return {"path": self.stage.path(request["path"])}
        if request["op"] == "start":
            uid = spare_uid(request["number"]) if self.stage.root else None
            pid = start(request["argv"], uid, [fds[0], *fds[2:]])
            pidfd = os.pidfd_open(pid)
            self.exits[pidfd] = (pid, os.dup(fds[1]))
            self.poll.register(pidfd, select.POLLIN)
            return {"pid": pid}
        self.kill(request["pid"])
        return {}

    def kill(self, pid: int) -> None:
        """Kill the sandbox's process 1 first, so that bubblewrap still waits for it to be gone."""
        if all(pid != known for known, _ in self.exits.values()):
            return
        with open(f"/proc/{pid}/task/{pid}/children") as stream:
            victims = [int(word) for word in stream.read().split()] or [pid]
        for victim in victims:
            os.kill(victim, signal.SIGKILL)

    def receive(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self.control, 1 << 16, 64)
        if not message:
            return False
        try:
            answer = self.handle(json.loads(message), fds)
        except (OSError, StopIteration) as error:
            answer = {"error": str(error)}
        finally:
            for fd in fds:
                os.close(fd)
        self.control.sendall(json.dumps(answer).encode())
        return True

    def run(self) -> None:
        while True:
            for fd, _ in self.poll.poll():
                if fd == self.parent or (fd == self.control.fileno() and not self.receive()):
                    return
                if fd in self.exits:
                    pid, notice = self.exits.pop(fd)
                    self.poll.unregister(fd)
                    os.waitpid(pid, 0)
                    os.close(fd)
                    os.close(notice)


def main() -> None:
    """``launcher.py CONTROL_DESCRIPTOR PARENT_PID``; ends with its parent, whenever that ends."""
    link = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(link.fileno(), False)
    with contextlib.suppress(ProcessLookupError, ConnectionError):  # the parent is gone already
        try:
            server = Server(link, int(sys.argv[2]))
        except OSError as error:
            link.sendall(json.dumps({"error": str(error)}).encode())
            raise SystemExit(1) from None
        link.sendall(b"{}")
        server.run()


if __name__ == "__main__":
    main()
