"""Group-relative advantages: identities, broken sessions, groups without signal."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.advantages import gradient_weight, group_advantages

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


def test_gradient_weight_is_the_squared_derivative_by_the_sampled_logit() -> None:
    logits = [0.3, -1.2, 2.0]

    def logprob(chosen: int, shift: float) -> float:
        moved = [x + shift * (i == chosen) for i, x in enumerate(logits)]
        return moved[chosen] - math.log(sum(map(math.exp, moved)))

    step = 1e-5
    slopes = [(logprob(i, step) - logprob(i, -step)) / (2 * step) for i in range(3)]
    assert gradient_weight([logprob(i, 0.0) for i in range(3)]) == pytest.approx(
        sum(s**2 for s in slopes), rel=1e-6
    )
    assert gradient_weight([]) == gradient_weight([0.0, 0.0]) == 0


@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 1.1)), st.floats(0, 50)), max_size=8))
def test_weighted_baseline(group: list[tuple[float | None, float]]) -> None:
    rewards, weights = [r for r, _ in group], [w for _, w in group]
    plain, plain_counts = group_advantages([rewards])
    out, counts = group_advantages([rewards], weights=[weights])
    assert counts == plain_counts
    assert group_advantages([rewards], weights=[[3.0] * len(group)]) == (
        [[None if a is None else pytest.approx(a, abs=1e-9) for a in plain[0]]],
        counts,
    )
    held = [(a, w) for a, w in zip(out[0], weights, strict=True) if a is not None]
    if sum(w for _, w in held) > 0:
        assert sum(a * w for a, w in held) == pytest.approx(0, abs=1e-5)


def test_weighted_baseline_has_the_least_variance() -> None:
    """Among constant baselines, for gradients of known length: by a scan over them."""
    rewards, lengths = [1.0, 1.0, 0.0], [1.0, 2.0, 6.0]
    out, _ = group_advantages([rewards], weights=[[x**2 for x in lengths]])
    best = rewards[0] - (out[0][0] or 0.0)

    def second_moment(baseline: float) -> float:
        return sum(((r - baseline) * x) ** 2 for r, x in zip(rewards, lengths, strict=True))

    scanned = min((i / 1000 for i in range(1001)), key=second_moment)
    assert best == pytest.approx(scanned, abs=1e-3)
    assert best < statistics.mean(rewards) / 4


def test_group_without_weight_falls_back_to_the_mean() -> None:
    assert group_advantages([[1.0, 0.0]], weights=[[0.0, 0.0]])[0] == [[0.5, -0.5]]
