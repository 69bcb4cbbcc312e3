"""Layer: boundaries. Process 1 of a bubblewrap sandbox. Runs inside only; run as a script.

One loop without threads runs the host's requests (``exec``, ``put``, ``get``), relays
127.0.0.1:8000 to the gateway's unix socket and reaps orphans. Being process 1 of its namespace,
the agent can neither kill it nor outlive it: when the host's end of the control socket closes,
it exits, and the kernel kills all that is left.

Start time is part of every sandbox's cost, so the files of this folder import C modules only
(``_socket`` and ``_signal`` instead of ``socket`` and ``signal``, which import enum: 8 ms).
"""

from __future__ import annotations

import _signal
import _socket
import errno
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentkit.sandboxes.inside.exchange import get, pack, put, unpack
    from agentkit.sandboxes.inside.relay import CHUNK, Loop, Relay
else:  # inside, the compiled files lie side by side and there is no package
    sys.path.insert(0, "/run/agentkit")
    from exchange import get, pack, put, unpack
    from relay import CHUNK, Loop, Relay


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
