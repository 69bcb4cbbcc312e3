"""Model folders: what is refused, and by which line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentkit.errors import ModelError
from agentkit.serving import models


def complete(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_complete_folder_resolves_to_itself(tmp_path: Path) -> None:
    assert models.resolve_model(str(complete(tmp_path / "m"))) == (tmp_path / "m").resolve()


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer"),
        ("tokenizer_config.json", "no chat template"),
        ("model.safetensors", "no model.safetensors"),
    ],
)
def test_incomplete_folder_is_refused_in_one_line(tmp_path: Path, missing: str, line: str) -> None:
    folder = complete(tmp_path / "m")
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=line) as caught:
        models.resolve_model(str(folder))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = complete(tmp_path / "m")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").write_bytes(b"1")
    with pytest.raises(ModelError, match=r"no model-2\.safetensors"):
        models.check_model(folder)


def test_broken_json_is_refused(tmp_path: Path) -> None:
    folder = complete(tmp_path / "m")
    (folder / "config.json").write_text("{torn")
    with pytest.raises(ModelError, match="broken JSON"):
        models.check_model(folder)


@pytest.mark.parametrize("name", ["no-such-model", "/nowhere/at/all", "./x", "a/b/c"])
def test_unknown_name_is_refused_without_the_network(name: str) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        models.resolve_model(name)


def test_hashes_follow_the_content(tmp_path: Path) -> None:
    folder = complete(tmp_path / "m")
    first = models.model_hashes(folder)
    assert models.model_hashes(folder) == first
    (folder / "model.safetensors").write_bytes(b"weightz")
    os.utime(folder / "model.safetensors", ns=(1, 1))
    second = models.model_hashes(folder)
    assert second["weights"] != first["weights"]
    assert {k for k in first if first[k] != second[k]} == {"weights"}


def test_hub_snapshots_go_by_their_id(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    assert models.model_name(snapshot) == "owner/name"
    assert models.model_name(tmp_path) == tmp_path.name


def test_a_changed_checkpoint_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"good")
    sha = models.file_sha256(tmp_path / "model.safetensors")
    manifest = {"name": models.SMOLLM2, "files": {"model.safetensors": sha}}
    (tmp_path / models.MANIFEST).write_text(json.dumps(manifest))
    models._verify(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"torn!")
    with pytest.raises(ModelError, match=r"model\.safetensors is not what was converted"):
        models._verify(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no such file"):
        models._verify(tmp_path)
