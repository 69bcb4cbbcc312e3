"""Layer: words. Seeds derived from names, so that a session's seed never depends on order.

Two arms of a comparison share seeds because the arm is not part of the derivation: the seed is a
function of (seed, stage, task, sample) alone.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 31-bit seed that is a pure function of ``seed`` and ``names``.

    Example: ``derive_seed(0, "evaluate", task_id, attempt)``. 31 bits, since vLLM and numpy both
    take a non-negative C long and JSON readers keep such integers exact.
    """
    text = "\x1f".join([str(int(seed)), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") & 0x7FFFFFFF
