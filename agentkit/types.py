"""Layer: words. The nouns of the kit as plain dataclasses and one record model.

Words as the field uses them: see ``docs/glossary.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["repair", "build", "extend", "qa"]
Baseline = Literal["mean", "optimal"]
"""What a group's rewards are measured from; see :mod:`agentkit.advantages`."""
KINDS: tuple[Kind, ...] = ("repair", "build", "extend", "qa")

Status = Literal[
    "completed", "timed_out", "harness_error", "sandbox_error", "engine_error", "validator_error"
]
BROKEN: frozenset[str] = frozenset(
    {"harness_error", "sandbox_error", "engine_error", "validator_error"}
)
"""Statuses whose cause lies outside the policy: no score, no reward, out of loss and baseline.

``timed_out`` is not among them: the workspace is graded as it stands, and the record is flagged.
"""

Files = dict[str, bytes]
"""Relative POSIX path -> content. A file that starts with ``#!`` is made executable."""


@dataclass(frozen=True)
class ToolCall:
    """One tool call of an assistant message; ``arguments`` is the raw text when it is not JSON."""

    id: str
    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True)
class Step:
    """One executed call of a trajectory and what came back."""

    call: ToolCall
    output: str
    is_error: bool = False
    exit_status: int | None = None
    """Known only where the trace shows it."""


@dataclass(frozen=True)
class Trajectory:
    """A public agent session as read from a trace: wishes, executed calls in order, last words.

    ``initial_files`` holds what the trace itself carries of the workspace before the first call
    (empty for most formats); what else can be known comes from replay.
    """

    dataset: str
    session_id: str
    harness: str
    cwd: str
    licence: str
    wishes: tuple[str, ...]
    steps: tuple[Step, ...]
    final_text: str = ""
    path: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A data row: instruction, workspace, hidden validator and reference solution.

    ``tests`` holds ``test.sh`` and what it needs; it writes ``/logs/verifier/reward.txt``.
    ``solution`` holds ``solve.sh``. ``source`` names the trajectory: ``{"dataset", "session_id",
    "licence"}``; the pair (dataset, session_id) is the unit of splitting and resampling.
    """

    task_id: str
    kind: Kind
    instruction: str
    workspace: Files
    tests: Files
    solution: Files
    source: dict[str, str]
    split: Literal["train", "heldout"] = "train"
    difficulty: str = "unknown"
    agent_timeout_s: float = 120.0
    verifier_timeout_s: float = 30.0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def source_id(self) -> str:
        return f"{self.source.get('dataset', '')}:{self.source.get('session_id', '')}"


@dataclass(frozen=True)
class Policy:
    """What the gateway asks of the engine for one session, whatever the harness sends.

    Attributes:
        model: name under which the engine serves the base or an adapter version.
        max_tokens: sampled tokens for each turn.
        max_turns: hard budget of model calls for the session.
        seed: sampling seed; turn ``i`` uses ``derive_seed(seed, "turn", i)``.
    """

    model: str
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    max_turns: int = 15
    seed: int = 0


@dataclass
class Turn:
    """One recorded model call: exact tokens, their logprobs, and timing.

    ``prompt_token_ids`` (P), ``token_ids`` (T) and ``logprobs`` (T) come from the engine's answer
    and are never rebuilt from text. ``cached_tokens`` counts prompt tokens served from the prefix
    cache. ``gateway_s`` is the gateway's own time; ``engine_s`` the wait for the engine.
    """

    index: int
    model: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    message: dict[str, Any]
    finish_reason: str
    cached_tokens: int = 0
    engine_s: float = 0.0
    gateway_s: float = 0.0
    started_at: float = 0.0


@dataclass
class SessionLog:
    """All that the gateway saw of one session.

    ``turns`` holds only answers that reached the harness whole. ``events`` lists everything else,
    each ``{"type", "reason", "turn", "times", ...}`` (repeats are folded) with type one of
    ``budget`` (a model call beyond the budget, answered by a notice), ``engine_error``,
    ``client_gone``, ``bad_request``, ``context_overflow``, ``resend``, ``side_call``,
    ``call_rewritten``, ``call_blocked``.
    ``calls`` counts tool calls that the gateway delivered and whose result came back.
    """

    key: str
    policy: Policy
    turns: list[Turn] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0
    first_request: dict[str, Any] | None = None

    def has(self, event_type: str) -> bool:
        return any(e["type"] == event_type for e in self.events)


class SessionRecord(BaseModel):
    """One line of ``sessions.jsonl``. Never NaN: what is unknown is ``null``."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: int = 1
    session_id: str
    task_id: str
    kind: Kind
    source_id: str
    harness: str
    model: str
    arm: str
    adapter: str | None = None
    attempt: int = 0
    step: int | None = None
    seed: int = 0
    status: Status
    reason: str = ""
    score: float | None = None
    correct: bool | None = None
    calls: int = 0
    turns: int = 0
    reward: float | None = None
    budget_exhausted: bool = False
    verdict: dict[str, Any] = Field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    duration_s: float = 0.0
    timing: dict[str, float] = Field(default_factory=dict)
    finished_at: str = ""

    @property
    def broken(self) -> bool:
        return self.status in BROKEN
