"""The gateway over real sockets: what it serves and what it records."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkit.errors import GatewayError
from agentkit.serving.gateway import Gateway, timings
from agentkit.serving.scripted import (
    Scripted,
    answer_tokens,
)
from agentkit.types import Policy
from tests.gateway_house import (
    POLICY,
    TOOLS,
    USER,
    answer_of,
    check_tokens,
    houses,
    play,
    raw_request,
    read_sse,
)
from tests.scripted_engine import OK, always, slow

house = pytest.fixture(houses, name="house")


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
    (event,) = log.events
    assert event["type"] == "budget" and event["turn"] == 4 and event["times"] == 3


def test_heartbeats_while_the_engine_works(house: Any) -> None:
    h = house(slow(0.6), heartbeat_s=0.1)
    key = h.gateway.open(POLICY)
    text = h.post(key, stream=True).text
    beats, answer = text.split("data: ", 1)
    assert 3 <= beats.count(": keep-alive\n\n") <= 6
    assert read_sse(b"data: " + answer.encode())[0]["content"] == "late"
    assert h.post(key, stream=False).json()["choices"][0]["message"]["content"] == "late"
    assert len(h.gateway.close(key).turns) == 2


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
    h = house(slow(0.3))
    key = h.gateway.open(POLICY)
    started = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        texts = [f"q{i}" for i in range(3)]
        jobs = [pool.submit(play, h, key, True, 1, text) for text in texts]
        for job in jobs:
            job.result()
    wall_s = time.monotonic() - started
    log = h.gateway.close(key)
    assert h.engine.peak == 1
    assert sum(t.engine_s for t in log.turns) <= wall_s, "a queue's wait is not the engine's"
    assert [t.index for t in log.turns] == [0, 1, 2]
    check_tokens(log, h.engine.requests)
    assert len({r["seed"] for r in h.engine.requests}) == 3
    assert all(t.gateway_s < 0.25 for t in log.turns), "waiting for one another is not own time"


def test_64_sessions_at_once_streamed_and_plain(house: Any) -> None:
    """The engine answers nobody before all 64 have asked: a gateway that queued them would hang."""

    def all_there() -> bool:
        return bool(h.engine.peak == 64)

    def script(body: dict[str, Any]) -> Scripted:
        step = sum(m["role"] == "assistant" for m in body["messages"])
        who = body["messages"][1]["content"]
        if step < 3:
            return Scripted(who, [("bash", {"command": f"{who} {step}"})], ready=all_there)
        return Scripted(f"done {who}")

    h = house(script)
    names = [f"session {i}" for i in range(64)]
    keys = [h.gateway.open(Policy("base", max_turns=9, seed=i)) for i in range(64)]
    with ThreadPoolExecutor(64) as pool:
        jobs = [pool.submit(play, h, key, i % 2 == 0, 9, names[i]) for i, key in enumerate(keys)]
        conversations = [job.result() for job in jobs]
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


def test_folders_of_killed_gateways_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, young = tmp_path / "agentkit-gw-dead", tmp_path / "agentkit-gw-young"
    for folder in (dead, young):
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(folder / "gw.sock"))
    with Gateway("http://x") as alive:
        for folder in (dead, alive.socket_path.parent):
            os.utime(folder, (0, 0))
        with Gateway("http://x"):
            assert not dead.exists() and young.exists() and alive.socket_path.exists()
