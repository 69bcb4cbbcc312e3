"""Layer: work. The running parts that sessions need, started and stopped together.

engine (vLLM) ← gateway ← harness in a sandbox. A notebook opens the stack once, runs its stage
inside the ``with`` block, and leaves nothing running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkit import harnesses, sandboxes
from agentkit.errors import ModelError
from agentkit.harnesses.base import Harness, HarnessSettings
from agentkit.params import SessionParams
from agentkit.runs import Run
from agentkit.sandboxes.base import Limits, SandboxBackend
from agentkit.serving.engine import Engine, EngineSettings, settings_line
from agentkit.serving.gateway import Gateway
from agentkit.serving.models import model_hashes, resolve_model
from agentkit.sessions import SessionJob, SessionResult, SessionSettings, run_sessions
from agentkit.types import Policy

WARM_START = "smollm2-135m-pi"
"""The shipped warm-start adapter, a folder below ``agentkit/data/adapters``."""


@dataclass
class Stack:
    """Engine, gateway, sandbox back end and harness of one stage.

    ``model_path`` is the base checkpoint's folder; ``settings`` holds limits, harness settings and
    the reward coefficient that every session of the stage shares.
    """

    params: SessionParams
    run: Run
    engine: Engine
    gateway: Gateway
    backend: SandboxBackend
    harness: Harness
    settings: SessionSettings
    model_path: Path

    def policy(self, served: str, seed: int) -> Policy:
        """A policy with the stage's sampling for the served name of base or adapter."""
        p = self.params
        return Policy(served, p.temperature, p.top_p, p.max_tokens, p.max_turns, seed)

    def job(self, **fields: Any) -> SessionJob:
        """A session of this stack; ``fields`` are those of ``run_session`` that differ by job."""
        return SessionJob(
            harness=self.harness, backend=self.backend, gateway=self.gateway,
            settings=self.settings, **fields,
        )  # fmt: skip

    def run_sessions(self, jobs: Iterable[SessionJob]) -> Iterator[SessionResult]:
        """Run jobs side by side, ``params.concurrency`` at a time, in order of completion."""
        return run_sessions(jobs, concurrency=self.params.concurrency)


def session_settings(params: SessionParams) -> SessionSettings:
    """The part of the parameters that a session needs."""
    return SessionSettings(
        harness_settings=HarnessSettings(
            system_prompt=params.system_prompt or None,
            tools=tuple(params.harness_tools),
            max_tokens=params.max_tokens,
        ),
        limits=limits(params),
        timeout_s=params.session_timeout_s,
        reward_coefficient=params.reward_coefficient,
        model=params.model,
    )


def limits(params: Any) -> Limits:
    """Sandbox limits of any stage that has sandbox parameters."""
    return Limits(params.memory_mb, params.disk_mb, params.processes)


def engine_settings(params: SessionParams) -> EngineSettings:
    """The part of the parameters that the engine needs."""
    return EngineSettings(
        model=params.model,
        dtype=params.dtype,
        max_model_len=params.max_model_len,
        max_loras=params.max_loras,
        max_lora_rank=params.max_lora_rank,
        max_num_seqs=params.max_num_seqs,
        kv_cache_gib=params.kv_cache_gib,
        threads=params.threads,
        tool_parser=params.tool_parser,
    )


def adapter_folder(name: str, run: Run) -> Path | None:
    """Resolve an adapter's name in a params file.

    ``none``: the base; ``warm-start``: the shipped one; ``trained``: the last version of
    ``02_train`` in this run; anything else: a folder.

    Raises ModelError where there is none.
    """
    if name == "none":
        return None
    if name == "warm-start":
        folder = Path(__file__).parent / "data" / "adapters" / WARM_START
        todo = "build it with `make warm-start`"
    elif name == "trained":
        versions = sorted((run.root / "02_train" / "adapters").glob("v[0-9]*"))
        folder = versions[-1] if versions else run.root / "02_train" / "adapters"
        todo = "run notebook 02 in this run directory first"
    else:
        folder, todo = Path(name).expanduser(), "check the adapter's name in the params file"
    if not (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"adapter {name!r}", f"no adapter_config.json in {folder}", "a peft folder", todo
        )
    return folder


@contextmanager
def open_stack(
    params: SessionParams, run: Run, *, status: Callable[[str], None] = print
) -> Iterator[Stack]:
    """Start (or attach to) the engine, start the gateway, check sandbox and harness.

    Writes what was found to the manifest: versions, hashes, and which limits the machine enforces.

    Raises:
        EngineError, ModelError, SandboxError, HarnessError: one line each, before any session.
    """
    backend = sandboxes.backend(params.sandbox)
    harness = harnesses.get(params.harness)
    harness.check_installed()
    model_path = resolve_model(params.model)
    run.update_manifest(
        sandbox={"backend": backend.name, "enforcement": backend.enforcement()},
        harness={"name": harness.name, "version": harness.version},
        model={"name": params.model, **model_hashes(model_path)},
    )
    if params.engine_url:
        engine = Engine.attach(params.engine_url)
    else:
        settings = engine_settings(params)
        run.log(f"engine: {settings_line(settings)}")
        engine = Engine.start(settings, run.path("engine.log"))
    with engine:
        engine.wait_ready(status=status)
        # Half of a session's time, so that an engine that hangs is seen as such and is not taken
        # for an agent that ran out of time.
        with Gateway(engine.url, engine_timeout_s=params.session_timeout_s / 2) as gateway:
            yield Stack(
                params, run, engine, gateway, backend, harness, session_settings(params), model_path
            )
