"""Layer: boundaries. Process 1 of a bubblewrap sandbox; the host imports only ``pack``/``unpack``.

One loop without threads runs the host's requests (``exec``, ``put``, ``get``), relays
127.0.0.1:8000 to the gateway's unix socket and reaps orphans. Being process 1 of its namespace,
the agent can neither kill it nor outlive it: when the host's end of the control socket closes,
it exits, and the kernel kills all that is left.

Start time is part of every sandbox's cost, so this file imports C modules only (``_socket`` and
``_signal`` instead of ``socket`` and ``signal``, which import enum: 8 ms).

Messages in both directions: 8 bytes length, then fields of 4 bytes length and content each.
"""

# ruff: noqa: PTH - pathlib would cost 10 ms at each start, and paths here are bytes
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[[int, int], None]
if TYPE_CHECKING or __name__ == "__main__":
    import _signal
    import _socket
    import errno
    import resource
    import select
    import time

CHUNK = 1 << 16
SOCKET_PATH = "/run/gateway/socket"
DEFAULT_PORT = 8000


def pack(fields: list[bytes]) -> bytes:
    """Frame ``fields`` as one message."""
    body = b"".join(len(f).to_bytes(4, "big") + f for f in fields)
    return len(body).to_bytes(8, "big") + body


def unpack(body: bytes) -> list[bytes]:
    """Fields of a message body (without its 8 bytes of length). Raises ValueError when torn."""
    fields, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if at + 4 + size > len(body):
            raise ValueError("torn message")
        fields.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return fields


class Pump:
    """One direction of a relayed connection, with back-pressure and half-close."""

    def __init__(self, source: _socket.socket, sink: _socket.socket) -> None:
        self.source, self.sink = source, sink
        self.pending, self.ended, self.done = b"", False, False

    def read(self) -> None:
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.pending += data
        self.ended = not data
        self.write()

    def write(self) -> None:
        try:
            while self.pending:
                self.pending = self.pending[self.sink.send(self.pending) :]
        except BlockingIOError:
            return
        except OSError:
            self.pending, self.ended = b"", True
        if self.ended and not self.done:
            self.done = True
            try:
                self.sink.shutdown(_socket.SHUT_WR)
            except OSError:
                pass


class Connection:
    """A connection of the sandbox to 127.0.0.1:8000 and its twin to the gateway's socket."""

    def __init__(self, loop: Loop, inside: _socket.socket, outside: _socket.socket) -> None:
        self.loop, self.ends = loop, (inside, outside)
        self.up, self.down = Pump(inside, outside), Pump(outside, inside)
        for end in self.ends:
            end.setblocking(False)
            loop.watch(end.fileno(), select.EPOLLIN, self.ready)

    def ready(self, fd: int, events: int) -> None:
        inside = fd == self.ends[0].fileno()
        reads, writes = (self.up, self.down) if inside else (self.down, self.up)
        if events & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
            writes.write()
        if events & ~select.EPOLLOUT and not reads.pending and not reads.ended:
            reads.read()
        gone = events & select.EPOLLHUP and reads.ended and not reads.pending
        if (self.up.done and self.down.done) or events & select.EPOLLERR or gone:
            for end in self.ends:
                self.loop.forget(end.fileno())
                end.close()
            return
        for end, source, sink in zip(
            self.ends, (self.up, self.down), (self.down, self.up), strict=True
        ):
            wanted = 0 if source.pending or source.ended else select.EPOLLIN
            if sink.pending:
                wanted |= select.EPOLLOUT
            self.loop.change(end.fileno(), wanted)


class Loop:
    """epoll with one callback for each descriptor."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.calls: dict[int, Callback] = {}

    def watch(self, fd: int, events: int, call: Callback) -> None:
        self.calls[fd] = call
        self.poll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        self.poll.modify(fd, events)

    def forget(self, fd: int) -> None:
        if self.calls.pop(fd, None):
            self.poll.unregister(fd)

    def turn(self, timeout_s: float = -1) -> None:
        for fd, events in self.poll.poll(timeout_s):
            if call := self.calls.get(fd):
                call(fd, events)


class Relay:
    """Accepts on loopback; one unix connection to the gateway for each."""

    def __init__(self, loop: Loop, port: int) -> None:
        self.loop = loop
        self.server = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self.server.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        self.server.bind(("127.0.0.1", port))
        self.server.listen(128)
        self.server.setblocking(False)
        loop.watch(self.server.fileno(), select.EPOLLIN, self.accept)

    def accept(self, fd: int, events: int) -> None:
        try:
            inside = _socket.socket(fileno=self.server._accept()[0])  # type: ignore[attr-defined]
        except OSError:
            return
        outside = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        outside.settimeout(5)
        try:
            outside.connect(SOCKET_PATH)
        except OSError:
            inside.close()
            outside.close()
            return
        inside.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        Connection(self.loop, inside, outside)


def kill_all() -> None:
    """Kill and reap every other process of the namespace. A fork bomb cannot outrun it: the
    kernel refuses to fork a process with a pending SIGKILL."""
    try:
        while True:
            try:
                os.kill(-1, 9)
            except ProcessLookupError:
                pass
            os.waitpid(-1, 0)
    except ChildProcessError:
        return


class Command:
    """One running command: its main process, its output, its deadline."""

    def __init__(self, loop: Loop, request: list[bytes]) -> None:
        (cwd, timeout_ms, processes, data_mb, limit, stdin, count), rest = request[:7], request[7:]
        self.loop, self.limit = loop, int(limit)
        self.argv, self.env = rest[: int(count)], rest[int(count) :]
        self.cwd, self.stdin = cwd, stdin
        self.limits = (int(processes), int(data_mb) << 20)
        self.output: dict[int, bytearray] = {}
        self.truncated = False
        self.status: int | None = None
        self.started = time.monotonic()
        self.deadline = self.started + int(timeout_ms) / 1000
        self.pid = self.spawn()

    def spawn(self) -> int:
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        entry = os.memfd_create("stdin") if self.stdin else os.open("/dev/null", os.O_RDONLY)
        if self.stdin:
            os.write(entry, self.stdin)
            os.lseek(entry, 0, 0)
        pid = os.fork()
        if pid == 0:
            self.child(entry, pipes[0][1], pipes[1][1])
        os.close(entry)
        for end, write_end in pipes:
            os.close(write_end)
            os.set_blocking(end, False)
            self.output[end] = bytearray()
            self.loop.watch(end, select.EPOLLIN, self.read)
        return pid

    def child(self, *streams: int) -> None:
        try:
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
            os.setsid()
            # Python ignores these two, and an ignored signal stays ignored across exec.
            _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
            _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
            processes, data = self.limits
            resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
            resource.setrlimit(resource.RLIMIT_DATA, (data, data))
            os.chdir(self.cwd)
            env = dict(pair.split(b"=", 1) for pair in self.env)
            os.execvpe(self.argv[0], self.argv, env)
        except BaseException as error:
            os.write(2, f"cannot run {os.fsdecode(self.argv[0])}: {error}\n".encode())
        finally:
            os._exit(127)

    def read(self, fd: int, events: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.loop.forget(fd)
            return
        room = self.limit - len(self.output[fd])
        self.output[fd] += data[:room]
        self.truncated = self.truncated or len(data) > room

    def finish(self) -> list[bytes]:
        """Reply once the main process is gone or late; nothing of it stays alive."""
        duration = time.monotonic() - self.started
        kill_all()
        for fd in self.output:
            while fd in self.loop.calls:
                self.read(fd, 0)
            os.close(fd)
        status = b"" if self.status is None else str(self.status).encode()
        return [b"ok", status, f"{duration:.6f}".encode(), b"1" if self.truncated else b"0",
                *map(bytes, self.output.values())]  # fmt: skip


def put(request: list[bytes]) -> list[bytes]:
    """Write files (path, content, path, content, …) below the first field."""
    base = request[0]
    os.makedirs(base, exist_ok=True)
    for name, data in zip(request[1::2], request[2::2], strict=True):
        target = base + b"/" + name
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.lexists(target):
            os.unlink(target)
        mode = 0o755 if data.startswith(b"#!") else 0o644
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
    return [b"ok"]


def get(request: list[bytes]) -> list[bytes]:
    """Regular files below a path; no link is followed, nothing blocks, sizes are bounded first."""
    base, max_bytes, max_files = request[0], int(request[1]), int(request[2])
    found: list[bytes] = []
    total, seen, folders = 0, 0, [base]
    if os.path.islink(base) or not os.path.isdir(base):
        return [b"error", b"no such directory"]
    while folders:
        folder = folders.pop()
        try:
            os.chmod(folder, 0o700)
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > 4 * max_files or len(found) > 2 * max_files:
                return [b"too large", b"more than %d files" % max_files]
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_size
                if total > max_bytes or len(found) >= 2 * max_files:
                    what = b"more than %d bytes or %d files" % (max_bytes, max_files)
                    return [b"too large", what]
                found += [entry.path[len(base) :].lstrip(b"/"), read_regular(entry.path)]
    return [b"ok", *found]


def read_regular(path: bytes) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        os.chmod(path, 0o600)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as stream:
        return stream.read()


class Supervisor:
    """Reads requests from the control socket and answers them one at a time."""

    def __init__(self, control: int, port: int) -> None:
        self.loop = Loop()
        self.command: Command | None = None
        self.control = _socket.socket(fileno=control)
        os.set_inheritable(control, False)
        self.inbox = bytearray()
        # A signal must wake the poll: the write end gets a byte for every SIGCHLD.
        wake, signal_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(signal_end)
        self.loop.watch(wake, select.EPOLLIN, self.reap)
        self.loop.watch(control, select.EPOLLIN, self.receive)
        if port:
            Relay(self.loop, port)

    def answer(self, fields: list[bytes]) -> None:
        self.control.setblocking(True)
        self.control.sendall(pack(fields))

    def reap(self, fd: int, events: int) -> None:
        try:
            os.read(fd, 4096)
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if self.command and pid == self.command.pid:
                    self.command.status = os.waitstatus_to_exitcode(status)
                    self.end()
        except (ChildProcessError, BlockingIOError):
            return

    def end(self) -> None:
        if self.command:
            command, self.command = self.command, None
            self.answer(command.finish())

    def receive(self, fd: int, events: int) -> None:
        data = self.control.recv(1 << 20)
        if not data:
            os._exit(0)
        self.inbox += data
        size = int.from_bytes(self.inbox[:8], "big")
        if len(self.inbox) >= 8 + size:
            fields = unpack(bytes(self.inbox[8 : 8 + size]))
            del self.inbox[: 8 + size]
            self.handle(fields[0], fields[1:])

    def handle(self, operation: bytes, request: list[bytes]) -> None:
        try:
            if operation == b"exec":
                self.command = Command(self.loop, request)
            elif operation == b"put":
                self.answer(put(request))
            elif operation == b"get":
                self.answer(get(request))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.answer([b"too large" if full else b"error", os.fsencode(str(error))])

    def run(self) -> None:
        self.answer([b"ready"])
        while True:
            command = self.command
            self.loop.turn(max(0.0, command.deadline - time.monotonic()) if command else -1)
            if self.command is not None and time.monotonic() >= self.command.deadline:
                self.end()


def hide_from_agent() -> None:
    """PR_SET_DUMPABLE 0: /proc/1/mem and /proc/1/fd stay closed to processes of the same uid."""
    import _ctypes

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")  # type: ignore[arg-type]
    if _ctypes.call_function(prctl, (4, 0, 0, 0, 0)) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


if __name__ == "__main__":
    hide_from_agent()
    Supervisor(int(sys.argv[1]), int(sys.argv[2])).run()
