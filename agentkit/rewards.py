"""Layer: pure logic. The reward of one session."""

from __future__ import annotations

CALL_LIMIT = 15
"""The write-up's number of calls at which the bonus reaches zero."""


def reward(score: float, calls: int, correct: bool, coefficient: float = 0.1) -> float:
    """Return ``score + coefficient × (1 − calls/15)`` for a correct session, ``score`` otherwise.

    The formula is the write-up's. It does not say what happens above 15 calls; here the bonus
    stops at zero and never turns negative, so that a long correct session is never worth less than
    its score.

    Args:
        score: the validator's score in [0, 1].
        calls: tool calls that the harness executed (>= 0).
        correct: whether the session counts as solved.
        coefficient: weight of the bonus (>= 0; the write-up's is 0.1).

    Raises:
        ValueError: a score outside [0, 1], negative calls or a negative coefficient.
    """
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"score {score!r} is outside [0, 1]")
    if calls < 0 or coefficient < 0:
        raise ValueError(f"calls {calls!r} and coefficient {coefficient!r} must not be negative")
    if not correct:
        return score
    return score + coefficient * max(0.0, 1.0 - calls / CALL_LIMIT)
