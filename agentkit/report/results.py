"""Layer: faces. What notebooks 03 to 05 show: sessions, cells, costs, ablation, reconstruction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkit.costs import price_line
from agentkit.report.tables import Shown, p_value, show_text, span, table
from agentkit.statistics import STATEMENT, Comparison, Quantity, Reconstruction, arms_of, wilson
from agentkit.types import BROKEN

if TYPE_CHECKING:
    from agentkit.ablation import Ablation
    from agentkit.analysis import Analysis

Record = Mapping[str, Any]


def show_sessions(records: Sequence[Record]) -> Shown:
    """How the sessions of each arm ended."""
    rows = []
    for arm in arms_of(records):
        held = [r for r in records if r["arm"] == arm]
        ended = [r for r in held if r["status"] not in BROKEN]
        rows.append(
            {
                "arm": arm,
                "sessions": len(held),
                "completed": sum(r["status"] == "completed" for r in held),
                "timed out": sum(r["status"] == "timed_out" for r in held),
                "budget used up": sum(bool(r.get("budget_exhausted")) for r in held),
                "broken": len(held) - len(ended),
                "seconds a session": float(np.mean([r["duration_s"] for r in held])),
                "sampled tokens a session": _mean(held, "sampled_tokens"),
            }
        )
    return table(rows, "Sessions by arm")


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = [float(r[name]) for r in records if r.get(name) is not None]
    return float(np.mean(values)) if values else None


def show_pass_rates(records: Sequence[Record]) -> Shown:
    """pass@1 and calls by kind and arm; broken sessions are left out and counted."""
    rows = []
    kinds = sorted({str(r["kind"]) for r in records})
    for kind in [*kinds, "all"]:
        for arm in arms_of(records):
            held = [r for r in records if r["arm"] == arm and kind in ("all", r["kind"])]
            ended = [r for r in held if r["status"] not in BROKEN]
            solved = sum(bool(r["correct"]) for r in ended)
            low, high = wilson(solved, len(ended)) if ended else (0.0, 1.0)
            rows.append(
                {
                    "kind": kind,
                    "arm": arm,
                    "solved": f"{solved} of {len(ended)}",
                    "pass@1": f"{100 * solved / len(ended):.1f}%" if ended else "–",
                    "95% (Wilson, unpaired)": f"{100 * low:.0f}–{100 * high:.0f}%",
                    "calls a session": _mean(ended, "calls"),
                    "broken": len(held) - len(ended),
                }
            )
    return table(rows, "pass@1 by kind and arm")


def show_cells(analysis: Analysis) -> Shown:
    """The primary cell in full, then one line for each other cell."""
    shown = _primary(analysis.primary)
    if len(analysis.cells) > 1:
        rows = [
            {
                "cell": cell.name,
                "pairs": cell.comparison.missing.quantity.n,
                "points": span(cell.comparison.missing.quantity.difference, 100),
                "calls": span(cell.comparison.calls.relative, 100) + " %",
                "exact McNemar p": p_value(cell.comparison.missing.mcnemar_exact),
                "Holm p": p_value(cell.p_adjusted),
            }
            for cell in analysis.cells
            if not cell.primary
        ]
        shown += table(rows, "Other cells, Holm-adjusted among themselves")
    return shown


def _primary(c: Comparison) -> Shown:
    rows = [{"quantity": name, "value": value} for name, value in _primary_lines(c)]
    return table(rows, f"{c.other_arm} against {c.base_arm}: the primary cell") + _kinds(c)


def _primary_lines(c: Comparison) -> Iterator[tuple[str, str]]:
    level, gap = f"{100 * c.level:.0f}%", c.missing.quantity
    bca = gap.difference
    yield "pairs", f"{c.pairs} ({c.tasks} tasks, {c.sources} sources, attempts: {c.attempts})"
    yield "broken sessions", f"{_broken(c.base_status)} and {_broken(c.other_status)}"
    yield f"pass@1, {c.base_arm}", span(gap.base, 100, sign=False) + " %"
    yield f"pass@1, {c.other_arm}", span(gap.other, 100, sign=False) + " %"
    yield f"paired difference, points, {level} bootstrap", span(gap.difference, 100)
    if bca.bca_low is not None and bca.bca_high is not None:
        limits = f"[{100 * bca.bca_low:+.1f}, {100 * bca.bca_high:+.1f}]"
        yield f"the same, {level} BCa", limits.replace("-", "−")
    low, high = c.missing.newcombe
    yield f"the same, {level} Newcombe", f"[{100 * low:+.1f}, {100 * high:+.1f}]".replace("-", "−")
    yield "the same, broken as failures", span(c.failures.quantity.difference, 100)
    t = c.missing.table
    yield "2×2: both, gained, lost, neither", f"{t.both}, {t.gained}, {t.lost}, {t.neither}"
    yield (
        "exact McNemar p (mid-p)",
        (f"{p_value(c.missing.mcnemar_exact)} ({p_value(c.missing.mcnemar_mid)})"),
    )
    yield "sign-flip p, whole sources", p_value(c.missing.sign_flip)
    yield f"calls a session, {c.base_arm} → {c.other_arm}", _arrow(c.calls)
    yield f"difference in calls, {level}", span(c.calls.difference, digits=2)
    yield f"relative, {level}", span(c.calls.relative, 100) + " %"
    both = c.calls_both_solved
    if both is not None:
        yield f"calls, the {both.n} pairs that both solved", _arrow(both)
        yield f"relative, both solved, {level}", span(both.relative, 100) + " %"
    yield f"mean reward, difference, {level}", span(c.reward.difference, digits=3)
    e = c.equivalence
    verdict = "shown" if e.equivalent else "not shown"
    yield (
        f"equivalence within ±{100 * e.margin:.0f} points",
        f"{verdict} (p = {p_value(e.p_value)})",
    )
    least = "none" if c.detectable is None else f"{100 * c.detectable:.1f} points"
    yield (
        "detectable with 80% power at this discordance",
        (f"{least} ({100 * c.discordance:.0f}% discordant)"),
    )
    yield "half-width had the arms not been paired", f"{100 * c.unpaired_half_width:.1f} points"
    for k, values in c.pass_at_k.items():
        if k > 1:
            listed = ", ".join(f"{a} {100 * (v or 0):.1f}%" for a, v in values.items())
            yield f"pass@{k} (unbiased)", listed


def _broken(status: Mapping[str, int]) -> str:
    listed = {name: n for name, n in status.items() if name in BROKEN}
    detail = ", ".join(f"{n} {name}" for name, n in sorted(listed.items()))
    return f"{sum(listed.values())}" + (f" ({detail})" if detail else "")


def _arrow(quantity: Quantity) -> str:
    return f"{quantity.base.estimate or 0:.2f} → {quantity.other.estimate or 0:.2f}"


def _kinds(c: Comparison) -> Shown:
    rows = [
        {
            "kind": kind,
            "pairs": q.n,
            c.base_arm: span(q.base, 100, sign=False) + " %",
            c.other_arm: span(q.other, 100, sign=False) + " %",
            "difference, points": span(q.difference, 100),
        }
        for kind, q in c.by_kind.items()
    ]
    return table(rows, "By kind (exploratory, not adjusted)")


def show_cost(analysis: Analysis) -> Shown:
    """Seconds, tokens and money for each session, and the write-up's size at this rate."""
    rows = [
        {
            "arm": c.arm,
            "sessions": c.sessions,
            "seconds": c.session_s,
            "machine seconds": c.machine_s,
            "prompt tokens": None if c.prompt_tokens is None else round(c.prompt_tokens),
            "of them cached": None if c.cached_tokens is None else round(c.cached_tokens),
            "sampled tokens": None if c.sampled_tokens is None else round(c.sampled_tokens),
            "calls": c.calls,
            "USD for 1,000": None if c.usd is None else 1000 * c.usd,
        }
        for c in analysis.costs
    ]
    return table(rows, "Means for one session") + show_text(price_line(analysis.costs))


def show_ablation(ablation: Ablation) -> Shown:
    """Accuracy and calls for each coefficient, and the paired differences from the first."""
    rows = [
        {
            "coefficient": f"{p.coefficient:g}",
            "pairs": p.n,
            "pass@1": span(p.accuracy, 100, sign=False) + " %",
            "calls a session": span(p.calls, digits=2, sign=False),
            "points against the first": "reference"
            if p.comparison is None
            else span(p.comparison.missing.quantity.difference, 100),
            "calls against the first": "reference"
            if p.comparison is None
            else span(p.comparison.calls.relative, 100) + " %",
        }
        for p in ablation.points
    ]
    return table(rows, "Reward coefficients, paired, 95% intervals")


def show_reconstruction(found: Sequence[Reconstruction]) -> Shown:
    """The integers that print as the write-up does, nearest to its 150 tasks first."""
    rows = [
        {
            "tasks": r.n,
            "base": f"{r.base} ({100 * r.base / r.n:.1f}%)",
            "trained": f"{r.trained} ({100 * r.trained / r.n:.1f}%)",
            "gained": r.gained,
            "lost": r.lost,
            "points": f"{r.difference_points:+.2f} ± {r.half_width_points:.2f}",
            "exact McNemar p": p_value(r.mcnemar_p),
        }
        for r in found
    ]
    note = (
        f"{STATEMENT} With one of the 150 tasks dropped the first row gives every printed digit; "
        "the others would need many more tasks to have been dropped."
    )
    return table(rows, "Integers that give 69%, 79%, 9.4 and 6.3 at once") + show_text(note)
