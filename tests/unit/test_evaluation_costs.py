"""Seconds, tokens and money, recomputed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agentkit.costs import Prices, arm_costs, busy_seconds, price_line


def session(end: int, seconds: float, arm: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "arm": arm, "finished_at": f"2026-01-01T00:{end // 60:02}:{end % 60:02}Z",
        "duration_s": seconds, "calls": 2, "prompt_tokens": 1000, "cached_tokens": 400,
        "sampled_tokens": 100, **more,
    }  # fmt: skip


def test_busy_time_is_the_union_of_sessions() -> None:
    # Two side by side (0-10, 4-12), a pause of an hour's resume, one more (30-35).
    rows = [session(10, 10), session(12, 8), session(35, 5)]
    assert busy_seconds(rows) == pytest.approx(12 + 5)
    assert busy_seconds(rows[::-1]) == pytest.approx(17)
    assert busy_seconds([session(10, 10), session(8, 3)]) == pytest.approx(10)
    assert busy_seconds([{**session(10, 10), "finished_at": ""}]) is None
    assert busy_seconds([]) == 0.0


def test_machine_seconds_add_up_to_the_busy_time() -> None:
    rows = [session(10, 10), session(12, 8, "b"), session(35, 5, "b")]
    costs = arm_costs(rows, Prices(usd_per_hour=3.6))
    assert [c.arm for c in costs] == ["a", "b"]
    assert sum((c.machine_s or 0) * c.sessions for c in costs) == pytest.approx(17)
    assert sum((c.usd or 0) * c.sessions for c in costs) == pytest.approx(17 * 0.001)
    assert costs[1].session_s == pytest.approx(6.5)


def test_token_prices_charge_cached_tokens_once() -> None:
    prices = Prices(
        usd_per_million_prompt=1.0, usd_per_million_cached=0.1, usd_per_million_sampled=10.0
    )
    cost = arm_costs([session(10, 10)], prices)[0]
    assert cost.usd == pytest.approx((600 * 1.0 + 400 * 0.1 + 100 * 10.0) / 1e6)


def test_unknown_is_none_and_said() -> None:
    rows = [{"arm": "a", "duration_s": 2.0, "calls": 1}]
    costs = arm_costs(rows, Prices(usd_per_hour=1.0))
    assert costs[0].usd is None
    assert costs[0].sampled_tokens is None
    assert "cannot be told" in price_line(costs)


def test_price_line_scales_to_the_write_ups_size() -> None:
    rows = [session(10, 10), session(20, 10, "b")]
    line = price_line(arm_costs(rows, Prices(usd_per_hour=0.36)))
    assert "1,350 sessions at this rate cost $1.35 and take 3.8 machine hours" in line
