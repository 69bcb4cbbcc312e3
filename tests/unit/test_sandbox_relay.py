"""The relay from loopback to a unix socket, on the host, against real sockets."""

from __future__ import annotations

import hashlib
import os
import socket
import threading

import pytest

from agentkit.sandboxes.inside import relay as relay_module
from agentkit.sandboxes.inside.relay import Loop, Relay


@pytest.fixture
def relayed(tmp_path, monkeypatch):
    """(connect, accept, connections): a running relay; ``accept`` gives the gateway's end."""
    path = tmp_path / "s"
    monkeypatch.setattr(relay_module, "SOCKET_PATH", str(path))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(64)
    server.settimeout(10)
    loop = Loop()
    relay = Relay(loop, 0)
    read, write = os.pipe()
    stopped = []
    loop.watch(read, 1, lambda fd, events: stopped.append(fd))

    def run():
        while not stopped:
            loop.turn(10)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def connect():
        return socket.create_connection(relay.server.getsockname(), timeout=10)

    yield connect, lambda: server.accept()[0], lambda: len(loop.calls) - 2
    os.write(write, b"x")
    thread.join(5)
    server.close()
    os.close(read)
    os.close(write)


def _read_all(end):
    parts = []
    while data := end.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def _eventually(condition):
    for _ in range(500):
        if condition():
            return True
        threading.Event().wait(0.01)
    return False


def test_megabytes_both_ways_with_a_slow_reader(relayed):
    connect, accept, connections = relayed
    client = connect()
    gateway = accept()
    gateway.settimeout(20)
    up, down = os.urandom(6 << 20), os.urandom(6 << 20)
    got = {}
    threads = [
        threading.Thread(target=lambda: (client.sendall(up), client.shutdown(1))),
        threading.Thread(target=lambda: (gateway.sendall(down), gateway.shutdown(1))),
        threading.Thread(target=lambda: got.update(up=_read_all(gateway))),
    ]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.3)  # nobody reads the client yet: back-pressure must hold
    got["down"] = _read_all(client)
    for thread in threads:
        thread.join(20)
    assert hashlib.sha256(got["up"]).digest() == hashlib.sha256(up).digest()
    assert hashlib.sha256(got["down"]).digest() == hashlib.sha256(down).digest()
    client.close()
    gateway.close()
    assert _eventually(lambda: connections() == 0)


def test_a_request_that_ends_its_side_still_gets_the_answer(relayed):
    connect, accept, _ = relayed
    client = connect()
    gateway = accept()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert _read_all(gateway) == b"question"
    gateway.sendall(b"answer")
    gateway.close()
    assert _read_all(client) == b"answer"
    client.close()


@pytest.mark.parametrize("who", ["client", "gateway"])
def test_when_one_end_goes_the_other_is_closed(relayed, who):
    connect, accept, connections = relayed
    client = connect()
    gateway = accept()
    gateway.settimeout(5)
    going, staying = (client, gateway) if who == "client" else (gateway, client)
    going.close()
    assert staying.recv(10) == b""
    staying.close()
    assert _eventually(lambda: connections() == 0)


def test_without_a_gateway_the_connection_is_closed(relayed, monkeypatch):
    connect, _, _ = relayed
    monkeypatch.setattr(relay_module, "SOCKET_PATH", "/nonexistent")
    client = connect()
    try:
        assert client.recv(10) == b""
    except ConnectionError:
        pass
    client.close()
