"""A whole training run on a tiny model, without an engine, that kills itself at a given point.

``python -m tests.integration.training_child FOLDER [POINT COUNT]``: at the COUNT-th pass of POINT
the process sends itself SIGKILL. Sessions are sampled from the published adapter files.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

import agentkit.training.loop as loop_module
from agentkit.params import TrainParams, read_yaml
from agentkit.runs import Run
from agentkit.training.collect import StepCollector
from agentkit.training.loop import Paths, StepLoop, run_steps
from agentkit.training.lora import save_adapter
from agentkit.training.rollout_log import RolloutLog
from agentkit.types import Task
from tests.integration import tiny_policy as tiny

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4
passes: dict[str, int] = {}


def point(name: str) -> None:
    passes[name] = passes.get(name, 0) + 1
    if sys.argv[2:] == [name, str(passes[name])]:
        os.kill(os.getpid(), signal.SIGKILL)


class FilePublisher:
    """Versions as files that the sessions then load."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def publish(self, model: Any, version: int) -> str:
        point("before publish")
        name = f"v{version}-{len(list(self.folder.glob('*')))}"
        save_adapter(model, self.folder / name, base_name="tiny")
        point("after publish")
        return name

    def retire(self, name: str) -> None:
        point("retire")


def sample(publisher: FilePublisher, jobs: list[dict[str, Any]], on_result: Any) -> None:
    name = jobs[0]["policy"].model
    with torch.random.fork_rng():  # the sampler is another process in a real run
        model = PeftModel.from_pretrained(tiny.base_model(), str(publisher.folder / name)).eval()
    for job in jobs:
        rng = random.Random(job["policy"].seed)
        reward = 1.0 if job["step"] == 2 else rng.choice([0.0, 1.0])  # step 2 has no signal
        made = tiny.session(model, rng, f"s{job['policy'].seed}", reward, task=job["task"].task_id)
        made.record.attempt, made.record.step = job["attempt"], job["step"]
        made.record.adapter = job["adapter"]
        on_result(job, made)
        point("session")


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    values = read_yaml(ROOT / "params" / "demo" / "02_train.yaml") | {
        "run_dir": str(folder), "steps": STEPS, "tasks_per_step": 2, "sessions_per_task": 3,
        "micro_batch_rows": 2, "lora_rank": 4, "lora_alpha": 8, "learning_rate": 0.01,
        "train_dtype": "float32", "keep_every": 2,
    }  # fmt: skip
    params = TrainParams.from_mapping(values, "child")
    tasks = [Task(f"t{i}", "qa", "", {}, {}, {}, {}) for i in range(5)]
    for name in ("mark_complete", "complete_metrics"):
        original = getattr(loop_module, name)

        def wrapped(*args: Any, _name: str = name, _original: Any = original) -> None:
            point(f"before {_name}")
            _original(*args)
            point(f"after {_name}")

        setattr(loop_module, name, wrapped)
    with Run.open(params) as run:
        publisher = FilePublisher(run.path("published"))
        publisher.folder.mkdir(exist_ok=True)
        paths = Paths(run.folder)
        loop = StepLoop(params, paths, publisher, "tiny", log=run.log)
        collector = StepCollector(
            params, tasks, loop.current, lambda jobs, done: sample(publisher, jobs, done),
            RolloutLog(paths.rollouts), paths.sessions,
        )  # fmt: skip
        last = run_steps(
            params, tiny.lora_model(), tiny.tokenizer(), loop=loop, collector=collector
        )
        run.finish(outputs=[paths.metrics, paths.sessions, last])


if __name__ == "__main__":
    main()
