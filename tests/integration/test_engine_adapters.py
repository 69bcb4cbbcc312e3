"""Adapter versions on a real server: published, held, retired, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentkit.errors import EngineError, ModelError
from agentkit.serving.adapters import AdapterStore
from agentkit.serving.agreement import load_trainer_model, score, wearing
from agentkit.serving.engine import Engine
from tests.integration.engine_fixtures import MAX_LORAS, MAX_RANK
from tests.integration.tiny_models import make_adapter, make_tiny_llama


@pytest.fixture
def store(tiny_engine: Engine, tiny_model: Path, tmp_path: Path) -> Iterator[AdapterStore]:
    made = AdapterStore(
        tiny_engine.url,
        tmp_path / "published",
        "t",
        model_path=tiny_model,
        max_loras=MAX_LORAS,
        max_rank=MAX_RANK,
        tolerance=1e-3,
    )
    yield made
    for version in made.versions.values():
        version.users = 0
    made.retire_all()


def test_version_answers_while_held_and_leaves_with_its_last_session(
    store: AdapterStore, tiny_engine: Engine, tiny_adapters: list[Path]
) -> None:
    name = store.publish(tiny_adapters[0], 1)
    store.acquire(name)
    store.acquire(name)
    assert store.retire(name) is False
    store.release(name)
    assert name in tiny_engine.served()
    store.release(name)
    assert name not in tiny_engine.served()
    with pytest.raises(ModelError, match="not served"):
        store.acquire(name)


def test_same_weights_same_name_other_weights_other_name_and_path(
    store: AdapterStore, tiny_engine: Engine, tiny_adapters: list[Path]
) -> None:
    first = store.publish(tiny_adapters[0], 1)
    assert store.publish(tiny_adapters[0], 1) == first
    second = store.publish(tiny_adapters[1], 1)  # a resumed trainer at the same step
    assert first != second
    served = tiny_engine.served()
    assert served[first]["root"] != served[second]["root"]
    assert not [p for p in store.folder.iterdir() if p.name.startswith(".")]


def test_full_server_is_a_clear_line_and_retiring_makes_room(
    store: AdapterStore, tiny_model: Path, tiny_adapters: list[Path], tmp_path: Path
) -> None:
    names = [store.publish(folder, i) for i, folder in enumerate(tiny_adapters)]
    extra = make_adapter(tiny_model, tmp_path / "extra", seed=9)
    with pytest.raises(EngineError, match=rf"holds {MAX_LORAS} adapters .*max_loras = {MAX_LORAS}"):
        store.publish(extra, 9)
    store.retire(names[0])
    assert store.publish(extra, 9) in store.versions


def test_what_is_served_is_compared_with_the_trainers_logprobs(
    store: AdapterStore, tiny_model: Path, tiny_adapters: list[Path], tiny_engine: Engine
) -> None:
    with wearing(load_trainer_model(tiny_model, "float32"), tiny_adapters[0], keep=False) as model:
        good = store.publish(tiny_adapters[0], 1, expected=lambda ids: score(model, ids))
        assert store.versions[good].check["from_trainer"] < 1e-4
        assert store.versions[good].check["from_base"] > 0.1
        with pytest.raises(EngineError, match="logprobs differ from the trainer's"):
            store.publish(tiny_adapters[1], 2, expected=lambda ids: score(model, ids))
    assert set(store.versions) == {good}
    assert set(tiny_engine.served()) == {"base", good}


def test_fresh_adapter_is_the_base(store: AdapterStore, tiny_model: Path, tmp_path: Path) -> None:
    zero = make_adapter(tiny_model, tmp_path / "zero", seed=3, scale=0.0)
    name = store.publish(zero, 0)
    assert store.versions[name].check["from_base"] < 1e-5


def test_foreign_and_oversized_adapters_never_reach_the_server(
    store: AdapterStore, tiny_model: Path, tiny_engine: Engine, tmp_path: Path
) -> None:
    other = make_tiny_llama(tmp_path / "other-llama", seed=5)
    with pytest.raises(ModelError, match="trained on other-llama; expected an adapter of tiny-"):
        store.publish(make_adapter(other, tmp_path / "foreign", seed=1), 1)
    with pytest.raises(ModelError, match=rf"rank 16; expected at most {MAX_RANK}"):
        store.publish(make_adapter(tiny_model, tmp_path / "large", seed=1, rank=16), 2)
    with pytest.raises(ModelError, match="DoRA"):
        store.publish(make_adapter(tiny_model, tmp_path / "dora", seed=1, use_dora=True), 3)
    with pytest.raises(ModelError, match="target lm_head"):
        folder = make_adapter(tiny_model, tmp_path / "head", seed=1, targets=["lm_head"])
        store.publish(folder, 4)
    assert set(tiny_engine.served()) == {"base"}
