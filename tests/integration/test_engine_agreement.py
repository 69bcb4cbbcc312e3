"""Engine against transformers + peft: base and adapters mixed in one batch, all slots full."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkit.errors import EngineError
from agentkit.serving.adapters import AdapterStore
from agentkit.serving.agreement import check_agreement
from agentkit.serving.engine import Engine
from tests.integration.engine_fixtures import MAX_LORAS, MAX_RANK

TIGHT = 1e-4  # nats, float32 on both sides; another adapter's answer differs by about 1


@pytest.fixture(scope="module")
def served(
    tiny_engine: Engine,
    tiny_model: Path,
    tiny_adapters: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path | None]:
    store = AdapterStore(
        tiny_engine.url,
        tmp_path_factory.mktemp("published"),
        "agreement",
        model_path=tiny_model,
        max_loras=MAX_LORAS,
        max_rank=MAX_RANK,
    )
    names = [store.publish(folder, i) for i, folder in enumerate(tiny_adapters)]
    yield {"base": None} | dict(zip(names, tiny_adapters, strict=True))
    store.retire_all()


def test_mixed_batch_matches_transformers_with_all_slots_full(
    tiny_engine: Engine, tiny_model: Path, served: dict[str, Path | None]
) -> None:
    report = check_agreement(
        tiny_engine.url, tiny_model, served, TIGHT, dtype="float32", max_tokens=24
    )
    assert set(report["models"]) == set(served)
    for figures in report["models"].values():
        assert figures["mean"] < TIGHT
        assert figures["ratio_in_range"] == 1.0


def test_swapped_adapters_are_noticed(
    tiny_engine: Engine, tiny_model: Path, served: dict[str, Path | None]
) -> None:
    first, second = [name for name in served if name != "base"][:2]
    swapped = {first: served[second], second: served[first]}
    with pytest.raises(EngineError, match=r"logprobs differ from the trainer's by"):
        check_agreement(tiny_engine.url, tiny_model, swapped, TIGHT, dtype="float32")


def test_loaded_model_is_used_and_left_as_it_was(
    tiny_engine: Engine, tiny_model: Path, served: dict[str, Path | None]
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    name = next(name for name in served if name != "base")
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain, str(served[name]), is_trainable=True).train()
    before = {n: (p.requires_grad, p.detach().clone()) for n, p in model.named_parameters()}
    check_agreement(
        tiny_engine.url,
        Path("not read"),
        served,
        TIGHT,
        dtype="float32",
        model=model,
        current=name,
    )
    after = dict(model.named_parameters())
    assert model.training
    assert after.keys() == before.keys()
    for n, (grad, value) in before.items():
        assert after[n].requires_grad == grad, n
        assert torch.equal(after[n], value), n
