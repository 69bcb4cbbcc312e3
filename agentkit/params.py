"""Layer: words. One strict model for each stage's parameters; YAML, notebook and code agree.

Fields are flat scalars and short lists, so that papermill can pass each one. Unknown keys, missing
keys and values of another type are refused with one line. ``params/<profile>/<stage>.yaml`` is
complete: it names every field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkit.errors import ParamsError
from agentkit.types import Baseline

Positive = Field(gt=0)
NonNegative = Field(ge=0)


class StageParams(BaseModel):
    """What every stage has. ``run_dir`` and ``NOT_IN_DIGEST`` fields may change on resume."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    stage: ClassVar[str] = ""
    NOT_IN_DIGEST: ClassVar[frozenset[str]] = frozenset(
        {"run_dir", "engine_url", "concurrency", "trackio", "threads"}
    )

    run_dir: str
    seed: int = NonNegative

    def digest(self) -> str:
        """sha256 of the parameters that decide the results."""
        data = {
            k: v for k, v in self.model_dump(mode="json").items() if k not in self.NOT_IN_DIGEST
        }
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], where: str) -> Self:
        """Validate ``data``; raises ParamsError with one line for the first fault."""
        unknown = sorted(set(data) - set(cls.model_fields))
        if unknown:
            near = get_close_matches(unknown[0], cls.model_fields, 1)
            raise ParamsError(
                where,
                f"unknown key {unknown[0]!r}",
                f"one of the {cls.__name__} fields",
                f"did you mean {near[0]!r}?" if near else "remove it",
            )
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise ParamsError(where, *_first_fault(error)) from None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a params file."""
        return cls.from_mapping(read_yaml(path), str(path))

    @classmethod
    def from_namespace(cls, namespace: Mapping[str, Any], where: str = "parameters cell") -> Self:
        """Pick the stage's fields out of a notebook's ``globals()``.

        Papermill injects its values in a cell of its own after the defaults; a misspelt key would
        silently become another global, which is why the runner validates the YAML as well.
        """
        return cls.from_mapping(
            {k: namespace[k] for k in cls.model_fields if k in namespace}, where
        )


def _first_fault(error: ValidationError) -> tuple[str, str, str]:
    fault = error.errors()[0]
    name = ".".join(map(str, fault["loc"])) or "parameters"
    if fault["type"] == "missing":
        return f"{name} is missing", "every field of the stage", f"add {name}"
    value = fault.get("input")
    hint = "see the params file of the demo profile"
    if isinstance(value, str):
        try:
            float(value)
            # YAML 1.1 reads 1e-5 as text, since its floats need a dot: 1.0e-5.
            hint = f"write {float(value)!r} with a decimal point and without quotes"
            hint = (
                "write it as a number: 1.0e-5, not 1e-5 and not quoted"
                if "e" in value.lower()
                else hint
            )
        except ValueError:
            pass
    return (
        f"{name} = {value!r} ({type(value).__name__})",
        fault["msg"].removeprefix("Input should be "),
        hint,
    )


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A flat mapping from a YAML file; raises ParamsError with file and line."""
    try:
        data = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ParamsError(
            str(path), f"{error.strerror}", "a params file", "see params/demo/"
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ParamsError(where, "not YAML", "key: value lines", "see params/demo/") from error
    if not isinstance(data, dict):
        raise ParamsError(
            str(path), f"a {type(data).__name__}", "key: value lines", "see params/demo/"
        )
    return data


class SandboxParams(StageParams):
    """Limits of every sandbox of the stage."""

    sandbox: Literal["auto", "bubblewrap", "docker"]
    memory_mb: int = Positive
    disk_mb: int = Positive
    processes: int = Positive
    concurrency: int = Positive


class SynthesiseParams(SandboxParams):
    """01: public trajectories to verified tasks.

    ``dataset``: ``seed`` (the shipped corpus), a file or folder of traces, or a Hub data set id.
    ``near_duplicate_threshold``: Jaccard similarity from which two tasks count as duplicates.
    ``heldout_share``: a source is a held-out candidate where
    ``derive_seed(seed, "split", source_id) / 2**31 < heldout_share``, a function of the source
    alone: a smaller profile's held-out tasks are never a larger profile's training tasks, and the
    shipped warm start has seen none of either. The candidates with the smallest value are kept.
    """

    stage: ClassVar[str] = "01_synthesise"
    dataset: str
    max_traces: int = Positive
    kinds: list[Literal["repair", "build", "extend", "qa"]]
    train_tasks: int = Positive
    heldout_tasks: int = Positive
    heldout_share: float = Field(gt=0, lt=1)
    near_duplicate_threshold: float = Field(gt=0, le=1)
    gate_repeats: int = Field(ge=2)
    verifier_timeout_s: float = Positive


class EngineParams(SandboxParams):
    """The inference engine. ``engine_url`` empty: start one; else attach to it."""

    model: str
    engine_url: str
    dtype: Literal["bfloat16", "float16", "float32"]
    max_model_len: int = Positive
    max_loras: int = Positive
    max_lora_rank: int = Positive
    max_num_seqs: int = Positive
    kv_cache_gib: int = Positive
    threads: int = Positive
    tool_parser: str
    agreement_tolerance: float = Positive


class SessionParams(EngineParams):
    """One agent session. ``harness_tools`` empty and ``system_prompt`` empty: the harness's own."""

    harness: str
    harness_tools: list[str]
    system_prompt: str
    temperature: float = NonNegative
    top_p: float = Field(gt=0, le=1)
    max_tokens: int = Positive
    max_turns: int = Positive
    session_timeout_s: float = Positive
    reward_coefficient: float = NonNegative


class TourParams(SessionParams):
    """00: one session, step by step. ``adapter``: ``warm-start``, ``none`` or a folder."""

    stage: ClassVar[str] = "00_tour"
    adapter: str
    task_kind: Literal["repair", "build", "extend", "qa"]


class WarmStartParams(SessionParams):
    """Supervised warm start on the training split's own trajectories.

    ``copies``: how often each demonstration is used, from the second on with its nouns exchanged.
    """

    stage: ClassVar[str] = "warm_start"
    # The window only chooses among checkpoints that are there and measured.
    NOT_IN_DIGEST = StageParams.NOT_IN_DIGEST | {"target_low", "target_high"}
    name: str
    demonstrations: int = Positive
    copies: int = Positive
    sft_steps: int = Positive
    sft_batch: int = Positive
    learning_rate: float = Positive
    lora_rank: int = Positive
    lora_alpha: int = Positive
    lora_targets: str
    save_every: int = Positive
    dev_tasks: int = Positive
    target_low: float = Field(ge=0, le=1)
    target_high: float = Field(ge=0, le=1)
    train_dtype: Literal["bfloat16", "float32"]


class GrpoParams(SessionParams):
    """GRPO on recorded token rows. ``initial_adapter``: ``warm-start``, ``none`` or a folder."""

    initial_adapter: str
    steps: int = Positive
    tasks_per_step: int = Positive
    sessions_per_task: int = Field(ge=2)
    learning_rate: float = Positive
    lora_rank: int = Positive
    lora_alpha: int = Positive
    lora_targets: str
    clip_low: float = Positive
    clip_high: float = Positive
    baseline: Baseline
    scale_by_std: bool
    max_grad_norm: float = Positive
    micro_batch_rows: int = Positive
    max_row_tokens: int = Positive
    train_dtype: Literal["bfloat16", "float32"]
    gradient_checkpointing: bool
    keep_every: int = Positive
    trackio: bool


class TrainParams(GrpoParams):
    """02: train the adapter for one harness."""

    stage: ClassVar[str] = "02_train"


class EvaluateParams(SessionParams):
    """03: every held-out task under both arms with paired seeds.

    ``arms``: ``name=adapter`` entries; an adapter is ``none``, ``warm-start``, ``trained`` (the
    last version of 02 in this run) or a folder.
    """

    stage: ClassVar[str] = "03_evaluate"
    arms: list[str]
    heldout_tasks: int = Positive
    attempts: int = Positive
    broken_retries: int = NonNegative
    keep_transcripts: bool


class AblateParams(GrpoParams):
    """04: the same train and evaluate for each reward coefficient."""

    stage: ClassVar[str] = "04_ablate"
    coefficients: list[float]
    heldout_tasks: int = Positive
    attempts: int = Positive
    broken_retries: int = NonNegative


class AnalyseParams(StageParams):
    """05: intervals, figures and report from the records of 02, 03 and 04.

    ``primary_harness`` and the two arms name the primary cell before the run.
    """

    stage: ClassVar[str] = "05_analyse"
    primary_harness: str
    baseline_arm: str
    treatment_arm: str
    resamples: int = Positive
    confidence: float = Field(gt=0, lt=1)
    equivalence_margin: float = Field(gt=0, lt=1)
    usd_per_hour: float = NonNegative


STAGES: dict[str, type[StageParams]] = {
    model.stage: model
    for model in (
        TourParams,
        SynthesiseParams,
        WarmStartParams,
        TrainParams,
        EvaluateParams,
        AblateParams,
        AnalyseParams,
    )
}
"""Stage folder name -> parameter model; also the name of ``params/<profile>/<name>.yaml``."""
