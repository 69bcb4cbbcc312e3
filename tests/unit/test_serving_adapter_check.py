"""Adapters that vLLM would refuse or serve wrongly are refused beforehand, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from agentkit.errors import ModelError
from agentkit.serving.adapter_check import check_adapter

RANK = 4
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def base(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    weights = {
        "model.layers.0.self_attn.q_proj.weight": np.zeros((6, 8), np.float32),
        "model.embed_tokens.weight": np.zeros((10, 8), np.float32),
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def adapter(folder: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": RANK, "bias": "none", "base_model_name_or_path": "base"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    if tensors is None:
        tensors = {f"{Q}.lora_A.weight": (RANK, 8), f"{Q}.lora_B.weight": (6, RANK)}
    arrays = {key: np.ones(shape, np.float32) for key, shape in tensors.items()}
    save_file(arrays, folder / "adapter_model.safetensors")
    return folder


def test_fitting_adapter_passes(tmp_path: Path) -> None:
    check_adapter(adapter(tmp_path / "a"), base(tmp_path / "base"), RANK)


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"r": 8}, r"rank 8; expected at most 4"),
        ({"rank_pattern": {"q_proj": 64}}, r"rank 64; expected at most 4"),
        ({"r": 0}, "rank 0"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"peft_type": "IA3"}, "peft_type IA3"),
        ({"base_model_name_or_path": "owner/other"}, "trained on owner/other; expected an adapter"),
    ],
)
def test_unservable_settings_are_named(tmp_path: Path, config: dict[str, Any], line: str) -> None:
    folder = adapter(tmp_path / "a", **config)
    with pytest.raises(ModelError, match=line) as caught:
        check_adapter(folder, base(tmp_path / "base"), RANK)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "line"),
    [
        ({f"{Q}.lora_A.weight": (RANK, 16)}, "q_proj is 16 wide; expected 8"),
        ({f"{Q}.lora_B.weight": (12, RANK)}, "q_proj is 12 wide; expected 6"),
        ({"base_model.model.lm_head.lora_A.weight": (RANK, 8)}, "target lm_head"),
        ({"base_model.model.model.embed_tokens.lora_A.weight": (RANK, 8)}, "target model.embed"),
        ({"base_model.model.model.layers.0.mlp.experts.lora_A.weight": (RANK, 8)}, "fused expert"),
        ({f"{Q}.lora_magnitude_vector": (6, 1)}, "tensor base_model"),
        ({Q.replace("layers.0", "layers.7") + ".lora_A.weight": (RANK, 8)}, "layers.7"),
        ({}, "no tensors"),
    ],
)
def test_unservable_tensors_are_named(tmp_path: Path, tensors: dict[str, Any], line: str) -> None:
    with pytest.raises(ModelError, match=line):
        check_adapter(adapter(tmp_path / "a", tensors), base(tmp_path / "base"), RANK)


def test_base_is_known_by_folder_and_by_manifest(tmp_path: Path) -> None:
    model = base(tmp_path / "some-folder")
    by_path = adapter(tmp_path / "a", base_model_name_or_path=str(model))
    check_adapter(by_path, model)
    (model / "agentkit_manifest.json").write_text('{"name": "smollm2-135m"}')
    for i, name in enumerate(["smollm2-135m", "/other/home/models/smollm2-135m-0123456789"]):
        check_adapter(adapter(tmp_path / f"b{i}", base_model_name_or_path=name), model)


def test_missing_and_torn_files(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot be read"):
        check_adapter(folder)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        check_adapter(folder)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(ModelError, match=r"no adapter_config\.json"):
        check_adapter(folder)
