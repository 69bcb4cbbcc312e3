"""Layer: work. Build the warm-start adapter: ``python -m agentkit.training.warm_start_cli FILE``.

Needs the tasks of 01 in the run directory of the params file (``notebooks/pipeline.py PROFILE
--only 01_synthesise`` makes them) and the same data set.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agentkit.errors import KitError
from agentkit.params import WarmStartParams, read_yaml
from agentkit.runs import Run, run_root
from agentkit.tasks import read_tasks


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build the warm-start adapter.")
    parser.add_argument("params", help="params file of the stage, e.g. params/cpu/warm_start.yaml")
    parser.add_argument("--run", help="run directory instead of the file's")
    parser.add_argument("--dataset", default="seed", help="data set of stage 01 (default: seed)")
    parser.add_argument(
        "--install",
        type=Path,
        default=Path(__file__).resolve().parents[1] / "data" / "adapters",
        help="folder that gets the adapter (default: the package's data)",
    )
    options = parser.parse_args(arguments)
    try:
        values = read_yaml(options.params)
        if options.run:
            values["run_dir"] = options.run
        params = WarmStartParams.from_mapping(values, options.params)
        build(params, options.dataset, options.install)
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def build(params: WarmStartParams, dataset: str, install: Path) -> None:
    """Open the stage, run it, say what came out."""
    from agentkit.corpus import seed_folder
    from agentkit.stack import open_stack
    from agentkit.training.warm_start import warm_start
    from agentkit.trajectories import read_trajectories

    tasks = read_tasks(run_root(params) / "01_synthesise" / "tasks", "train")
    found, _ = read_trajectories(str(seed_folder()) if dataset == "seed" else dataset)
    with Run.open(params) as run, open_stack(params, run) as stack:
        manifest = warm_start(params, run, stack, tasks, found, install)
        run.finish(outputs=[run.path("warm_start.json"), install / params.name])
    best = next(m for m in manifest["measured"] if m["step"] == manifest["chosen_step"])
    print(
        f"{install / params.name}: step {best['step']}, {100 * best['pass_rate']:.0f}% of "
        f"{best['sessions']} tasks solved, {best['calls']:.2f} calls"
    )


if __name__ == "__main__":
    sys.exit(main())
