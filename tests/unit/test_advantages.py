"""Group-relative advantages: identities, broken sessions, groups without signal."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.advantages import group_advantages

GROUP = st.lists(st.one_of(st.none(), st.floats(0, 1.1)), max_size=8)


def test_by_hand() -> None:
    advantages, counts = group_advantages([[1.0, 0.0, 0.5, None]])
    assert advantages == [[0.5, -0.5, 0.0, None]]
    assert counts == {"groups": 1, "equal": 0, "small": 0, "broken_sessions": 1}


def test_scaled_by_the_sample_standard_deviation() -> None:
    rewards = [1.1, 0.0, 0.4, 0.9]
    advantages, _ = group_advantages([rewards], scale_by_std=True)
    mean, spread = statistics.mean(rewards), statistics.stdev(rewards)
    assert advantages[0] == pytest.approx([(r - mean) / spread for r in rewards])


def test_broken_sessions_do_not_move_the_baseline() -> None:
    with_broken, _ = group_advantages([[1.0, None, 0.0, None]])
    without, _ = group_advantages([[1.0, 0.0]])
    assert [a for a in with_broken[0] if a is not None] == without[0]


def test_groups_without_signal_are_exactly_zero_and_counted() -> None:
    advantages, counts = group_advantages([[0.1 + 0.2, 0.3], [1.0], [], [None, None], [0, 1]])
    assert advantages[:2] == [[0.0, 0.0], [0.0]]
    assert advantages[3] == [None, None]
    assert counts == {"groups": 5, "equal": 1, "small": 3, "broken_sessions": 2}


@given(st.lists(GROUP, max_size=5), st.booleans())
def test_identities(rewards: list[list[float | None]], scale: bool) -> None:
    advantages, _ = group_advantages(rewards, scale_by_std=scale)
    for group, out in zip(rewards, advantages, strict=True):
        assert [a is None for a in out] == [r is None for r in group]
        held = [a for a in out if a is not None]
        assert sum(held) == pytest.approx(0, abs=1e-5)
        pairs = [(r, a) for r, a in zip(group, out, strict=True) if r is not None and a is not None]
        ordered = sorted(pairs)
        assert all(x[1] <= y[1] + 1e-9 for x, y in pairwise(ordered))
