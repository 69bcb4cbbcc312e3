"""Layer: boundaries. Do engine and trainer mean the same distribution?

The engine samples a few answers of the base and of every adapter, all at once, so that base rows
and adapter rows share batches; the trainer's model (transformers + peft) then scores the same
tokens. A wrong kernel, a wrong adapter, another dtype or another base shows as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from agentkit.errors import EngineError

if TYPE_CHECKING:
    import torch

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.12}
"""Allowed mean |difference| of logprobs, nats, by the engine's dtype.

Measured on 700 tokens of text and code, SmolLM2-135M: any two bfloat16 computations (this engine,
stock vLLM, transformers, transformers under autocast) differ by 0.050-0.058 from each other and by
0.03-0.05 from float32; another adapter differs by several tenths.
"""
RATIO_RANGE = (0.8, 1.25)
PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Count: 1, 2, 3,",
)


@dataclass(frozen=True)
class Scored:
    """One answer: ``ids`` [T] prompt and answer, ``logprobs`` [T − 1] as the engine gave them."""

    model: str
    ids: list[int]
    prompt_len: int
    logprobs: list[float]


def check_agreement(
    engine_url: str,
    model_path: Path,
    adapter_dirs: Mapping[str, Path | None],
    tolerance: float | None = None,
    *,
    dtype: str = "bfloat16",
    autocast: bool = False,
    model: torch.nn.Module | None = None,
    current: str | None = None,
    prompts: Sequence[str] = PROMPTS,
    max_tokens: int = 12,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare engine and trainer; return the report, or raise EngineError beyond the tolerance.

    Args:
        model_path: base checkpoint; loaded only where ``model`` is None.
        adapter_dirs: served name -> peft folder; None for the base.
        tolerance: mean |difference| of logprobs, nats; None takes ``TOLERANCE[dtype]``.
        dtype: dtype in which a model is loaded here.
        autocast: score under bf16 autocast, as a trainer of float32 weights may.
        model: the trainer's model, already loaded (peft or plain). It is left as it was.
        current: served name of the weights that ``model`` holds now; they are not read again.

    Returns:
        ``{"tolerance", "models": {name: {"tokens", "mean", "max", "ratio_in_range"}}}``; means and
        maxima of |engine − trainer| over prompt and answer tokens, nats; the share of sampled
        tokens whose probability ratio trainer/engine lies in ``RATIO_RANGE``.
    """
    limit = TOLERANCE[dtype] if tolerance is None else tolerance
    with httpx.Client(base_url=engine_url, timeout=120.0, trust_env=False) as http:
        scored = _ask(http, list(adapter_dirs), prompts, max_tokens, seed)
    if model is None:
        model = load_trainer_model(model_path, dtype)
    report: dict[str, Any] = {"tolerance": limit, "models": {}}
    for name, folder in adapter_dirs.items():
        answers = [answer for answer in scored if answer.model == name]
        with wearing(model, folder, keep=name == current) as ready:
            theirs = [score(ready, answer.ids, autocast) for answer in answers]
        report["models"][name] = _compare(answers, theirs)
    _judge(engine_url, report)
    return report


def _judge(engine_url: str, report: dict[str, Any]) -> None:
    for name, figures in report["models"].items():
        if not figures["mean"] <= report["tolerance"]:  # NaN fails too
            raise EngineError(
                f"engine {engine_url}",
                f"{name}: logprobs differ from the trainer's by {figures['mean']:.3g} nat on"
                f" average (max {figures['max']:.3g})",
                f"at most {report['tolerance']:g}",
                "check dtype, base, adapter, and that vLLM loaded the plugin agentkit_cpu_lora",
            )


# ---------------------------------------------------------------- engine


def _ask(
    http: httpx.Client, names: Sequence[str], prompts: Sequence[str], max_tokens: int, seed: int
) -> list[Scored]:
    def tokens(text: str) -> list[int]:
        body = {"model": names[0], "prompt": text, "add_special_tokens": False}
        return list(_post(http, "/tokenize", body)["tokens"])

    def one(job: tuple[str, list[int]]) -> Scored:
        name, ids = job
        body = {
            "model": name,
            "prompt": ids,
            "max_tokens": max_tokens,
            "temperature": 1.0,
            "seed": seed,
            "logprobs": 0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
            "add_special_tokens": False,
        }
        choice = _post(http, "/v1/completions", body)["choices"][0]
        before = zip(choice["prompt_logprobs"][1:], ids[1:], strict=True)
        prompt = [entry[str(token)]["logprob"] for entry, token in before]
        answer = choice["logprobs"]["token_logprobs"]
        return Scored(name, ids + choice["token_ids"], len(ids), prompt + answer)

    jobs = [(name, ids) for ids in map(tokens, prompts) for name in names]
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, jobs))


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        answer = http.post(path, json=body)
    except httpx.HTTPError as error:
        raise EngineError(
            f"engine {http.base_url}", f"no answer ({type(error).__name__})", "a running server"
        ) from error
    if answer.status_code != 200:
        raise EngineError(
            f"engine {http.base_url}",
            f"{body['model']}: status {answer.status_code}: {answer.text[:200]}",
            "status 200",
        )
    return dict(answer.json())


# ---------------------------------------------------------------- trainer


def load_trainer_model(model_path: Path, dtype: str) -> torch.nn.Module:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_path, dtype=getattr(torch, dtype)).eval()


@contextmanager
def wearing(model: Any, folder: Path | None, keep: bool) -> Iterator[Any]:
    """The model with the adapter of ``folder`` on (None: the bare base), in eval mode."""
    training = model.training
    model.eval()
    try:
        if keep:
            yield model
        elif folder is None:
            with model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext():
                yield model
        elif hasattr(model, "peft_config"):
            active = model.active_adapter
            model.load_adapter(str(folder), adapter_name="agreement", is_trainable=False)
            try:
                model.set_adapter("agreement")
                yield model
            finally:
                model.set_adapter(active)
                model.delete_adapter("agreement")
        else:
            from peft import PeftModel

            wrapped = PeftModel.from_pretrained(model, str(folder)).eval()
            try:
                yield wrapped
            finally:
                wrapped.unload()
                vars(model).pop("peft_config", None)
    finally:
        model.train(training)


def score(model: Any, ids: Sequence[int], autocast: bool = False) -> list[float]:
    """Logprob of each token of ``ids`` [T] but the first, by the trainer's model: [T − 1], nats."""
    import torch

    device = next(model.parameters()).device
    row = torch.tensor([list(ids)], device=device)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        logits = model(input_ids=row).logits[0, :-1]
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    return logprobs.gather(1, row[0, 1:, None]).squeeze(1).tolist()


def _compare(answers: Sequence[Scored], theirs: Sequence[Sequence[float]]) -> dict[str, Any]:
    pairs = [
        (engine, trainer, i >= answer.prompt_len - 1)
        for answer, logprobs in zip(answers, theirs, strict=True)
        for i, (engine, trainer) in enumerate(zip(answer.logprobs, logprobs, strict=True))
    ]
    differences = [abs(engine - trainer) for engine, trainer, _ in pairs]
    ratios = [
        math.exp(min(trainer - engine, 50.0)) for engine, trainer, sampled in pairs if sampled
    ]
    low, high = RATIO_RANGE
    return {
        "tokens": len(differences),
        "mean": sum(differences) / len(differences),
        "max": max(differences),
        "ratio_in_range": sum(low <= r <= high for r in ratios) / max(1, len(ratios)),
    }
