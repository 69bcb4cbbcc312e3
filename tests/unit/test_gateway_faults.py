"""Every fault of engine, harness and request: what is told and logged; no turn is made of it."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from agentkit.errors import GatewayError
from agentkit.serving.gateway import Gateway
from agentkit.serving.scripted import (
    Scripted,
)
from tests.gateway_house import (
    POLICY,
    USER,
    check_tokens,
    houses,
    raw_request,
    until,
)
from tests.scripted_engine import OK, always, fault, once

house = pytest.fixture(houses, name="house")


BAD_ENGINE = ["404", "429", "500", "cut", "refuse", "malformed", "empty_200", "no_token_ids",
              "short_logprobs", "nan_logprob", "wrong_model", "wrong_usage", "two_choices",
              "aborted"]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BAD_ENGINE)
def test_engine_fault_is_told_logged_and_no_turn(house: Any, name: str, stream: bool) -> None:
    h = house(once(name, OK))
    key = h.gateway.open(POLICY)
    response = h.post(key, stream)
    assert response.status_code == {"404": 404, "429": 429}.get(name, 502)
    assert response.json()["error"]["message"]
    log = h.gateway.peek(key)
    assert log.turns == [] and [e["type"] for e in log.events] == ["engine_error"]
    assert log.events[0]["reason"] and log.events[0]["status"] == response.status_code
    assert h.post(key, stream).status_code == 200  # the harness tries again
    log = h.gateway.close(key)
    assert len(log.turns) == 1 and len(log.events) == 1
    first, second = h.engine.requests
    assert first == second  # the same turn: same seed, same sampling
    check_tokens(log, [second])


def test_engine_400_is_passed_on_with_its_words(house: Any) -> None:
    h = house(fault("400"))
    key = h.gateway.open(POLICY)
    response = h.post(key, stream=True)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "scripted 400"
    log = h.gateway.close(key)
    assert [e["type"] for e in log.events] == ["bad_request"] and log.turns == []


def test_context_overflow_is_told_apart(house: Any) -> None:
    h = house(fault("overflow"))
    key = h.gateway.open(POLICY)
    assert "maximum context length" in h.post(key).json()["error"]["message"]
    log = h.gateway.close(key)
    assert log.has("context_overflow") and log.has("bad_request") and not log.has("engine_error")


def test_no_engine_at_all() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with Gateway(f"http://127.0.0.1:{port}/v1") as gateway:
        key = gateway.open(POLICY)
        url = f"{gateway.base_url(key)}/chat/completions"
        assert httpx.post(url, json={"messages": USER}).status_code == 502
        assert gateway.close(key).events[0]["type"] == "engine_error"


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_engine_is_given_up(house: Any, stream: bool) -> None:
    h = house(fault("hang"), engine_timeout_s=0.5)
    key = h.gateway.open(POLICY)
    response = h.post(key, stream)
    assert response.status_code == 504
    log = h.gateway.close(key)
    assert log.turns == [] and "within 0.5 s" in log.events[0]["reason"]
    assert until(lambda: h.engine.aborted == 1)


def test_error_after_a_heartbeat_is_an_event_and_never_a_whole_answer(house: Any) -> None:
    h = house(fault("hang"), heartbeat_s=0.1, engine_timeout_s=0.35)
    key = h.gateway.open(POLICY)
    response = h.post(key, stream=True)
    assert response.status_code == 200 and "[DONE]" not in response.text
    event = response.text.split("data: ", 1)[1]
    assert json.loads(event)["error"]["code"] == 504
    log = h.gateway.close(key)
    assert log.turns == [] and log.has("engine_error")


@pytest.mark.parametrize("beat", [5.0, 0.05])
@pytest.mark.parametrize("stream", [False, True])
def test_harness_that_hangs_up_while_the_engine_works(
    house: Any, stream: bool, beat: float
) -> None:
    h = house(once("hang", OK), heartbeat_s=beat)
    key = h.gateway.open(POLICY)
    s = raw_request(h, key, stream)
    assert until(lambda: len(h.engine.requests) == 1)
    time.sleep(0.15)
    s.close()
    assert until(lambda: h.engine.aborted == 1), "the engine must be told to stop"
    assert until(lambda: h.gateway.peek(key).has("client_gone"))
    assert h.post(key, stream).status_code == 200
    log = h.gateway.close(key)
    assert len(log.turns) == 1 and [e["type"] for e in log.events] == ["client_gone"]
    assert h.engine.requests[0] == h.engine.requests[1]


BIG = Scripted("words", reasoning="x" * (24 << 20))
"""More than the socket buffers hold: it is not delivered before somebody reads it."""


@pytest.mark.parametrize("stream", [False, True])
def test_harness_that_hangs_up_in_mid_answer(house: Any, stream: bool) -> None:
    h = house(always(BIG), engine_timeout_s=60)
    key = h.gateway.open(POLICY)
    s = raw_request(h, key, stream)
    assert b"200 OK" in s.recv(1000)  # the answer is on its way
    assert h.gateway.peek(key).turns == []
    s.close()
    assert until(lambda: h.gateway.peek(key).has("client_gone"))
    assert h.gateway.close(key).turns == []


def test_harness_that_never_reads_counts_as_gone(house: Any) -> None:
    h = house(always(BIG), write_timeout_s=0.5, engine_timeout_s=60)
    key = h.gateway.open(POLICY)
    s = raw_request(h, key, stream=True)
    assert until(lambda: h.gateway.peek(key).has("client_gone"), 20)
    log = h.gateway.close(key)
    assert log.turns == [] and "not read within" in log.events[0]["reason"]
    s.close()


def test_slow_reader_gets_all_and_is_recorded_at_the_end(house: Any) -> None:
    h = house(always(BIG), engine_timeout_s=60)
    key = h.gateway.open(POLICY)
    body = {"messages": USER, "stream": False}
    with httpx.stream("POST", h.path(key), json=body, timeout=30) as response:
        total = 0
        for i, chunk in enumerate(response.iter_bytes(1 << 20)):
            total += len(chunk)
            if i == 3:
                assert h.gateway.peek(key).turns == []
    assert total > 24 << 20 and len(h.gateway.close(key).turns) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_bytes_count_too(house: Any, stream: bool) -> None:
    """All but a few kB fit into the kernel's buffers: still no turn before they are read."""
    a, b = socket.socketpair()
    with a, b:
        a.setblocking(False)
        fits = a.send(b"x" * (16 << 20))
    h = house(always(Scripted("words", reasoning="x" * (fits + 20_000))))
    key = h.gateway.open(POLICY)
    body = json.dumps({"messages": USER, "stream": stream}).encode()
    head = f"POST /s/{key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(h.gateway.socket_path))
        s.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert s.recv(1, socket.MSG_PEEK)
        time.sleep(0.2)
        assert h.gateway.peek(key).turns == []
        while s.recv(1 << 20):
            pass
    assert len(h.gateway.close(key).turns) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_closing_a_session_cancels_its_request(house: Any, stream: bool) -> None:
    h = house(fault("hang"), heartbeat_s=0.05)
    key = h.gateway.open(POLICY)
    gone: list[str] = []

    def ask() -> None:
        try:
            h.post(key, stream)
        except httpx.HTTPError as error:
            gone.append(type(error).__name__)

    thread = threading.Thread(target=ask)
    thread.start()
    assert until(lambda: len(h.engine.requests) == 1)
    log = h.gateway.close(key)
    thread.join(5)
    assert gone and log.turns == [] and log.events == []
    assert until(lambda: h.engine.aborted == 1)
    assert h.post(key).status_code == 404
    with pytest.raises(GatewayError, match="unknown session"):
        h.gateway.close(key)


def test_bad_requests(house: Any) -> None:
    h = house(OK)
    key = h.gateway.open(POLICY)
    for data in (b"{", b"[]", b'{"messages": []}'):
        response = httpx.post(h.path(key), content=data)
        assert response.status_code == 400 and response.json()["error"]["code"] == 400
    log = h.gateway.close(key)
    assert [e["type"] for e in log.events] == ["bad_request"] * 3
    assert log.turns == [] and h.engine.requests == [] and log.first_request is None


@pytest.mark.parametrize("chunked", [False, True])
def test_body_over_the_limit_is_refused(house: Any, chunked: bool) -> None:
    h = house(OK)
    key = h.gateway.open(POLICY)
    data = b" " * ((32 << 20) + 1)
    parts = (data[i : i + (1 << 20)] for i in range(0, len(data), 1 << 20))
    try:
        response = httpx.post(h.path(key), content=parts if chunked else data, timeout=30)
        assert response.status_code == 413 and response.json()["error"]["code"] == 413
    except httpx.WriteError:
        pass  # the gateway may close before it has read everything
    assert h.post(key).status_code == 200
    log = h.gateway.close(key)
    assert [e["type"] for e in log.events] == ["bad_request"] and len(log.turns) == 1
