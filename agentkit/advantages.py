"""Layer: pure logic. Group-relative advantages (GRPO, Shao et al. 2024, without a critic)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def group_advantages(
    rewards: Sequence[Sequence[float | None]], *, scale_by_std: bool = False
) -> tuple[list[list[float | None]], dict[str, int]]:
    """Return one advantage for each session, and counts of what the groups held.

    ``advantage = reward − mean(group)``, divided by the group's sample standard deviation when
    ``scale_by_std``. A broken session (``None``) takes part neither in the mean nor in the loss and
    keeps ``None``. A group whose rewards are all equal, or that has fewer than two rewards, carries
    no signal: its advantages are exactly 0.

    Args:
        rewards: one inner sequence for each task, one entry for each session of it.

    Returns:
        (advantages of the same shape, ``{"groups", "equal", "small", "broken_sessions"}``).
    """
    out: list[list[float | None]] = []
    counts = {"groups": len(rewards), "equal": 0, "small": 0, "broken_sessions": 0}
    for group in rewards:
        held = np.array([r for r in group if r is not None], dtype=float)
        counts["broken_sessions"] += len(group) - len(held)
        spread = float(np.ptp(held)) if len(held) else 0.0
        if len(held) < 2 or spread <= 1e-9:
            counts["small" if len(held) < 2 else "equal"] += 1
            out.append([None if r is None else 0.0 for r in group])
            continue
        scale = float(held.std(ddof=1)) if scale_by_std else 1.0
        mean = float(held.mean())
        out.append([None if r is None else (r - mean) / scale for r in group])
    return out, counts
