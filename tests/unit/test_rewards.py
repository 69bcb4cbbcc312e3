"""The reward: the write-up's formula on its published cases, and its identities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.rewards import CALL_LIMIT, reward


@pytest.mark.parametrize(
    ("score", "calls", "correct", "coefficient", "expected"),
    [
        (1.0, 0, True, 0.1, 1.1),  # the whole bonus
        (1.0, 5, True, 0.1, 1.0 + 0.1 * 2 / 3),
        (1.0, 15, True, 0.1, 1.0),  # the bonus reaches zero at 15 calls
        (1.0, 3, True, 0.3, 1.24),
        (1.0, 3, True, 0.0, 1.0),  # the ablation without bonus is the plain score
        (0.0, 3, False, 0.3, 0.0),  # no bonus for a wrong answer, however short
        (0.4, 1, False, 0.1, 0.4),
        (1.0, 40, True, 0.1, 1.0),  # and never below the score
    ],
)
def test_published_cases(
    score: float, calls: int, correct: bool, coefficient: float, expected: float
) -> None:
    assert reward(score, calls, correct, coefficient) == pytest.approx(expected)


def test_defaults_are_the_write_ups() -> None:
    assert CALL_LIMIT == 15
    assert reward(1.0, 0, True) == pytest.approx(1.1)


@given(
    score=st.floats(0, 1),
    calls=st.integers(0, 200),
    correct=st.booleans(),
    coefficient=st.floats(0, 5),
)
def test_identities(score: float, calls: int, correct: bool, coefficient: float) -> None:
    value = reward(score, calls, correct, coefficient)
    assert score <= value <= score + coefficient
    assert reward(score, calls + 1, correct, coefficient) <= value
    if not correct or calls >= CALL_LIMIT:
        assert value == score


@given(calls=st.integers(0, 100))
def test_a_solved_session_always_beats_an_unsolved_one(calls: int) -> None:
    assert reward(1.0, calls, True, 0.1) > reward(0.0, 0, False, 0.1)


@pytest.mark.parametrize(
    ("score", "calls", "coefficient"), [(1.5, 0, 0.1), (-0.1, 0, 0.1), (1.0, -1, 0.1), (1.0, 1, -1)]
)
def test_refusals(score: float, calls: int, coefficient: float) -> None:
    with pytest.raises(ValueError, match=r"outside|negative"):
        reward(score, calls, True, coefficient)


def test_nan_score_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        reward(float("nan"), 1, True)
