"""Layer: boundaries. One model call through the gateway: ask the engine, tell the harness, record.

The order is the guarantee: a turn is recorded after the whole answer has been handed to the
harness's connection, with no step between the two, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web

from agentkit.serving.gateway_session import BUDGET_NOTICE, Clock, Session
from agentkit.serving.gateway_wire import (
    Answer,
    Refused,
    Reply,
    Request,
    engine_refusal,
    error_body,
    notice,
    parse_answer,
    parse_request,
    render_json,
    render_sse,
    sse_event,
    upstream_body,
)

MAX_BODY = 32 << 20
"""Largest request body in bytes."""


def json_error(status: int, reason: str) -> web.Response:
    return web.json_response(error_body(status, reason), status=status)


class Upstream:
    """The engine, asked for plain answers only.

    The pool has no limit of its own (64 sessions and more ask at once) and drops an idle
    connection before vLLM does (5 s), so that no request meets a connection that is being closed.
    """

    def __init__(self, engine_url: str, timeout_s: float) -> None:
        self._url = engine_url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=10),
            trust_env=False,
        )

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def ask(self, body: dict[str, Any], clock: Clock) -> Answer:
        """Return the checked answer, raise Refused. Cancelling closes the connection, on which
        vLLM aborts its work."""
        assert self._http is not None
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        asked = time.monotonic()
        try:
            async with self._http.post(self._url, data=data, headers=headers) as response:
                status, raw = response.status, await response.read()
        except TimeoutError:
            reason = f"engine gave no answer within {self._timeout_s:g} s"
            raise Refused("engine_error", 504, reason) from None
        except (aiohttp.ClientError, OSError) as error:
            reason = f"engine connection failed: {type(error).__name__}: {error}"
            raise Refused("engine_error", 502, reason) from None
        finally:
            clock.engine_s += time.monotonic() - asked
        if status != 200:
            raise engine_refusal(status, raw)
        return parse_answer(raw, body["model"])


class Teller:
    """Writes to one harness connection; while entered, keeps a streamed one alive by comments.

    The status line goes out with the first heartbeat or the answer, whichever is first. After a
    heartbeat an error can only be told as an SSE event, and no ``[DONE]`` follows it.
    """

    def __init__(self, http: web.Request, request: Request, heartbeat_s: float) -> None:
        self._http, self._request, self._heartbeat_s = http, request, heartbeat_s
        self._stream: web.StreamResponse | None = None
        self._writing = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None
        if http.transport is not None:
            # drain() then waits until the kernel has every byte, not for a low-water mark
            http.transport.set_write_buffer_limits(high=0)

    async def __aenter__(self) -> Teller:
        if self._request.stream:
            self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(self._heartbeat_s)
                async with self._writing:
                    await self._write(b": keep-alive\n\n")

    async def _write(self, data: bytes, last: bool = False) -> None:
        if self._stream is None:
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
            self._stream = web.StreamResponse(headers=headers)
            await self._stream.prepare(self._http)
        await self._stream.write(data)
        if last:
            await self._stream.write_eof()

    async def _send(self, response: web.Response) -> web.Response:
        await response.prepare(self._http)
        await response.write_eof()
        return response

    async def tell(self, reply: Reply) -> web.StreamResponse:
        """Write the whole reply. Raises ConnectionError when the harness has gone."""
        async with self._writing:
            response: web.StreamResponse
            if self._request.stream:
                await self._write(render_sse(reply, self._request), last=True)
                assert self._stream is not None
                response = self._stream
            else:
                data = render_json(reply, self._request)
                response = await self._send(
                    web.Response(body=data, content_type="application/json")
                )
            transport = self._http.transport
            if transport is None or transport.is_closing():
                raise ConnectionResetError("the harness closed the connection")
            return response

    async def tell_error(self, refusal: Refused) -> web.StreamResponse:
        async with self._writing:
            if self._stream is None:
                return await self._send(web.json_response(refusal.body(), status=refusal.status))
            await self._write(sse_event(refusal.body()), last=True)
            return self._stream


class Exchange:
    """Serves the model calls of all sessions."""

    def __init__(self, upstream: Upstream, heartbeat_s: float, write_timeout_s: float) -> None:
        self._upstream = upstream
        self._heartbeat_s, self._write_timeout_s = heartbeat_s, write_timeout_s

    async def serve(self, session: Session, http: web.Request) -> web.StreamResponse:
        """Answer one request of an open session."""
        clock = Clock(time.monotonic())
        try:
            if (http.content_length or 0) > MAX_BODY:
                raise web.HTTPRequestEntityTooLarge(MAX_BODY, http.content_length or 0)
            request = parse_request(await http.read())
        except web.HTTPRequestEntityTooLarge:
            reason = f"the body is larger than {MAX_BODY} bytes"
            session.event("bad_request", reason, status=413)
            response = json_error(413, reason)
            response.force_close()
            return response
        except Refused as refusal:
            session.refused(refusal)
            return web.json_response(refusal.body(), status=refusal.status)
        if session.closed:
            return json_error(404, "the session has ended")
        task = asyncio.ensure_future(self._turn(session, http, request, clock))
        session.inflight.add(task)
        try:
            return await task
        except (asyncio.CancelledError, ConnectionError, TimeoutError):
            if http.transport is not None:
                http.transport.abort()
            raise
        except Exception as error:
            session.event("engine_error", f"gateway fault: {type(error).__name__}: {error}")
            raise
        finally:
            session.inflight.discard(task)

    async def _turn(
        self, session: Session, http: web.Request, request: Request, clock: Clock
    ) -> web.StreamResponse:
        try:
            async with Teller(http, request, self._heartbeat_s) as teller:
                queued = time.monotonic()
                async with session.lock:
                    clock.waited_s += time.monotonic() - queued
                    return await self._ask_and_tell(session, request, teller, clock)
        except (asyncio.CancelledError, ConnectionError) as error:
            if not session.closed:
                session.event("client_gone", str(error) or "the harness closed the connection")
            raise
        except TimeoutError:
            session.event("client_gone", f"not read within {self._write_timeout_s:g} s")
            raise ConnectionAbortedError("the harness does not read") from None

    async def _ask_and_tell(
        self, session: Session, request: Request, teller: Teller, clock: Clock
    ) -> web.StreamResponse:
        session.see(request)
        policy = session.log.policy
        if session.spent:
            session.event("budget", f"model call beyond the budget of {policy.max_turns}")
            async with asyncio.timeout(self._write_timeout_s):
                return await teller.tell(notice(BUDGET_NOTICE.format(n=policy.max_turns)))
        started_at = time.time()
        try:
            body = upstream_body(request, policy, session.next_turn)
            answer = await self._upstream.ask(body, clock)
            reply, blocked = session.judge(answer)
        except Refused as refusal:
            session.refused(refusal)
            async with asyncio.timeout(self._write_timeout_s):
                return await teller.tell_error(refusal)
        async with asyncio.timeout(self._write_timeout_s):
            response = await teller.tell(reply)
        session.record(request, answer, reply, blocked, clock, started_at)
        return response
