"""Layer: boundaries. Logprobs of given tokens as the server computes them."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from agentkit.errors import EngineError

PROBE_IDS: tuple[int, ...] = tuple(3 + (i * 37) % 241 for i in range(24))
"""Low token ids that every vocabulary has; their meaning does not matter to a comparison."""


def prompt_logprobs(http: httpx.Client, model: str, ids: Sequence[int]) -> list[float]:
    """Logprob of each token but the first, given the earlier ones.

    Args:
        http: client whose base address is the server's.
        ids: [T] token ids.

    Returns:
        [T − 1] natural logarithms.
    """
    body = {
        "model": model,
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 0,
        "add_special_tokens": False,
    }
    try:
        answer = http.post("/v1/completions", json=body)
    except httpx.HTTPError as error:
        raise EngineError(
            f"engine {http.base_url}", f"no answer ({type(error).__name__})", "a running server"
        ) from error
    if answer.status_code != 200:
        raise EngineError(
            f"engine {http.base_url}",
            f"{model}: status {answer.status_code}: {answer.text[:200]}",
            "status 200",
        )
    found = answer.json()["choices"][0]["prompt_logprobs"]
    return [entry[str(token)]["logprob"] for entry, token in zip(found[1:], ids[1:], strict=True)]
