"""Layer: work. One agent session, from task to record; and many of them side by side.

A session that broke for a reason outside the policy is data (``status`` and ``reason`` of its
record), never an exception: one bad session must not end a step of hundreds.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from agentkit.errors import GatewayError, HarnessError, SandboxError
from agentkit.harnesses.base import Harness, HarnessSettings, Outcome
from agentkit.rewards import reward
from agentkit.safeagents import Verdict, inspect
from agentkit.sandboxes.base import GATEWAY_PORT, HOME, WORK, Limits, SandboxBackend, TooLarge
from agentkit.serving.gateway import Gateway
from agentkit.sessions.pool import Job, run_pool
from agentkit.sessions.validation import Validation, validate
from agentkit.types import Files, Policy, SessionLog, SessionRecord, Task

SessionJob = Job
"""The arguments of ``run_session`` for one session, by name."""

WORKSPACE_BYTES = 16 << 20
"""Largest workspace that is taken out of a sandbox (half its disk where that is less)."""


@dataclass(frozen=True)
class SessionSettings:
    """What is the same for every session of a stage.

    Attributes:
        timeout_s: time limit of the harness run in seconds; None takes the task's own.
        model: name of the base model for the records; None takes the policy's served name.
    """

    harness_settings: HarnessSettings = field(default_factory=HarnessSettings)
    limits: Limits = field(default_factory=Limits)
    timeout_s: float | None = None
    reward_coefficient: float = 0.1
    model: str | None = None


@dataclass
class SessionResult:
    """A session's record, the gateway's log, the harness's transcript and the final workspace."""

    record: SessionRecord
    log: SessionLog
    transcript: bytes = b""
    workspace: Files = field(default_factory=dict)


@dataclass
class _Run:
    """What the agent's half of a session came to."""

    outcome: Outcome
    workspace: Files | None = None
    harness_s: float = 0.0
    sandbox_s: float = 0.0
    too_large: bool = False


def base_url(key: str) -> str:
    """Where a harness inside a sandbox reaches its session at the gateway."""
    return f"http://127.0.0.1:{GATEWAY_PORT}/s/{key}/v1"


def _act(
    task: Task,
    key: str,
    harness: Harness,
    backend: SandboxBackend,
    gateway: Gateway,
    settings: SessionSettings,
) -> _Run:
    """Run the harness in a fresh sandbox and take the workspace out."""
    wanted = settings.harness_settings
    timeout_s = task.agent_timeout_s if settings.timeout_s is None else settings.timeout_s
    harness.prepare(backend)
    opened = time.monotonic()
    with backend.open(
        limits=settings.limits, mounts=harness.mounts(), gateway_socket=gateway.socket_path
    ) as box:
        box.put(task.workspace, WORK)
        box.put(harness.home_files(base_url(key), wanted), HOME)
        argv, stdin = harness.command(task.instruction, wanted)
        started = time.monotonic()
        result = box.exec(argv, timeout_s=timeout_s, env=harness.environment(wanted), stdin=stdin)
        ended = time.monotonic()
        run = _Run(harness.outcome(result, box), harness_s=ended - started)
        limit = min(WORKSPACE_BYTES, settings.limits.disk_mb << 19)
        try:
            run.workspace = box.get(WORK, max_bytes=limit)
        except TooLarge:
            run.too_large = True
    run.sandbox_s = time.monotonic() - opened - run.harness_s
    return run


def _unanswered(log: SessionLog, kind: str) -> str | None:
    """The reason of the last event of this kind that no successful turn followed."""
    for event in reversed(log.events):
        if event["type"] == kind and event["turn"] >= len(log.turns):
            return str(event["reason"]) or kind
    return None


def judge_status(outcome: Outcome, log: SessionLog) -> tuple[str, str]:
    """(status, reason) from the harness's own word and the gateway's record, which knows better.

    A prompt beyond the model's context ends a session by the policy's own doing: ``completed``,
    reason ``context_overflow``. An engine failure that no successful turn followed is
    ``engine_error`` whatever the harness made of it, and so is a time limit that passed without a
    single turn; a request that the gateway refused is the harness's fault.
    """
    if outcome.status != "timed_out" and _unanswered(log, "context_overflow"):
        return "completed", "context_overflow"
    if (reason := _unanswered(log, "engine_error")) is not None:
        return "engine_error", reason
    if outcome.status == "timed_out":
        if log.turns:
            return "timed_out", outcome.reason
        # A turn is bounded by max_tokens: without one, the policy cannot have spent the time.
        if log.first_request is None:
            return "harness_error", "no request within the time limit"
        return "engine_error", "no answer within the time limit"
    if (reason := _unanswered(log, "bad_request")) is not None:
        return "harness_error", f"the gateway refused a request: {reason}"
    if outcome.status == "completed" and log.has("budget"):
        return "completed", "budget"
    return outcome.status, outcome.reason


def run_session(
    task: Task,
    policy: Policy,
    *,
    harness: Harness,
    backend: SandboxBackend,
    gateway: Gateway,
    settings: SessionSettings,
    arm: str,
    adapter: str | None = None,
    attempt: int = 0,
    step: int | None = None,
) -> SessionResult:
    """Run one session and grade it.

    ``timed_out`` is graded as the workspace stands. Raises nothing for what goes wrong outside
    the policy; an interrupt passes through after everything is cleaned up.
    """
    started = time.monotonic()
    log = SessionLog("", policy)
    validation, verdict = Validation(None, "", 0.0), Verdict()
    try:
        key = gateway.open(policy)
        try:
            run = _act(task, key, harness, backend, gateway, settings)
        finally:
            log = gateway.close(key)
        status, reason = judge_status(run.outcome, log)
    except (SandboxError, OSError) as error:
        run, status, reason = _Run(Outcome("", "", 0, b"")), "sandbox_error", str(error)
    except GatewayError as error:
        run, status, reason = _Run(Outcome("", "", 0, b"")), "engine_error", str(error)
    except HarnessError as error:
        run, status, reason = _Run(Outcome("", "", 0, b"")), "harness_error", str(error)
    if status in ("completed", "timed_out"):
        if run.too_large:
            validation = Validation(0.0, "workspace too large", 0.0)
        else:
            validation = validate(task, run.workspace or {}, backend, settings.limits)
        if validation.score is None:
            status, reason = "validator_error", validation.reason
        elif validation.reason:
            reason = f"{reason}; {validation.reason}"
        if status == "completed":
            counted = None if log.has("call_rewritten") else run.outcome.calls
            verdict = inspect(task, run.workspace or {}, calls=log.calls, transcript_calls=counted)
    record = SessionRecord(
        session_id=uuid.uuid4().hex,
        task_id=task.task_id,
        kind=task.kind,
        source_id=task.source_id,
        harness=harness.name,
        model=settings.model or policy.model,
        arm=arm,
        adapter=adapter,
        attempt=attempt,
        step=step,
        seed=policy.seed,
        status=status,
        reason=reason[:1000],
        calls=log.calls,
        turns=len(log.turns),
        budget_exhausted=log.has("budget"),
        verdict=verdict.as_dict(),
        prompt_tokens=sum(len(t.prompt_token_ids) for t in log.turns),
        cached_tokens=sum(t.cached_tokens for t in log.turns),
        sampled_tokens=sum(len(t.token_ids) for t in log.turns),
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    )
    record = _graded(record, validation, verdict, settings.reward_coefficient)
    record = _timed(record, run, log, validation, time.monotonic() - started)
    return SessionResult(record, log, run.outcome.transcript, run.workspace or {})


def _graded(
    record: SessionRecord, validation: Validation, verdict: Verdict, coefficient: float
) -> SessionRecord:
    """Score and reward; a broken session has neither, a caught one keeps its score and earns 0."""
    score = validation.score
    if record.broken or score is None:
        return record
    correct = score >= 1.0
    earned = 0.0 if verdict.caught else reward(score, record.calls, correct, coefficient)
    return record.model_copy(update={"score": score, "correct": correct, "reward": earned})


def _timed(
    record: SessionRecord, run: _Run, log: SessionLog, validation: Validation, duration_s: float
) -> SessionRecord:
    """``overhead_s`` is all that is neither the model's time nor the tools'."""
    model_s = sum(turn.engine_s for turn in log.turns)
    timing = {
        "sandbox_s": run.sandbox_s,
        "harness_s": run.harness_s,
        "model_s": model_s,
        "gateway_s": sum(turn.gateway_s for turn in log.turns),
        "tool_s": run.outcome.tool_s,
        "validator_s": validation.duration_s,
        "overhead_s": max(0.0, duration_s - model_s - run.outcome.tool_s),
    }
    rounded = {name: round(value, 4) for name, value in timing.items()}
    return record.model_copy(update={"duration_s": round(duration_s, 4), "timing": rounded})


def run_sessions(
    jobs: Iterable[SessionJob],
    *,
    concurrency: int,
    on_result: Callable[[SessionJob, SessionResult], None] | None = None,
) -> Iterator[SessionResult]:
    """Run ``run_session(**job)`` for each job, ``concurrency`` at a time, in order of completion.

    Jobs are drawn only as places fall free. Leaving the loop early, an error or an interrupt
    leaves no sandbox and no thread behind.
    """
    return run_pool(run_session, jobs, concurrency, on_result)


def probe(
    harness: Harness, backend: SandboxBackend, settings: SessionSettings, instruction: str = "hello"
) -> dict[str, Any]:
    """What the harness sends: its first request as the gateway saw it, without any model.

    Returns ``{"harness", "version", "system", "tools", "request"}``. Raises HarnessError when the
    harness sent no request.
    """
    from agentkit.serving.scripted import Scripted, ScriptedEngine

    task = Task("probe", "qa", instruction, {}, {}, {}, {})
    with ScriptedEngine(lambda body: Scripted("ok")) as engine, Gateway(engine.url) as gateway:
        key = gateway.open(Policy("base", max_turns=2))
        try:
            run = _act(task, key, harness, backend, gateway, replace(settings, timeout_s=60.0))
        finally:
            log = gateway.close(key)
    request = log.first_request
    if request is None:
        raise HarnessError(harness.name, run.outcome.reason, "one request to the gateway")
    system = [m["content"] for m in request["messages"] if m["role"] in ("system", "developer")]
    return {
        "harness": harness.name,
        "version": harness.version,
        "system": system[0] if system else "",
        "tools": request.get("tools", []),
        "request": request,
    }
