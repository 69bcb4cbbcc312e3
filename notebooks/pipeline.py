"""Run the notebooks of a profile in order by papermill: the only place that knows the order.

``python notebooks/pipeline.py demo`` reads ``params/demo/*.yaml``, executes each notebook into
``<run_dir>/notebooks/`` and renders the last one as ``<run_dir>/report.html``. A stage that an
earlier run finished is quick: it finds its records and goes on.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from agentkit.errors import KitError, ParamsError  # noqa: E402
from agentkit.params import STAGES, read_yaml  # noqa: E402

NOTEBOOKS = {
    "00_tour": "00_tour",
    "01_synthesise": "01_synthesise_environments",
    "02_train": "02_train_adapters",
    "03_evaluate": "03_evaluate_sessions",
    "04_ablate": "04_ablate_reward",
    "05_analyse": "05_analyse_intervals",
}
"""Stage -> notebook."""

ORDER = ("01_synthesise", "00_tour", "02_train", "03_evaluate", "04_ablate", "05_analyse")
"""The tour is the first to read; it needs a task of 01."""


def shown(path: Path) -> Path:
    """A path as a reader of the output wants it: relative where it lies below the project."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def load(profile: str, stage: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """A stage's parameters, validated before any notebook starts."""
    path = ROOT / "params" / profile / f"{stage}.yaml"
    model = STAGES[stage]
    values = read_yaml(path)
    values.update({k: v for k, v in overrides.items() if k in model.model_fields})
    return model.from_mapping(values, str(path.relative_to(ROOT))).model_dump(mode="json")


def execute(stage: str, values: dict[str, Any]) -> Path:
    """Execute one notebook; raises KitError with the cell's own line where it fails."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    # Papermill guesses a notebook's parameters by patterns and warns where a value holds a "=";
    # the parameters were checked against the stage's model, and the cells by a test.
    logging.getLogger("papermill").setLevel(logging.ERROR)
    source = ROOT / "notebooks" / f"{NOTEBOOKS[stage]}.ipynb"
    target = ROOT / values["run_dir"] / "notebooks" / source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    print(f"[{stage}] {source.name} …", flush=True)
    try:
        # Unix sockets keep what a kernel is told from other users of the machine. Their paths may
        # have 107 bytes at most: below a home directory they could be longer.
        with tempfile.TemporaryDirectory(prefix="agentkit-") as sockets:
            kernel = {"transport": "ipc", "ip": f"{sockets}/kernel"}
            papermill.execute_notebook(
                str(source),
                str(target),
                parameters=values,
                cwd=str(ROOT),
                kernel_name="python3",
                progress_bar=sys.stdout.isatty(),
                log_output=False,
                request_save_on_cell_execute=True,
                config=Config(KernelManager=kernel),
            )
    except PapermillExecutionError as error:
        raise KitError(
            f"{source.name}, cell {error.exec_count}",
            f"{error.ename}: {error.evalue}",
            "",
            f"the executed notebook is {shown(target)}",
        ) from None
    except DeadKernelError:
        raise KitError(
            source.name,
            "its kernel died (killed, or out of memory)",
            "",
            "run the same command again: finished work is kept",
        ) from None
    print(f"[{stage}] done in {time.monotonic() - started:.0f} s", flush=True)
    return target


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """``key=value`` with YAML values; a key that no stage has is refused."""
    import yaml

    known = {name for model in STAGES.values() for name in model.model_fields}
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or key not in known:
            raise ParamsError(f"--set {pair}", f"unknown key {key!r}", "key=value of a stage")
        out[key] = yaml.safe_load(value)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", help="folder below params/: demo, cpu or your own")
    parser.add_argument("--run", help="run directory instead of the profile's")
    parser.add_argument("--only", help="comma-separated stages, e.g. 03_evaluate,05_analyse")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a parameter in every stage that has it",
    )
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    try:
        overrides = parse_overrides(options.set)
        if options.run:
            overrides["run_dir"] = options.run
        stages = options.only.split(",") if options.only else list(ORDER)
        for stage in stages:
            if stage not in NOTEBOOKS:
                raise ParamsError("--only", f"unknown stage {stage!r}", ", ".join(NOTEBOOKS))
        plan = {stage: load(options.profile, stage, overrides) for stage in stages}
        started = time.monotonic()
        for stage, values in plan.items():
            executed = execute(stage, values)
            if stage == "05_analyse":
                from agentkit.report import render_report

                page = render_report(executed, ROOT / values["run_dir"] / "report.html")
                print(f"report: {shown(page)}")
        print(f"all stages done in {(time.monotonic() - started) / 60:.1f} min")
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to resume", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
