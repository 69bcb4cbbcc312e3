"""Layer: work. Stage 03: every held-out task under every arm, paired, append-only, resumable.

``sessions.jsonl`` holds exactly one final record for each planned session. A session that broke
outside the policy goes to ``broken.jsonl`` and is tried again; after ``broken_retries`` further
tries its last record becomes final as broken. A finished record is never replaced.
"""

from agentkit.evaluation.arms import evaluate, evaluate_arms, run_plan, stack_executor
from agentkit.evaluation.plan import (
    Execute,
    Finished,
    Planned,
    SessionLedger,
    parse_arms,
    plan_line,
    plan_sessions,
)

__all__ = [
    "Execute",
    "Finished",
    "Planned",
    "SessionLedger",
    "evaluate",
    "evaluate_arms",
    "parse_arms",
    "plan_line",
    "plan_sessions",
    "run_plan",
    "stack_executor",
]
