"""Layer: boundaries. The vLLM server: start it, attach to one, watch it, stop it.

The server runs under ``watchdog.py`` in a session of its own, so that it ends with the process that
started it, however that ends, and an interrupt of a notebook cell does not reach it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from agentkit.errors import EngineError
from agentkit.serving.engine_settings import (
    BASE,
    HOST,
    LORA_TARGETS,
    EngineSettings,
    command,
    engine_device,
    engine_versions,
    environment,
    free_port,
    settings_line,
)
from agentkit.serving.models import resolve_model

__all__ = [
    "BASE",
    "HOST",
    "LORA_TARGETS",
    "Engine",
    "EngineSettings",
    "command",
    "engine_device",
    "engine_versions",
    "environment",
    "free_port",
    "settings_line",
]

_NOISE = re.compile(
    r"Engine core initialization failed|See root cause|SystemExit|KeyboardInterrupt"
)
_ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception|Exit|Killed)): (.+)")
_PREFIX = re.compile(r"^(\(\w+[^)]*\) )?([A-Z]+ \d\d-\d\d [\d:.]+ )?(\[[\w./]+:\d+\] )?")


class Engine:
    """A vLLM server. Use as a context manager; leaving it stops a server that was started here."""

    def __init__(self, url: str, log_path: Path | None, process: subprocess.Popen[bytes] | None):
        self.url = url.rstrip("/")
        self.log_path = log_path
        self.model_path: Path | None = None
        self.settings: EngineSettings | None = None
        self._process = process
        self._pipe: int | None = None
        self._started_at = time.monotonic()

    # ------------------------------------------------------------ start, attach

    @classmethod
    def start(cls, settings: EngineSettings, log_path: Path) -> Engine:
        """Start a server and return at once; ``wait_ready`` waits for it.

        Raises ModelError for a model that cannot be served, EngineError for a port that is taken.
        """
        model_path = resolve_model(settings.model)
        port = free_port(settings.port)
        log_path = Path(log_path)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        reader, writer = os.pipe()
        watchdog = [sys.executable, "-S", str(Path(__file__).with_name("watchdog.py"))]
        watchdog += [str(reader), str(os.getpid())]
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                watchdog + command(settings, model_path, port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(settings),
                pass_fds=(reader,),
                start_new_session=True,
            )
        os.close(reader)
        engine = cls(f"http://{HOST}:{port}", log_path, process)
        engine.model_path, engine.settings, engine._pipe = model_path, settings, writer
        return engine

    @classmethod
    def attach(cls, url: str) -> Engine:
        """Attach to a server that runs already and serves a base model named ``base``."""
        engine = cls(url, None, None)
        try:
            served = engine.served()
        except httpx.HTTPError as error:
            raise EngineError(
                f"engine {url}",
                f"no answer ({type(error).__name__})",
                "a running vLLM server",
                "correct `engine_url`, or leave it empty to start one",
            ) from error
        if BASE not in served:
            raise EngineError(
                f"engine {url}",
                f"serves {', '.join(served) or 'nothing'}",
                f"a base model named {BASE!r}",
                f"start vLLM with --served-model-name {BASE}",
            )
        root = served[BASE].get("root")
        engine.model_path = Path(root) if root and Path(root).is_dir() else None
        return engine

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ------------------------------------------------------------ watch

    def served(self) -> dict[str, dict[str, Any]]:
        """Models and adapters that the server has now: name -> vLLM's model card."""
        answer = httpx.get(f"{self.url}/v1/models", timeout=30.0, trust_env=False)
        answer.raise_for_status()
        return {card["id"]: card for card in answer.json()["data"]}

    def alive(self) -> bool:
        """Whether the process runs (started here) or answers (attached to)."""
        if self._process is not None:
            return self._process.poll() is None
        return self._healthy()

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_ready(
        self,
        status: Callable[[str], object] | None = print,
        timeout_s: float = 600.0,
        every_s: float = 5.0,
    ) -> Engine:
        """Wait until the server answers; ``status`` gets a line every ``every_s`` seconds.

        Raises EngineError when the server dies or ``timeout_s`` seconds have passed.
        """
        told = time.monotonic()
        while True:
            if not self.alive():
                raise self.death("died while starting")
            if self._healthy():
                break
            waited = time.monotonic() - self._started_at
            if waited > timeout_s:
                raise self.death(f"not ready after {waited:.0f} s")
            if status and time.monotonic() - told >= every_s:
                told = time.monotonic()
                status(f"engine: starting, {waited:.0f} s; {self.log_tail(1)[:100]}")
            time.sleep(0.2)
        if status:
            status(f"engine: ready after {time.monotonic() - self._started_at:.0f} s at {self.url}")
        return self

    def check(self) -> None:
        """Raise EngineError if the server has died since it was ready."""
        if not self.alive():
            raise self.death("died")

    def log_tail(self, lines: int = 20) -> str:
        """The last non-empty lines of the server's log, without time stamps."""
        if self.log_path is None or not self.log_path.is_file():
            return ""
        with self.log_path.open("rb") as f:
            f.seek(max(0, self.log_path.stat().st_size - 65536))
            text = f.read().decode(errors="replace")
        found = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
        return "\n".join([line for line in found if line][-lines:])

    def death(self, what: str) -> EngineError:
        """The error that tells why the server died: its root cause as far as the log has it."""
        code = self._process.poll() if self._process else None
        tail = self.log_tail(400).splitlines()
        cause = _root_cause(tail) or " | ".join(tail[-3:])
        got = what + (f" (status {code})" if code is not None else "")
        return EngineError(
            f"engine {self.url}",
            f"{got}: {cause[:300]}",
            "a running vLLM server",
            f"the whole log: {self.log_path}" if self.log_path else "look at its log",
        )

    # ------------------------------------------------------------ stop

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop a server that was started here and wait until all its processes are gone."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe)  # the watchdog ends the session
        if self._process is None:
            return
        self._process.terminate()  # a forked child may still hold the pipe
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()  # PDEATHSIG then takes the server
            self._process.wait()

    def __del__(self) -> None:
        pipe = getattr(self, "_pipe", None)
        if pipe is not None:
            os.close(pipe)


def _root_cause(lines: list[str]) -> str:
    """The last error of a log that does not merely report another process's, or nothing."""
    for i in range(len(lines) - 1, -1, -1):
        found = _ERROR.search(lines[i])
        if found and not _NOISE.search(found.group(0)):
            # pydantic tells what is wrong in the line after the error's name.
            more = lines[i + 1 : i + 2] if "validation error" in found.group(0) else []
            return " ".join([found.group(0), *more])
    return ""
