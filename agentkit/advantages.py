"""Layer: pure logic. Group-relative advantages (GRPO, Shao et al. 2024, without a critic)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def gradient_weight(logprobs: Sequence[float]) -> float:
    """Σ (1 − π)² over a session's sampled tokens: a stand-in for its squared gradient norm.

    (1 − π)² is the squared derivative of a token's log-probability by its own logit. It needs
    nothing but the engine's ``logprobs`` (natural log). Against the true squared norms of the LoRA
    gradient, measured on 128 sessions of the warm start at temperature 0.5 and on 192 at 1, the
    logarithms correlate with r = 0.90 either time.
    """
    return float(np.square(-np.expm1(np.asarray(logprobs, dtype=float))).sum())


def group_advantages(
    rewards: Sequence[Sequence[float | None]],
    *,
    weights: Sequence[Sequence[float]] | None = None,
    scale_by_std: bool = False,
) -> tuple[list[list[float | None]], dict[str, int]]:
    """Return one advantage for each session, and counts of what the groups held.

    ``advantage = reward − baseline``, divided by the group's sample standard deviation when
    ``scale_by_std``. The baseline is the group's mean, as in GRPO; with ``weights`` (see
    :func:`gradient_weight`) it is ``Σ w·r / Σ w``, the group's estimate of the baseline of least
    variance, ``E[|∇log π|² r] / E[|∇log π|²]`` (Greensmith, Bartlett and Baxter 2004).
    Either holds the session's own reward, which costs a bias of the order 1 / group size.
    Where failed sessions wander through improbable tokens, their gradients are many times longer
    than those of good ones, and the mean lets them drown what is common to the good ones.

    A broken session (``None``) takes part neither in the baseline nor in the loss and keeps
    ``None``. A group whose rewards are all equal, or that has fewer than two rewards, carries no
    signal: its advantages are exactly 0.

    Args:
        rewards: one inner sequence for each task, one entry for each session of it.
        weights: the same shape, each finite and >= 0; those of broken sessions are not read. A
            group without any positive weight has the mean as its baseline.

    Returns:
        (advantages of the same shape, ``{"groups", "equal", "small", "broken_sessions"}``).
    """
    out: list[list[float | None]] = []
    counts = {"groups": len(rewards), "equal": 0, "small": 0, "broken_sessions": 0}
    for place, group in enumerate(rewards):
        kept = [i for i, r in enumerate(group) if r is not None]
        held = np.array([group[i] for i in kept], dtype=float)
        counts["broken_sessions"] += len(group) - len(held)
        spread = float(np.ptp(held)) if len(held) else 0.0
        if len(held) < 2 or spread <= 1e-9:
            counts["small" if len(held) < 2 else "equal"] += 1
            out.append([None if r is None else 0.0 for r in group])
            continue
        scale = float(held.std(ddof=1)) if scale_by_std else 1.0
        weight = np.ones(len(kept)) if weights is None else np.array(weights[place])[kept]
        if not weight.any():
            weight = np.ones(len(kept))
        baseline = float(np.average(held, weights=weight))
        out.append([None if r is None else (r - baseline) / scale for r in group])
    return out, counts
