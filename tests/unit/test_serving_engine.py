"""What the server is asked for, and how its death is told. No server is started here."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit.errors import EngineError
from agentkit.serving import engine
from agentkit.serving.engine import Engine, EngineSettings


def test_taken_port_is_one_clear_line() -> None:
    with socket.socket() as holder:
        holder.bind((engine.HOST, 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port}: not to be had .*`port: 0`"):
            engine.free_port(port)


def test_free_port_is_free() -> None:
    port = engine.free_port()
    with socket.socket() as s:
        s.bind((engine.HOST, port))


def test_sampling_is_never_the_models_own() -> None:
    for device in ("cpu", "gpu"):
        argv = engine.command(EngineSettings("m", device=device), Path("/m"), 1)
        pairs = dict(itertools.pairwise(argv))
        assert pairs["--generation-config"] == "vllm"
        assert pairs["--logprobs-mode"] == "processed_logprobs"


def test_cpu_settings_stay_off_the_gpu() -> None:
    gpu, cpu = EngineSettings("m", device="gpu"), EngineSettings("m", device="cpu")
    changed = {
        k: v for k, v in engine.environment(cpu).items() if engine.environment(gpu).get(k) != v
    }
    assert {"VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS"} <= set(
        changed
    )
    assert "--gpu-memory-utilization" in engine.command(gpu, Path("/m"), 1)
    assert "--compilation-config" not in engine.command(gpu, Path("/m"), 1)


def test_users_arguments_come_last() -> None:
    settings = EngineSettings("m", device="cpu", extra_args=("--dtype", "float32"))
    argv = engine.command(settings, Path("/m"), 1)
    assert argv[-2:] == ["--dtype", "float32"]


def test_unknown_device_is_refused() -> None:
    with pytest.raises(EngineError, match="device tpu"):
        engine.engine_device("tpu")


def dead_engine(log: Path, status: int) -> Engine:
    process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"])
    process.wait()
    return Engine("http://127.0.0.1:9", log, process)


def test_death_tells_the_root_cause_and_the_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "(Worker pid=7) INFO 12-01 04:37:04 [x.py:1] loading\n"
        "(EngineCore pid=5) ERROR 12-01 04:37:05 [core.py:9] ValueError: no room for the KV cache\n"
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    with pytest.raises(EngineError) as caught:
        dead_engine(log, 3).wait_ready(status=None)
    line = str(caught.value)
    assert "died while starting (status 3): ValueError: no room for the KV cache" in line
    assert str(log) in line
    assert "\n" not in line


def test_death_without_a_cause_shows_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("one\ntwo\n\nthree\nfour\n")
    with pytest.raises(EngineError, match=r"died \(status 1\): two \| three \| four"):
        dead_engine(log, 1).check()


def test_attach_needs_a_server() -> None:
    port = engine.free_port()
    with pytest.raises(EngineError, match="no answer"):
        Engine.attach(f"http://127.0.0.1:{port}")
