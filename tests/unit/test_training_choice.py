"""Choosing the warm-start checkpoint by bisection, and the split behind it."""

from __future__ import annotations

import pytest

pytest.importorskip("trl")

from agentkit.training.warm_start import choose_step

STEPS = list(range(4, 36, 4))


@pytest.mark.parametrize("wanted", STEPS)
def test_a_monotone_rate_is_found_in_few_measurements(wanted: int) -> None:
    asked: list[int] = []

    def measure(step: int) -> float:
        asked.append(step)
        return 0.65 + 0.2 * ((step > wanted) - (step < wanted))

    assert choose_step(STEPS, measure, 0.55, 0.75) == wanted
    assert asked[0] == STEPS[-1] and len(asked) <= 5 and len(set(asked)) == len(asked)


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_none_where_no_checkpoint_fits(rate: float) -> None:
    assert choose_step(STEPS, lambda step: rate, 0.55, 0.75) is None
