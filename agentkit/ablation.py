"""Layer: work. Stage 04: the same training and evaluation for each reward coefficient.

Every coefficient trains its own adapter in a subfolder of its own, from the same start, tasks and
seeds; then all adapters are evaluated as arms of one interleaved, paired plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkit.analysis import canonical, canonical_json
from agentkit.errors import ParamsError
from agentkit.evaluation import evaluate_arms
from agentkit.params import AblateParams
from agentkit.runs import Run, write_atomic
from agentkit.seeds import derive_seed
from agentkit.statistics import Comparison, Interval, compare, pair_records
from agentkit.types import Task

if TYPE_CHECKING:
    from agentkit.stack import Stack

MARGIN = 0.05
"""Accuracy differences below this count as "unchanged"; stated here, before any run."""
RESAMPLES, LEVEL = 10_000, 0.95


@dataclass(frozen=True)
class AblationPoint:
    """One coefficient: its arm, its own means, and its comparison with the reference (None there).

    ``accuracy`` in [0, 1], ``calls`` for each session; ``n`` counts pairs.
    """

    coefficient: float
    arm: str
    n: int
    accuracy: Interval
    calls: Interval
    comparison: Comparison | None


@dataclass(frozen=True)
class Ablation:
    """What notebook 04 shows; the first point is the reference."""

    points: list[AblationPoint]
    records: list[dict[str, Any]]
    statement: str
    summary: dict[str, Any]


def arm_of(coefficient: float) -> str:
    """Name of a coefficient's arm and subfolder."""
    return f"c={coefficient:g}"


def ablate(
    params: AblateParams,
    run: Run,
    stack: Stack,
    train_tasks: Sequence[Task],
    heldout_tasks: Sequence[Task],
) -> Ablation:
    """Train and evaluate every coefficient on one engine, write ``summary.json``; resumes.

    Raises:
        ParamsError: fewer than two coefficients, or doubled ones.
    """
    if len(set(params.coefficients)) < max(2, len(params.coefficients)):
        raise ParamsError(
            "coefficients", f"{params.coefficients}", "two or more that differ", "e.g. [0.0, 0.1]"
        )
    adapters: dict[str, Path | None] = {}
    for coefficient in params.coefficients:
        adapters[arm_of(coefficient)] = _train(params, run, stack, coefficient, train_tasks)
    records = evaluate_arms(
        params,
        run,
        stack,
        heldout_tasks,
        adapters,
        attempts=params.attempts,
        broken_retries=params.broken_retries,
        keep_transcripts=False,
    )
    ablation = ablation_of(records, params.coefficients, params.seed)
    write_atomic(run.path("summary.json"), canonical_json(ablation.summary))
    return ablation


def _train(
    params: AblateParams, run: Run, stack: Stack, coefficient: float, tasks: Sequence[Task]
) -> Path:
    """Train one coefficient in its subfolder; returns the last adapter's folder.

    The sessions of a stack take their reward coefficient from its settings, so that each
    coefficient needs settings of its own.
    """
    from agentkit.stack import session_settings
    from agentkit.training.stage import train

    part = params.model_copy(update={"reward_coefficient": coefficient})
    with Run.open(part, subfolder=arm_of(coefficient)) as part_run:
        done = part_run.manifest.get("last_adapter")
        if done is None or not part_run.path("adapters", done).is_dir():
            run.log(f"training with coefficient {coefficient:g}")
            part_stack = replace(stack, params=part, run=part_run, settings=session_settings(part))
            done = Path(train(part, part_run, part_stack, tasks).adapter).name
            part_run.finish(
                outputs=[part_run.path("metrics.jsonl"), part_run.path("adapters", done)],
                last_adapter=done,
            )
        return part_run.path("adapters", done)


def ablation_of(
    records: Sequence[Mapping[str, Any]], coefficients: Sequence[float], seed: int
) -> Ablation:
    """Compare every coefficient with the first; a pure function of the records."""
    reference, *others = coefficients
    comparisons = {
        c: compare(
            pair_records(records, arm_of(reference), arm_of(c)),
            np.random.default_rng(derive_seed(seed, "ablate", arm_of(c))),
            resamples=RESAMPLES,
            level=LEVEL,
            margin=MARGIN,
        )
        for c in others
    }
    first = comparisons[others[0]]
    points = [
        AblationPoint(
            reference,
            arm_of(reference),
            first.missing.quantity.n,
            first.missing.quantity.base,
            first.calls.base,
            None,
        )
    ]
    for c, comparison in comparisons.items():
        quantity = comparison.missing.quantity
        points.append(
            AblationPoint(
                c, arm_of(c), quantity.n, quantity.other, comparison.calls.other, comparison
            )
        )
    statement = statement_of(points)
    summary = canonical({"schema_version": 1, "statement": statement, "points": points})
    return Ablation(points, [dict(r) for r in records], statement, summary)


def statement_of(points: Sequence[AblationPoint]) -> str:
    """What can and what cannot be concluded at this number of tasks, in words."""
    reference = points[0]
    first = points[1].comparison
    assert first is not None
    lines = [
        f"{first.tasks} held-out tasks from {first.sources} sources, {first.attempts} "
        f"attempt{'s' if first.attempts > 1 else ''} each, "
        f"against {reference.arm} (accuracy {_percent(reference.accuracy)}, "
        f"{reference.calls.estimate or 0:.2f} calls a session)."
    ]
    lines += [_line(point) for point in points[1:]]
    lines.append(
        "Each coefficient was trained once: how much another training seed would change the "
        "result is not in these intervals."
    )
    return "\n\n".join(lines).replace(" -", " −")


def _percent(interval: Interval) -> str:
    return f"{100 * (interval.estimate or 0):.1f}%"


def _line(point: AblationPoint) -> str:
    c = point.comparison
    assert c is not None
    gap, relative = c.missing.quantity.difference, c.calls.relative
    accuracy = (
        f"accuracy {100 * (gap.estimate or 0):+.1f} points, "
        f"{100 * c.level:.0f}% interval {100 * (gap.low or 0):+.1f} to {100 * (gap.high or 0):+.1f}"
    )
    if gap.low is not None and gap.low > 0:
        found = "better"
    elif gap.high is not None and gap.high < 0:
        found = "worse"
    elif c.equivalence.equivalent:
        found = f"unchanged within ±{100 * MARGIN:.0f} points"
    else:
        found = f"neither a change nor its absence (±{100 * MARGIN:.0f} points) is shown"
    power = (
        f"a true difference below about {100 * c.detectable:.0f} points would be missed more than "
        "one time in five"
        if c.detectable is not None
        else "no difference, however large, would be found reliably at this number of tasks"
    )
    return f"{point.arm}: {accuracy}: {found}; {power}. {_calls(relative, c.level)}"


def _calls(relative: Interval, level: float) -> str:
    if relative.estimate is None or relative.low is None or relative.high is None:
        return "Calls: not defined."
    found = (
        "fewer calls" if relative.high < 0
        else "more calls" if relative.low > 0
        else "no difference in calls is shown"
    )  # fmt: skip
    return (
        f"Calls {100 * relative.estimate:+.1f}%, {100 * level:.0f}% interval "
        f"{100 * relative.low:+.1f}% to {100 * relative.high:+.1f}%: {found}."
    )
