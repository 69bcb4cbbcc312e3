"""Layer: work. Stage 02: GRPO inside a real harness, one adapter version for each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkit.errors import ParamsError
from agentkit.params import GrpoParams
from agentkit.runs import Run, file_sha256, read_jsonl
from agentkit.seeds import derive_seed
from agentkit.serving.adapters import AdapterStore
from agentkit.serving.agreement import check_agreement
from agentkit.serving.engine import BASE
from agentkit.serving.models import model_name
from agentkit.sessions import run_sessions
from agentkit.stack import Stack, adapter_folder
from agentkit.training.collect import ServedPolicy, StepCollector
from agentkit.training.fresh import demonstrated_sources, fresh_tasks
from agentkit.training.loop import Paths, StepLoop, run_steps
from agentkit.training.lora import WEIGHTS, load_policy
from agentkit.training.publish import EnginePublisher
from agentkit.training.rollout_log import Rollout, RolloutLog
from agentkit.types import Task


@dataclass(frozen=True)
class TrainingSummary:
    """What a training run came to. ``adapter`` is the folder of the last version.

    Rewards, pass rates (in [0, 1]) and calls are means over the first and the last five steps.
    """

    adapter: str
    adapter_sha256: str
    steps: int
    skipped_steps: int
    sessions: int
    broken_sessions: int
    reward_first: float | None
    reward_last: float | None
    pass_rate_first: float | None
    pass_rate_last: float | None
    calls_first: float | None
    calls_last: float | None
    extending_share: float | None
    sampled_tokens: int
    loss_tokens: int
    ratio_in_band: float | None
    rollout_s: float
    train_s: float
    publish_s: float
    save_s: float


def train(params: GrpoParams, run: Run, stack: Stack, tasks: Sequence[Task]) -> TrainingSummary:
    """Train ``params.steps`` steps on ``tasks``; resumes where a killed run stopped.

    Tasks that the initial adapter was taught by demonstration are left out, unless fewer than a
    step's would remain; the manifest counts both.

    Writes ``metrics.jsonl`` (one line a step), ``sessions.jsonl`` (arm ``train``),
    ``rollouts.jsonl`` (exact tokens), ``adapters/v0000 …`` and ``checkpoints/``.

    Raises:
        ModelError: the initial adapter does not fit.
        EngineError: the engine died, or it disagrees with the trainer on log-probabilities.
        TrainingError: all sessions of a step broke, or the checkpoints are not the metrics'.
        ParamsError: ``trackio`` is asked for and not installed.
    """
    tracker = _tracker(params, run)
    paths = Paths(run.folder)
    base_name = model_name(stack.model_path)
    initial = adapter_folder(params.initial_adapter, run)
    given = len(tasks)
    tasks = fresh_tasks(tasks, demonstrated_sources(initial), params.tasks_per_step)
    model, tokenizer = load_policy(
        stack.model_path,
        initial,
        rank=params.lora_rank,
        alpha=params.lora_alpha,
        targets=params.lora_targets,
        seed=derive_seed(params.seed, "train", "lora"),
        dtype=params.dtype,
    )
    run.update_manifest(
        initial_adapter={
            "name": params.initial_adapter,
            "sha256": file_sha256(initial / WEIGHTS) if initial else None,
        },
        train_tasks={"given": given, "trained_on": len(tasks)},
    )
    run.log(f"{len(tasks)} of {given} training tasks are trained on")
    publisher = EnginePublisher(
        _store(params, run, stack), base_name, autocast=params.train_dtype == "bfloat16"
    )
    done = len(read_jsonl(paths.metrics))
    with _Bar(params, done) as bar:

        def finish_step(metrics: dict[str, Any]) -> None:
            bar.step(metrics)
            run.log(step_line(metrics, params.steps))
            run.update_manifest(steps={"expected": params.steps, "finished": metrics["step"] + 1})
            if tracker is not None:
                shown = {
                    k: v for k, v in metrics.items() if isinstance(v, int | float) and k != "step"
                }
                tracker.log(shown, step=metrics["step"])

        loop = StepLoop(
            params,
            paths,
            publisher,
            base_name,
            log=run.log,
            on_ready=lambda served, model: _check_engine(run, stack, publisher, served, model),
            on_metrics=finish_step,
        )
        collector = StepCollector(
            params,
            tasks,
            loop.current,
            _session_runner(params, stack),
            RolloutLog(paths.rollouts),
            paths.sessions,
            on_session=bar.session,
            check_engine=stack.engine.check,
        )
        try:
            adapter = run_steps(params, model, tokenizer, loop=loop, collector=collector)
        finally:
            if tracker is not None:
                tracker.finish()
            if loop.served is not None and stack.engine.alive():
                publisher.retire(loop.served.name)
    return summarise(read_jsonl(paths.metrics), adapter)


def _store(params: GrpoParams, run: Run, stack: Stack) -> AdapterStore:
    return AdapterStore(
        stack.engine.url,
        run.path("served"),
        params.harness,
        model_path=stack.model_path,
        max_loras=params.max_loras,
        max_rank=params.max_lora_rank,
        tolerance=params.agreement_tolerance,
    )


def _session_runner(
    params: GrpoParams, stack: Stack
) -> Callable[[list[dict[str, Any]], Callable[[dict[str, Any], Any], None]], None]:
    def run_jobs(
        jobs: list[dict[str, Any]], on_result: Callable[[dict[str, Any], Any], None]
    ) -> None:
        whole = [stack.job(**job) for job in jobs]
        for _ in run_sessions(whole, concurrency=params.concurrency, on_result=on_result):
            pass

    return run_jobs


def _check_engine(
    run: Run, stack: Stack, publisher: EnginePublisher, served: ServedPolicy, model: Any
) -> None:
    """Stop before the first session where engine and trainer mean different distributions."""
    started = time.monotonic()
    report = check_agreement(
        stack.engine.url,
        stack.model_path,
        {BASE: None, served.name: publisher.folder_of(served.name)},
        publisher.store.tolerance,
        autocast=publisher.autocast,
        model=model,
        current=served.name,
    )
    run.update_manifest(agreement=report)
    run.log(f"engine and trainer agree ({time.monotonic() - started:.1f} s): {report}")


def _tracker(params: GrpoParams, run: Run) -> Any:
    if not params.trackio:
        return None
    try:
        import trackio
    except ImportError as error:
        raise ParamsError(
            "trackio", f"true, but {error}", "the package trackio", "pip install trackio, or false"
        ) from error
    trackio.init(
        project="agentkit",
        name=f"{run.root.name}-{run.folder.name}",
        config=params.model_dump(mode="json"),
        resume="allow",
    )
    return trackio


class _Bar:
    """A bar over all sessions of the run, with the last step's figures beside it."""

    def __init__(self, params: GrpoParams, done: int) -> None:
        from tqdm.auto import tqdm

        self.steps, self.done = params.steps, done
        per_step = params.tasks_per_step * params.sessions_per_task
        self.bar = tqdm(
            total=params.steps * per_step, initial=done * per_step, unit="session", smoothing=0.05
        )
        self.solved = self.graded = 0

    def __enter__(self) -> _Bar:
        self.bar.set_description(f"step {min(self.done + 1, self.steps)}/{self.steps}")
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.close()

    def session(self, rollout: Rollout) -> None:
        if rollout.record.correct is not None:
            self.solved += int(rollout.record.correct)
            self.graded += 1
        self.bar.update(1)

    def step(self, metrics: dict[str, Any]) -> None:
        self.done += 1
        self.bar.set_description(f"step {min(self.done + 1, self.steps)}/{self.steps}")
        self.bar.set_postfix_str(_figures(metrics))


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _figures(metrics: dict[str, Any]) -> str:
    return (
        f"reward {_number(metrics['reward'])} pass {_number(metrics['pass_rate'])} "
        f"calls {_number(metrics['calls'])} tokens {metrics['loss_tokens']} | "
        f"rollout {metrics['rollout_s']:.0f} s, train {metrics['train_s']:.0f} s, "
        f"publish {metrics['publish_s']:.1f} s"
    )


def step_line(metrics: dict[str, Any], steps: int) -> str:
    """One step as a line of the log."""
    line = f"step {metrics['step'] + 1}/{steps}: {_figures(metrics)}; broken {metrics['broken']}"
    if metrics["skipped"]:
        return line + "; no update"
    return line + (
        f"; ratio in [0.8, 1.25] {100 * metrics['ratio_in_band']:.1f}%, "
        f"clipped {100 * metrics['clip_fraction']:.1f}%, entropy {metrics['entropy']:.3f}, "
        f"gradient norm {metrics['grad_norm']:.3f}"
    )


def summarise(metrics: Sequence[dict[str, Any]], adapter: Path) -> TrainingSummary:
    """The summary of a finished run from its metrics."""

    def mean(name: str, lines: Sequence[dict[str, Any]]) -> float | None:
        held = [line[name] for line in lines if line.get(name) is not None]
        return sum(held) / len(held) if held else None

    def total(name: str) -> Any:
        return sum(line[name] for line in metrics)

    first, last = metrics[:5], metrics[-5:]
    later = total("later_turns")
    return TrainingSummary(
        adapter=str(adapter),
        adapter_sha256=file_sha256(adapter / WEIGHTS),
        steps=len(metrics),
        skipped_steps=total("skipped"),
        sessions=total("sessions"),
        broken_sessions=total("broken"),
        reward_first=mean("reward", first),
        reward_last=mean("reward", last),
        pass_rate_first=mean("pass_rate", first),
        pass_rate_last=mean("pass_rate", last),
        calls_first=mean("calls", first),
        calls_last=mean("calls", last),
        extending_share=total("extending_turns") / later if later else None,
        sampled_tokens=total("sampled_tokens"),
        loss_tokens=total("loss_tokens"),
        ratio_in_band=mean("ratio_in_band", metrics),
        rollout_s=total("rollout_s"),
        train_s=total("train_s"),
        publish_s=total("publish_s"),
        save_s=total("save_s"),
    )
