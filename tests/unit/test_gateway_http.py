"""The gateway over real sockets: what is recorded, and what is not, under every fault."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkit.errors import GatewayError
from agentkit.serving.gateway import Gateway, timings
from agentkit.serving.scripted import (
    Script,
    Scripted,
    ScriptedEngine,
    answer_tokens,
    prompt_tokens,
    token_logprobs,
)
from agentkit.types import Policy, SessionLog
from tests.scripted_engine import OK, always, fault, once, slow
from tests.unit.test_gateway_wire import read_sse

TOOLS = [{"type": "function", "function": {"name": n}} for n in ("bash", "write")]
USER = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
POLICY = Policy("base", max_tokens=50, max_turns=4, seed=3)


class House:
    """A scripted engine and a gateway before it."""

    def __init__(self, script: Script, **settings: Any) -> None:
        self.engine = ScriptedEngine(script).start()
        self.gateway = Gateway(self.engine.url, **settings).start()

    def stop(self) -> None:
        self.gateway.stop()
        self.engine.stop()

    def post(self, key: str, stream: bool = False, **more: Any) -> httpx.Response:
        body = {"model": "m", "messages": USER, "tools": TOOLS, "stream": stream, **more}
        return httpx.post(self.path(key), json=body, timeout=30)

    def path(self, key: str) -> str:
        return f"{self.gateway.base_url(key)}/chat/completions"


@pytest.fixture
def house() -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def build(script: Script, **settings: Any) -> House:
        houses.append(House(script, **settings))
        return houses[-1]

    yield build
    for h in houses:
        h.stop()


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


def answer_of(response: httpx.Response, stream: bool) -> tuple[dict[str, Any], str | None]:
    if stream:
        message, finish, _ = read_sse(response.content)
        return message, finish
    choice = response.json()["choices"][0]
    return choice["message"], choice["finish_reason"]


def play(h: House, key: str, stream: bool, turns: int = 9, ask: str = "u") -> list[dict[str, Any]]:
    """A harness: asks, runs the calls, and ends at plain text. Returns the whole conversation."""
    messages: list[dict[str, Any]] = [USER[0], {"role": "user", "content": ask}]
    with httpx.Client(timeout=60) as client:
        for _ in range(turns):
            body = {"model": "m", "messages": messages, "tools": TOOLS, "stream": stream}
            response = client.post(h.path(key), json=body)
            assert response.status_code == 200, response.text
            message, finish = answer_of(response, stream)
            messages = [*messages, message]
            if finish != "tool_calls":
                break
            for call in message["tool_calls"]:
                tool = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
                messages = [*messages, tool]
    return messages


def check_tokens(log: SessionLog, requests: list[dict[str, Any]]) -> None:
    """Every turn holds the very tokens and logprobs of the engine, recomputed here."""
    for turn, sent in zip(log.turns, requests, strict=True):
        assert turn.prompt_token_ids == prompt_tokens(sent)
        assert turn.token_ids == answer_tokens(turn.message)
        assert turn.logprobs == token_logprobs(sent["seed"], turn.token_ids)
        assert sent["model"] == turn.model and sent["logprobs"] is sent["return_token_ids"] is True


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_is_recorded_turn_by_turn(house: Any, stream: bool) -> None:
    h = house(OK)
    key = h.gateway.open(POLICY)
    messages = play(h, key, stream)
    log = h.gateway.close(key)
    assert [t.index for t in log.turns] == [0, 1, 2] and log.events == []
    assert log.calls == 2 and messages[-1]["content"] == "Done: a.py prints 42."
    check_tokens(log, h.engine.requests)
    for before, after in zip(log.turns, log.turns[1:], strict=False):
        extended = [*before.prompt_token_ids, *before.token_ids]
        assert after.prompt_token_ids[: len(extended)] == extended
    assert log.first_request is not None and log.first_request["stream"] is stream
    assert all(0 < t.engine_s < 5 and 0 < t.gateway_s < 1 for t in log.turns)
    assert timings(log)["gateway_s"] == sum(t.gateway_s for t in log.turns)


def test_unix_socket_serves_the_same_and_is_gone_afterwards(house: Any) -> None:
    h = house(OK)
    key = h.gateway.open(POLICY, key="chosen-key")
    path = h.gateway.socket_path
    assert path.stat().st_mode & 0o777 == 0o666 and path.parent.stat().st_mode & 0o777 == 0o711
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        url = f"http://gateway/s/{key}/v1"
        assert client.get(f"{url}/models").json()["data"][0]["object"] == "model"
        answer = client.post(f"{url}/chat/completions", json={"messages": USER, "tools": TOOLS})
        assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert len(h.gateway.close(key).turns) == 1
    h.stop()
    assert not path.exists() and not path.parent.exists()


def test_budget_is_hard_and_its_notice_is_no_turn(house: Any) -> None:
    h = house(always(Scripted("", [("bash", {"command": "ls"})])))
    key = h.gateway.open(POLICY)
    messages = play(h, key, stream=True, turns=20)
    assert "budget of 4 model calls" in messages[-1]["content"]
    for stream in (False, True):
        message, finish = answer_of(h.post(key, stream), stream)
        assert finish == "stop" and "tool_calls" not in message
    log = h.gateway.close(key)
    assert len(log.turns) == 4 == len(h.engine.requests)
    assert log.calls == 4  # the refused request brought the last call's result
    assert [e["type"] for e in log.events] == ["budget"] * 3


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


def test_heartbeats_while_the_engine_works(house: Any) -> None:
    h = house(slow(0.6), heartbeat_s=0.1)
    key = h.gateway.open(POLICY)
    text = h.post(key, stream=True).text
    beats, answer = text.split("data: ", 1)
    assert 3 <= beats.count(": keep-alive\n\n") <= 6
    assert read_sse(b"data: " + answer.encode())[0]["content"] == "late"
    assert h.post(key, stream=False).json()["choices"][0]["message"]["content"] == "late"
    assert len(h.gateway.close(key).turns) == 2


def test_error_after_a_heartbeat_is_an_event_and_never_a_whole_answer(house: Any) -> None:
    h = house(fault("hang"), heartbeat_s=0.1, engine_timeout_s=0.35)
    key = h.gateway.open(POLICY)
    response = h.post(key, stream=True)
    assert response.status_code == 200 and "[DONE]" not in response.text
    event = response.text.split("data: ", 1)[1]
    assert json.loads(event)["error"]["code"] == 504
    log = h.gateway.close(key)
    assert log.turns == [] and log.has("engine_error")


def raw_request(h: House, key: str, stream: bool, body: dict[str, Any] | None = None) -> Any:
    sent = json.dumps(body or {"messages": USER, "tools": TOOLS, "stream": stream}).encode()
    head = f"POST /s/{key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}"
    s = socket.create_connection(("127.0.0.1", int(h.gateway.url.rsplit(":", 1)[1])))
    s.sendall(f"{head}\r\n\r\n".encode() + sent)
    return s


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


def test_stop_ends_sessions_and_keeps_their_logs(house: Any) -> None:
    h = house(OK)
    key = h.gateway.open(POLICY)
    h.post(key)
    started = time.monotonic()
    s = raw_request(h, key, stream=True, body={"messages": USER})
    h.gateway.stop()
    assert time.monotonic() - started < 3
    assert len(h.gateway.close(key).turns) >= 1
    s.close()


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


def test_unknown_keys_and_paths_get_json_404(house: Any) -> None:
    h = house(OK)
    key = h.gateway.open(POLICY)
    assert httpx.get(f"{h.gateway.base_url(key)}/models").status_code == 200
    assert httpx.get(f"{h.gateway.url}/s/{key}/api/v1/models").status_code == 200
    for path in ("/", "/s", f"/s/{key}x/v1/models", f"/s/{key}/v1/load_lora_adapter", "/v1/models"):
        for method in ("GET", "POST"):
            response = httpx.request(method, h.gateway.url + path)
            assert response.status_code == 404 and response.json()["error"]["code"] == 404
    assert httpx.post(h.path("0" * 32), json={"messages": USER}).status_code == 404
    assert h.gateway.close(key).events == [] and h.engine.requests == []


def test_side_calls_at_once_are_served_one_after_another(house: Any) -> None:
    h = house(slow(0.1))
    key = h.gateway.open(POLICY)
    with ThreadPoolExecutor(3) as pool:
        texts = [f"q{i}" for i in range(3)]
        jobs = [pool.submit(play, h, key, True, 1, text) for text in texts]
        for job in jobs:
            job.result()
    log = h.gateway.close(key)
    assert h.engine.peak == 1
    assert [t.index for t in log.turns] == [0, 1, 2]
    check_tokens(log, h.engine.requests)
    assert len({r["seed"] for r in h.engine.requests}) == 3
    assert all(t.gateway_s < 0.09 for t in log.turns), "waiting for one another is not own time"


def test_64_sessions_at_once_streamed_and_plain(house: Any) -> None:
    def script(body: dict[str, Any]) -> Scripted:
        step = sum(m["role"] == "assistant" for m in body["messages"])
        who = body["messages"][1]["content"]
        if step < 3:
            return Scripted(who, [("bash", {"command": f"{who} {step}"})], delay_s=0.2)
        return Scripted(f"done {who}", delay_s=0.2)

    h = house(script)
    names = [f"session {i}" for i in range(64)]
    keys = [h.gateway.open(Policy("base", max_turns=9, seed=i)) for i in range(64)]
    with ThreadPoolExecutor(64) as pool:
        jobs = [pool.submit(play, h, key, i % 2 == 0, 9, names[i]) for i, key in enumerate(keys)]
        conversations = [job.result() for job in jobs]
    assert h.engine.peak >= 48, "the gateway must not queue sessions behind one another"
    for i, key in enumerate(keys):
        log = h.gateway.close(key)
        assert log.events == [] and len(log.turns) == 4 and log.calls == 3
        assert conversations[i][-1]["content"] == f"done {names[i]}"
        mine = [r for r in h.engine.requests if r["messages"][1]["content"] == names[i]]
        check_tokens(log, mine)


def test_tool_filter_stands_before_the_harness(house: Any) -> None:
    h = house(OK)
    for stream in (False, True):
        key = h.gateway.open(POLICY, tool_filter=lambda calls: ["Blocked." for _ in calls])
        message, finish = answer_of(h.post(key, stream), stream)
        assert finish == "stop" and "tool_calls" not in message
        assert message["content"] == "I will write the file.\nBlocked."
        log = h.gateway.close(key)
        assert log.has("call_blocked") and log.turns[0].message["tool_calls"]
        assert log.turns[0].token_ids == answer_tokens(log.turns[0].message)
    key = h.gateway.open(POLICY, tool_filter=lambda calls: [])
    assert h.post(key).status_code == 500
    assert h.gateway.close(key).has("engine_error")


def test_start_refuses_what_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="at most 107"):
        Gateway("http://x", tmp_path / ("d" * 120)).start()
    taken = tmp_path / "file"
    taken.write_text("keep")
    with pytest.raises(GatewayError, match="taken by a file"):
        Gateway("http://x", taken).start()
    assert taken.read_text() == "keep"
    with Gateway("http://x", tmp_path / "s") as first:
        with pytest.raises(GatewayError, match="another process listens"):
            Gateway("http://x", tmp_path / "s").start()
        port = int(first.url.rsplit(":", 1)[1])
        with pytest.raises(GatewayError, match="in use"):
            Gateway("http://x", port=port).start()
        with pytest.raises(GatewayError, match="open already"):
            first.open(POLICY, first.open(POLICY))
        with pytest.raises(GatewayError, match="session key"):
            first.open(POLICY, "../etc")


def test_stale_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    transport = httpx.HTTPTransport(uds=str(path))
    with Gateway("http://x", path) as gateway, httpx.Client(transport=transport) as client:
        url = f"http://x/s/{gateway.open(POLICY)}/v1/models"
        assert client.get(url).status_code == 200
    assert not path.exists()
