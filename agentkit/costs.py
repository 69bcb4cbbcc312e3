"""Layer: pure logic. Seconds, tokens and money of sessions, from their records alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

Record = Mapping[str, Any]

WRITE_UP_SESSIONS, WRITE_UP_USD = 1350, 5.0
"""The write-up's size and price: 1,350 sessions for about $5."""


@dataclass(frozen=True)
class Prices:
    """What things cost: the machine in USD an hour; tokens in USD a million where one buys them.

    A machine of one's own has token prices of 0, a hosted model has an hourly price of 0.
    """

    usd_per_hour: float = 0.0
    usd_per_million_prompt: float = 0.0
    usd_per_million_cached: float = 0.0
    usd_per_million_sampled: float = 0.0


@dataclass(frozen=True)
class ArmCost:
    """Means for one session of an arm, broken ones included: they cost as well.

    ``session_s`` is wall-clock from start to grade; ``machine_s`` is the session's share of the
    time in which the machine was busy, less than ``session_s`` where sessions ran side by side.
    None where the records do not say.
    """

    arm: str
    sessions: int
    session_s: float
    machine_s: float | None
    prompt_tokens: float | None
    cached_tokens: float | None
    sampled_tokens: float | None
    calls: float
    usd: float | None


def busy_seconds(records: Iterable[Record]) -> float | None:
    """Length of the union of all sessions' [start, end]: pauses between resumes do not count.

    None where a record lacks ``finished_at``.
    """
    spans = []
    for record in records:
        if not record.get("finished_at"):
            return None
        end = datetime.fromisoformat(str(record["finished_at"])).timestamp()
        spans.append((end - float(record["duration_s"]), end))
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = [float(r[name]) for r in records if r.get(name) is not None]
    return float(np.mean(values)) if values else None


def arm_costs(records: Sequence[Record], prices: Prices) -> list[ArmCost]:
    """Costs of each arm, in order of first appearance.

    The busy time is shared out by session seconds: arms are interleaved, so both saw the same load.
    """
    busy = busy_seconds(records)
    seconds = sum(float(r["duration_s"]) for r in records)
    share = busy / seconds if busy is not None and seconds > 0 else None
    out = []
    for arm in dict.fromkeys(str(r["arm"]) for r in records):
        held = [r for r in records if r["arm"] == arm]
        session_s = _mean(held, "duration_s") or 0.0
        machine_s = None if share is None else session_s * share
        tokens = {n: _mean(held, n) for n in ("prompt_tokens", "cached_tokens", "sampled_tokens")}
        out.append(
            ArmCost(
                arm=arm,
                sessions=len(held),
                session_s=session_s,
                machine_s=machine_s,
                calls=_mean(held, "calls") or 0.0,
                usd=_usd(machine_s, tokens, prices),
                **tokens,
            )
        )
    return out


def _usd(
    machine_s: float | None, tokens: Mapping[str, float | None], prices: Prices
) -> float | None:
    """USD for one session; None where a part that has a price is unknown."""
    prompt, cached = tokens["prompt_tokens"], tokens["cached_tokens"]
    fresh = None if prompt is None else prompt - (cached or 0.0)
    parts = (
        (machine_s, prices.usd_per_hour / 3600),
        (fresh, prices.usd_per_million_prompt / 1e6),
        (cached, prices.usd_per_million_cached / 1e6),
        (tokens["sampled_tokens"], prices.usd_per_million_sampled / 1e6),
    )
    if any(amount is None and price > 0 for amount, price in parts):
        return None
    return sum((amount or 0.0) * price for amount, price in parts)


def price_line(costs: Sequence[ArmCost], sessions: int = WRITE_UP_SESSIONS) -> str:
    """What ``sessions`` sessions would cost at the mean rate of ``costs``, in one line."""
    known = [c for c in costs if c.usd is not None and c.machine_s is not None]
    if not known or len(known) < len(costs):
        return f"{sessions:,} sessions: the cost cannot be told, the records hold no end times"
    n = sum(c.sessions for c in known)
    usd = sum((c.usd or 0.0) * c.sessions for c in known) / n * sessions
    hours = sum((c.machine_s or 0.0) * c.sessions for c in known) / n * sessions / 3600
    return (
        f"{sessions:,} sessions at this rate cost ${usd:.2f} and take {hours:.1f} machine hours "
        f"(the write-up, another model and machine: about ${WRITE_UP_USD:.0f})"
    )
