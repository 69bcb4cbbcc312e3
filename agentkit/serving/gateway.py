"""Layer: boundaries. The gateway between harnesses and the engine: one key for each session.

A harness is given the base URL ``…/s/<key>/v1``. Whatever it sends, the engine is asked plainly
for the session's policy with the session's sampling, and every turn is recorded with its exact
token ids and logprobs. See ``gateway_wire`` (formats), ``gateway_http`` (one model call) and
``gateway_session`` (what is counted). Standalone: ``python -m agentkit.serving.gateway --help``.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import secrets
import shutil
import time
from pathlib import Path

from aiohttp import web

from agentkit.errors import GatewayError
from agentkit.serving.background_loop import BackgroundLoop
from agentkit.serving.gateway_http import MAX_BODY, Exchange, Upstream, json_error
from agentkit.serving.gateway_session import DeliveredCall, Session, ToolFilter, timings
from agentkit.serving.gateway_socket import SOCKET_NAME, claim, new_folder
from agentkit.types import Policy, SessionLog

__all__ = ["Gateway", "ToolFilter", "timings"]

_KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")


class Gateway:
    """Serves sessions on a unix socket and on 127.0.0.1; a context manager.

    Args:
        engine_url: ``http://host:port`` of the engine, with or without ``/v1``.
        socket_path: unix socket to bind into sandboxes, at most 107 bytes long; by default one in
            a new folder under the temporary folder. Any local uid may connect (the sandbox has its
            own); what protects a session is its 128-bit key.
        engine_timeout_s: longest wait for one answer of the engine, seconds.
        heartbeat_s: a streamed request gets an SSE comment every so many seconds while it waits.
        port: TCP port on 127.0.0.1; 0 takes a free one.
        write_timeout_s: a harness that does not read its answer for so long counts as gone.
    """

    def __init__(
        self,
        engine_url: str,
        socket_path: Path | None = None,
        engine_timeout_s: float = 120,
        heartbeat_s: float = 5,
        *,
        port: int = 0,
        write_timeout_s: float = 30,
    ) -> None:
        self.engine_url = engine_url
        self._given_path, self._port = socket_path, port
        self._folder: Path | None = None
        self._upstream = Upstream(engine_url, engine_timeout_s)
        self._exchange = Exchange(self._upstream, heartbeat_s, write_timeout_s)
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None
        self._loop: BackgroundLoop | None = None
        self._listening = False

    @property
    def socket_path(self) -> Path:
        """Where the unix socket lies while the gateway runs."""
        if self._given_path is not None:
            return self._given_path
        if self._folder is None:
            raise GatewayError("gateway", "no socket yet", "a started gateway", "call start()")
        return self._folder / SOCKET_NAME

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port`` of the running gateway."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Gateway:
        """Listen on both addresses. Raises GatewayError."""
        if self._loop is not None:
            raise GatewayError("gateway", "already started", "one start()")
        if self._given_path is None:
            self._folder = new_folder()
        claim(self.socket_path)
        self._loop = BackgroundLoop("gateway")
        atexit.register(self.stop)
        try:
            self._loop.call(self._listen())
        except OSError as error:
            self.stop()
            where = f"gateway on port {self._port} and {self.socket_path}"
            raise GatewayError(where, str(error), "free addresses", "choose others") from None
        return self

    async def _listen(self) -> None:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/s/{key}/v1/chat/completions", self._chat)
        app.router.add_get("/s/{key}/v1/models", self._models)
        app.router.add_get("/s/{key}/api/v1/models", self._models)  # where hermes looks
        app.router.add_route("*", "/{rest:.*}", self._unknown)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=1
        )
        await self._runner.setup()
        await self._upstream.open()
        await web.UnixSite(self._runner, str(self.socket_path), backlog=1024).start()
        self._listening = True
        self.socket_path.chmod(0o666)
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=1024).start()
        tcp = next(a for a in self._runner.addresses if isinstance(a, tuple))
        self._port = int(tcp[1])

    def stop(self) -> None:
        """End all sessions, stop listening, remove the socket. Idempotent; logs of sessions that
        are still open can be taken by ``close`` afterwards."""
        atexit.unregister(self.stop)
        if self._loop is not None and self._loop.running:
            self._loop.call(self._shut_down())
            self._loop.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _shut_down(self) -> None:
        await asyncio.gather(*(self._end(s) for s in self._sessions.values()))
        if self._runner is not None:
            await self._runner.cleanup()
        if self._listening:
            self.socket_path.unlink(missing_ok=True)
        await self._upstream.close()

    def __enter__(self) -> Gateway:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def open(
        self, policy: Policy, key: str | None = None, tool_filter: ToolFilter | None = None
    ) -> str:
        """Open a session and return its key (128 random bits unless given).

        ``tool_filter``: see ``gateway_session.ToolFilter``.
        """
        key = secrets.token_hex(16) if key is None else key
        if not _KEY.fullmatch(key):
            raise GatewayError("gateway", f"session key {key!r}", "8 to 64 of A-Z a-z 0-9 _ -")
        session = Session(key, policy, tool_filter)
        if self._sessions.setdefault(key, session) is not session:
            raise GatewayError("gateway", f"session {key} is open already", "a new key")
        return key

    def base_url(self, key: str, root: str | None = None) -> str:
        """The base URL for a harness. ``root``: where it reaches the gateway (default ``url``)."""
        return f"{root or self.url}/s/{key}/v1"

    def close(self, key: str) -> SessionLog:
        """End a session and return its log, which changes no more.

        A request in flight is cancelled, at the engine too, and is not recorded.
        """
        session = self._get(key)
        if self._loop is not None and self._loop.running:
            self._loop.call(self._end(session))
        self._sessions.pop(key, None)
        return session.log

    async def _end(self, session: Session) -> None:
        session.closed = True
        tasks = list(session.inflight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def peek(self, key: str) -> SessionLog:
        """A copy of the session's log as it stands."""
        return self._get(key).snapshot()

    def calls(self, key: str) -> list[DeliveredCall]:
        """The tool calls that reached the harness, and which came back, as it stands."""
        return list(self._get(key).calls.values())

    def _get(self, key: str) -> Session:
        session = self._sessions.get(key)
        if session is None:
            raise GatewayError("gateway", f"unknown session {key!r}", "an open session")
        return session

    def _find(self, http: web.Request) -> Session | None:
        session = self._sessions.get(http.match_info["key"])
        return None if session is None or session.closed else session

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        session = self._find(http)
        if session is None:
            return await self._unknown(http)
        return await self._exchange.serve(session, http)

    async def _models(self, http: web.Request) -> web.StreamResponse:
        if self._find(http) is None:
            return await self._unknown(http)
        # not the adapter's name: a harness may print it in its prompt
        model = {"id": "policy", "object": "model", "created": int(time.time())}
        return web.json_response({"object": "list", "data": [{**model, "owned_by": "agentkit"}]})

    async def _unknown(self, http: web.Request) -> web.StreamResponse:
        response = json_error(404, "no such session or path")
        if http.can_read_body:
            response.force_close()  # the body stays unread
        return response


if __name__ == "__main__":
    from agentkit.serving.gateway_cli import main

    main()
