"""Layer: boundaries. Whether vLLM can serve an adapter rightly, told from its files alone.

vLLM refuses some of these adapters with a trace deep in its log, and loads others with status 200
and serves them wrongly, so they are refused before they are sent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentkit.errors import ModelError
from agentkit.serving.engine_settings import LORA_TARGETS
from agentkit.serving.models import SMOLLM2, file_sha256, model_name

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def weights_sha256(folder: Path) -> str:
    """SHA-256 of an adapter's weights file."""
    return file_sha256(Path(folder) / WEIGHTS)


def read_config(folder: Path) -> dict[str, Any]:
    """The adapter's peft configuration. Raises ModelError where there is none."""
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(
                f"adapter {folder}", f"no {name}", "a peft folder", "save it by save_pretrained()"
            )
    try:
        config = json.loads((folder / CONFIG).read_text())
    except ValueError as error:
        raise ModelError(f"adapter {folder}", f"{CONFIG} is not JSON ({error})") from error
    return dict(config)


def check_adapter(
    folder: Path, model_path: Path | None = None, max_rank: int | None = None
) -> None:
    """Raise ModelError, with the reason, for an adapter that would not be served rightly.

    Args:
        folder: peft folder.
        model_path: base model's checkpoint; None leaves the checks against it out.
        max_rank: largest rank that the server takes.
    """
    folder = Path(folder)
    config = read_config(folder)
    reason = _feature(config) or _rank(config, max_rank)
    shapes = _shapes(folder)
    reason = reason or _tensors(shapes)
    if not reason and model_path is not None:
        reason = _base(config, Path(model_path)) or _fit(shapes, Path(model_path))
    if reason:
        got, expected, todo = reason
        raise ModelError(f"adapter {folder}", got, expected, todo)


Reason = tuple[str, str, str]


def _feature(config: dict[str, Any]) -> Reason | None:
    todo = "train it again without"
    if config.get("peft_type") != "LORA":
        return f"peft_type {config.get('peft_type')}", "LORA", "only LoRA can be served"
    if config.get("use_dora"):
        return "use_dora", "plain LoRA (vLLM cannot serve DoRA)", todo
    if config.get("bias", "none") != "none":
        return f"bias {config['bias']!r}", "bias 'none' (vLLM cannot serve it)", todo
    for name in (
        "modules_to_save",
        "target_parameters",
        "trainable_token_indices",
        "alora_invocation_tokens",
    ):
        if config.get(name):
            return f"{name} {config[name]}", "LoRA on linear layers only", todo
    return None


def _rank(config: dict[str, Any], max_rank: int | None) -> Reason | None:
    rank = max([config.get("r", 0), *(config.get("rank_pattern") or {}).values()])
    if rank < 1:
        return f"rank {rank}", "a rank of at least 1", "train it again"
    if max_rank is not None and rank > max_rank:
        return f"rank {rank}", f"at most {max_rank}", "raise max_lora_rank or train a smaller one"
    return None


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / WEIGHTS, framework="np") as f:
            return {key: tuple(f.get_slice(key).get_shape()) for key in f.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"adapter {folder}", f"{WEIGHTS} cannot be read ({error})") from error


def _module(key: str) -> str:
    return key.removeprefix("base_model.model.").split(".lora_")[0]


def _tensors(shapes: dict[str, tuple[int, ...]]) -> Reason | None:
    # LoRA tensors first: what else is there (a copy of the head) follows from a wrong target.
    for key in sorted(shapes, key=lambda key: ".lora_" not in key):
        module, shape = _module(key), shapes[key]
        if ".experts" in module or len(shape) != 2:
            return (
                f"{module} is a fused expert",
                "linear layers only",
                "leave the experts out: vLLM loads them and serves them wrongly",
            )
        if ".lora_" in key and module.rsplit(".", 1)[-1] not in LORA_TARGETS:
            return f"target {module}", f"one of {', '.join(LORA_TARGETS)}", "train without it"
        if ".lora_A." not in key and ".lora_B." not in key:
            return f"tensor {key}", "lora_A and lora_B of linear layers", "train it again without"
    return None if shapes else ("no tensors", "lora_A and lora_B of linear layers", "")


def _base(config: dict[str, Any], model_path: Path) -> Reason | None:
    named = str(config.get("base_model_name_or_path") or "")
    served = model_name(model_path)
    if not named:
        return None
    other = Path(named)
    theirs = model_name(other) if other.is_dir() else named
    # A checkpoint that was converted in another cache is known by its folder's name.
    if not other.is_dir() and other.name.startswith(f"{SMOLLM2}-"):
        theirs = SMOLLM2
    same_folder = other.is_dir() and other.resolve() == model_path.resolve()
    if same_folder or theirs.lower() == served.lower():
        return None
    return (
        f"trained on {theirs}",
        f"an adapter of {served}",
        "give the adapter's own base model, or train it on this one",
    )


def _fit(shapes: dict[str, tuple[int, ...]], model_path: Path) -> Reason | None:
    from safetensors import safe_open

    layers: dict[str, tuple[int, ...]] = {}
    for file in sorted(model_path.glob("*.safetensors")):
        with safe_open(file, framework="np") as f:
            layers |= {key: tuple(f.get_slice(key).get_shape()) for key in f.keys()}  # noqa: SIM118
    if not layers:  # an older checkpoint in torch's own format
        return None
    for key, shape in shapes.items():
        module = _module(key)
        layer = layers.get(f"{module}.weight")
        if layer is None:
            return f"layer {module}", f"a layer of {model_name(model_path)}", "wrong base model?"
        got, want = (shape[1], layer[1]) if ".lora_A." in key else (shape[0], layer[0])
        if got != want:
            return f"{module} is {got} wide", f"{want} as in the base", "wrong base model?"
    return None


def largest_b(folder: Path) -> float:
    """Largest |entry| of all B matrices; 0 for an adapter as peft starts it, which is the base."""
    from safetensors.torch import load_file

    tensors = load_file(Path(folder) / WEIGHTS)
    return max(float(t.abs().max()) for key, t in tensors.items() if ".lora_B." in key)
