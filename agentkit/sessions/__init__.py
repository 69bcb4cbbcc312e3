"""Layer: work. Agent sessions, from task to record."""

from agentkit.sessions.session import (
    SessionJob,
    SessionResult,
    SessionSettings,
    judge_status,
    probe,
    run_session,
    run_sessions,
)
from agentkit.sessions.validation import Validation, validate

__all__ = [
    "SessionJob",
    "SessionResult",
    "SessionSettings",
    "Validation",
    "judge_status",
    "probe",
    "run_session",
    "run_sessions",
    "validate",
]
