"""Layer: boundaries. Inside a sandbox: the event loop, and the relay from loopback to the gateway.

Agents reach 127.0.0.1:8000; each connection gets a twin to the gateway's unix socket. C modules
only, see ``supervisor.py``.
"""

from __future__ import annotations

import _socket
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[[int, int], None]

CHUNK = 1 << 16
SOCKET_PATH = "/run/gateway/socket"


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
