"""Layer: work. Stage 05: session records to intervals, without a model.

``summary.json`` holds canonical digits: the same records, seed and parameters give the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentkit.costs import ArmCost, Prices, arm_costs, price_line
from agentkit.errors import RunError
from agentkit.params import AnalyseParams
from agentkit.runs import Run, read_jsonl, write_atomic
from agentkit.seeds import derive_seed
from agentkit.statistics import (
    STATEMENT,
    Comparison,
    arms_of,
    cells_of,
    compare,
    holm,
    pair_records,
    reconstruct_published,
)

DECIMALS = 6
"""Canonical digits: more than any reader needs, fewer than machines disagree on."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One comparison of the grid. ``p_adjusted``: the primary cell's own exact McNemar p, Holm's
    among the other cells."""

    model: str
    harness: str
    comparison: Comparison
    primary: bool
    p_adjusted: float

    @property
    def name(self) -> str:
        parts = [self.model, self.harness, self.comparison.other_arm]
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Analysis:
    """What notebook 05 shows. ``cells`` has the primary cell first."""

    cells: list[Cell]
    records: list[dict[str, Any]]
    training_metrics: list[dict[str, Any]]
    costs: list[ArmCost]
    headline: str
    summary: dict[str, Any]

    @property
    def primary(self) -> Comparison:
        return self.cells[0].comparison


def analyse(params: AnalyseParams, run: Run) -> Analysis:
    """Read the records of 03 (and the curve of 02 where it exists) and write ``summary.json``."""
    records = read_jsonl(run.root / "03_evaluate" / "sessions.jsonl")
    if not records:
        raise RunError(
            str(run.root / "03_evaluate" / "sessions.jsonl"),
            "no session records",
            "the records of both arms",
            "run notebook 03 first",
        )
    metrics = read_jsonl(run.root / "02_train" / "metrics.jsonl")
    analysis = analyse_records(records, params, metrics)
    write_atomic(run.path("summary.json"), canonical_json(analysis.summary))
    run.log(analysis.headline)
    return analysis


def analyse_records(
    records: Sequence[Record], params: AnalyseParams, metrics: Sequence[Record] = ()
) -> Analysis:
    """All comparisons with the baseline arm; a pure function of records and parameters.

    Raises:
        PairingError: the arms do not pair.
    """
    cells = _cells(records, params)
    costs = arm_costs(records, Prices(usd_per_hour=params.usd_per_hour))
    headline = headline_of(cells[0])
    summary = canonical(
        {
            "schema_version": 1,
            "analysis": {
                name: getattr(params, name)
                for name in type(params).model_fields
                if name != "run_dir"
            },
            "records": len(records),
            "headline": headline,
            "cells": [
                {
                    "model": c.model,
                    "harness": c.harness,
                    "primary": c.primary,
                    "p_adjusted": c.p_adjusted,
                    **dataclasses.asdict(c.comparison),
                }
                for c in cells
            ],
            "costs": {"arms": costs, "line": price_line(costs)},
            "published_reconstruction": {
                "statement": STATEMENT,
                "solutions": reconstruct_published(),
            },
        }
    )
    return Analysis(
        cells=cells,
        records=[dict(r) for r in records],
        training_metrics=[dict(m) for m in metrics],
        costs=costs,
        headline=headline,
        summary=summary,
    )


def _cells(records: Sequence[Record], params: AnalyseParams) -> list[Cell]:
    found: list[tuple[str, str, Comparison]] = []
    for model, harness in cells_of(records):
        held = [r for r in records if (r.get("model", ""), r["harness"]) == (model, harness)]
        others = [arm for arm in arms_of(held) if arm != params.baseline_arm]
        # The treatment first; an absent one is asked for, so that the error names it.
        arms = dict.fromkeys(
            ([params.treatment_arm] if harness == params.primary_harness else []) + others
        )
        for arm in arms:
            seed = derive_seed(params.seed, "analyse", model, harness, params.baseline_arm, arm)
            table = pair_records(held, params.baseline_arm, arm)
            comparison = compare(
                table,
                np.random.default_rng(seed),
                resamples=params.resamples,
                level=params.confidence,
                margin=params.equivalence_margin,
            )
            found.append((model, harness, comparison))
    chosen = [
        i
        for i, (_, harness, c) in enumerate(found)
        if harness == params.primary_harness and c.other_arm == params.treatment_arm
    ]
    if not chosen:
        raise RunError(
            "primary_harness",
            repr(params.primary_harness),
            f"one of {sorted({h for _, h, _ in found})}",
            "correct the analysis parameters",
        )
    first = chosen[0]
    adjusted = holm(
        {str(i): c.missing.mcnemar_exact for i, (_, _, c) in enumerate(found) if i != first}
    )
    cells = [
        Cell(model, harness, c, i == first, adjusted.get(str(i), c.missing.mcnemar_exact))
        for i, (model, harness, c) in enumerate(found)
    ]
    return sorted(cells, key=lambda cell: not cell.primary)


def headline_of(cell: Cell) -> str:
    """The primary result in two sentences, with its interval and what it rests on."""
    c = cell.comparison
    quantity, table = c.missing.quantity, c.missing.table
    gap = quantity.difference
    base, other = (100 * (x.estimate or 0.0) for x in (quantity.base, quantity.other))
    points, low, high = (100 * (x or 0.0) for x in (gap.estimate, gap.low, gap.high))
    verdict = (
        "above 0" if low > 0 else "below 0" if high < 0 else "on both sides of 0: not told apart"
    )
    broken = c.pairs - quantity.n
    line = (
        f"{cell.name} against {c.base_arm}: {base:.1f}% → {other:.1f}% pass@1, "
        f"{points:+.1f} points, {100 * c.level:.0f}% interval {low:+.1f} to {high:+.1f} "
        f"({verdict}; paired bootstrap of {c.sources} sources, {c.tasks} tasks). "
        f"{table.gained} gained, {table.lost} lost, exact McNemar "
        f"p = {c.missing.mcnemar_exact:.2g}; {broken} pairs with a broken session."
    )
    return line.replace(" -", " −")


def canonical(value: Any) -> Any:
    """Plain JSON data with floats rounded to ``DECIMALS``; no NaN (None instead), no -0.0."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return canonical(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return round(float(value), DECIMALS) + 0.0 if np.isfinite(value) else None
    return value


def canonical_json(summary: Any) -> str:
    """The text of ``summary.json``: sorted keys, one digit string for each number."""
    return json.dumps(canonical(summary), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
