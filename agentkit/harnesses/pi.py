"""Layer: boundaries. The pi coding agent (npm ``@earendil-works/pi-coding-agent``), unmodified.

Configured by its documented files ``models.json`` and ``settings.json``, run once in JSON mode
with extensions, skills, themes and context files off, so that a prompt depends on nothing but the
settings and the task. pi exits 0 even after errors: the outcome is read from its event stream.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentkit.errors import HarnessError, SandboxError
from agentkit.harnesses.base import Harness, HarnessSettings, Outcome
from agentkit.harnesses.compile_cache import TARGET, cache_folder, make_cache
from agentkit.sandboxes.base import HOME, ExecResult, Mount, Sandbox, SandboxBackend
from agentkit.types import Files

MODEL = "policy"
"""The model name that pi sends; the gateway routes by session and puts in the policy's own."""
PACKAGE = "@earendil-works/pi-coding-agent"
NODE, PROGRAMS = "/opt/node", "/opt/pi/node_modules"
SESSIONS = f"{HOME}/sessions"
_OPTIONS = (
    "--thinking", "off", "--no-extensions", "--no-mcp", "--no-skills", "--no-prompt-templates",
    "--no-themes", "--no-context-files", "--no-approve", "--offline",
)  # fmt: skip


def node_folder() -> Path:
    """The ``node_modules`` that set-up filled: ``$AGENTKIT_NODE_DIR`` or ``.node`` of the
    checkout, else of the working directory."""
    if given := os.environ.get("AGENTKIT_NODE_DIR"):
        return Path(given).absolute() / "node_modules"
    checkout = Path(__file__).resolve().parents[2] / ".node"
    return (checkout if checkout.is_dir() else Path.cwd() / ".node") / "node_modules"


class PiHarness(Harness):
    """pi 1.6.0 on Node 22."""

    name = "pi"
    version = "1.6.0"

    def check_installed(self) -> None:
        folder = node_folder()
        todo = "run `make setup`, or set AGENTKIT_NODE_DIR"
        try:
            found = json.loads((folder / PACKAGE / "package.json").read_text())["version"]
        except (OSError, ValueError, KeyError) as error:
            raise HarnessError(str(folder), "no pi", f"{PACKAGE} {self.version}", todo) from error
        if found != self.version:
            raise HarnessError(str(folder / PACKAGE), f"pi {found}", f"pi {self.version}", todo)
        if not os.access(folder / "node" / "bin" / "node", os.X_OK):
            raise HarnessError(str(folder), "no node/bin/node", "Node 22", todo)

    def mounts(self) -> Sequence[Mount]:
        folder = node_folder()
        mounts = [Mount(folder / "node", NODE), Mount(folder, PROGRAMS)]
        cache = self._cache()
        return [*mounts, Mount(cache, TARGET)] if cache.is_dir() else mounts

    def prepare(self, backend: SandboxBackend) -> None:
        """Make Node's compile cache: it saves a quarter of pi's start in every session."""
        if self._cache().is_dir():
            return
        settings = HarnessSettings()
        argv, _ = self.command("", settings)
        home = self.home_files("http://127.0.0.1:9/v1", settings)
        make_cache(self._cache(), backend, self.mounts(), home, argv, self.environment(settings))

    def _cache(self) -> Path:
        program = node_folder() / "node" / "bin" / "node"
        status = program.stat()
        return cache_folder(self.name, self.version, f"{status.st_size} {status.st_mtime_ns}")

    def home_files(self, base_url: str, settings: HarnessSettings) -> Files:
        timeout_ms = int(settings.request_timeout_s * 1000)
        model = {
            "id": MODEL,
            "contextWindow": settings.context_window,
            "maxTokens": settings.max_tokens,
            "reasoning": False,
            "input": ["text"],
        }
        provider = {
            "baseUrl": base_url,
            "api": "openai-completions",
            "apiKey": "EMPTY",
            "compat": {
                "supportsDeveloperRole": False,
                "supportsReasoningEffort": False,
                "supportsStore": False,
                "maxTokensField": "max_tokens",
            },
            "models": [model],
        }
        config = {
            "defaultTools": ["bash", "write", "edit", "read"],
            "compaction": {"enabled": False},
            "retry": {
                "enabled": True,
                "maxRetries": 1,
                "baseDelayMs": 500,
                "provider": {"timeoutMs": timeout_ms, "maxRetries": 0},
            },
            "httpIdleTimeoutMs": timeout_ms,
            "enableInstallTelemetry": False,
            "enableAnalytics": False,
            "quietStartup": True,
            "defaultProjectTrust": "never",
        }
        return {
            ".pi/agent/models.json": json.dumps({"providers": {"local": provider}}).encode(),
            ".pi/agent/settings.json": json.dumps(config).encode(),
        }

    def environment(self, settings: HarnessSettings) -> dict[str, str]:
        return {
            "PATH": f"{NODE}/bin:/opt/python/bin:/usr/local/bin:/usr/bin:/bin",
            "PI_CODING_AGENT_DIR": f"{HOME}/.pi/agent",
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_SKIP_VERSION_CHECK": "1",
            "NODE_COMPILE_CACHE": TARGET,
        }

    def command(self, instruction: str, settings: HarnessSettings) -> tuple[list[str], bytes]:
        argv = [f"{NODE}/bin/node", f"{PROGRAMS}/{PACKAGE}/dist/bundle/cli.js", "--mode", "json"]
        argv += ["--provider", "local", "--model", f"local/{MODEL}", *_OPTIONS]
        argv += ["--session-dir", SESSIONS]
        if settings.system_prompt is not None:
            argv += ["--system-prompt", settings.system_prompt]
        if settings.tools:
            argv += ["--tools", ",".join(settings.tools)]
        return [*argv, "-p", instruction], b""

    def outcome(self, result: ExecResult, sandbox: Sandbox) -> Outcome:
        status, reason, calls, tool_s = read_events(result)
        try:
            files = sandbox.get(SESSIONS)
            transcript = b"".join(data for name, data in files.items() if name.endswith(".jsonl"))
        except SandboxError:
            transcript = b""  # pi makes its session file with the first message
        if result.truncated:  # the event stream is cut, the session file is whole
            calls = transcript.count(b'"role":"toolResult"')
        return Outcome(status, reason, calls, transcript or result.stdout, tool_s)


def events(stdout: bytes) -> Iterator[dict[str, Any]]:
    """pi's event stream; a torn last line (killed, or output cut) is left out."""
    for line in stdout.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def read_events(result: ExecResult) -> tuple[str, str, int, float]:
    """Return (status, reason, executed calls, seconds in tools) of one run of pi.

    An assistant message with ``stopReason`` ``error`` carries the endpoint's error; the last
    assistant message decides. A run that never said ``agent_end`` did not end by itself.
    """
    calls, tool_s, ended = 0, 0.0, False
    open_calls: dict[str, str] = {}
    last: dict[str, Any] = {}
    for event in events(result.stdout):
        kind = event.get("type")
        if kind == "tool_execution_start":
            open_calls[str(event.get("toolCallId"))] = str(event.get("toolName"))
        elif kind == "tool_execution_end":
            open_calls.pop(str(event.get("toolCallId")), None)
            calls += 1
            tool_s += float(event.get("durationMs") or 0) / 1000
        elif kind == "message_end" and event.get("message", {}).get("role") == "assistant":
            last = event["message"]
        elif kind == "agent_end":
            ended = True
    stop, message = last.get("stopReason", ""), last.get("errorMessage") or ""
    if result.timed_out:
        return "timed_out", "time limit", calls, tool_s
    if not ended and not result.truncated:
        return "harness_error", _why_it_died(result, list(open_calls.values())), calls, tool_s
    if stop in ("error", "aborted"):
        return "engine_error", message or stop, calls, tool_s
    if not last:
        return "harness_error", "no assistant message", calls, tool_s
    return "completed", stop, calls, tool_s


def _why_it_died(result: ExecResult, running: list[str]) -> str:
    code = result.exit_status or 0
    what = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
    if running:
        what += f" during a call of {running[-1]}"
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return f"{what}: {lines[-1][:300]}" if lines else what
