"""Layer: faces. Recompute a shipped result from its records, without a model, and compare digits.

``python -m agentkit.reproduce docs/results/cpu-pi`` reads ``sessions.jsonl`` and ``summary.json``,
analyses the records again with the parameters that the summary names, prints the interval, and
exits with 1 where a single digit differs. ``--figures DIR`` draws the figures as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentkit.analysis import Analysis, analyse_records, canonical_json
from agentkit.errors import KitError, RunError
from agentkit.params import AnalyseParams
from agentkit.runs import read_jsonl


def recompute(folder: Path) -> tuple[Analysis, dict[str, Any]]:
    """Return (fresh analysis of the shipped records, shipped summary).

    Raises RunError where a file is missing or is not what it should be.
    """
    summary_path = folder / "summary.json"
    try:
        shipped = json.loads(summary_path.read_text())
        chosen = shipped["analysis"]
    except OSError as error:
        raise RunError(
            str(summary_path), f"{error.strerror}", "a shipped summary", "see docs/results/"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(str(summary_path), f"unreadable ({error!r})", "a shipped summary") from error
    records = read_jsonl(folder / "sessions.jsonl")
    if not records:
        raise RunError(str(folder / "sessions.jsonl"), "no records", "the shipped sessions")
    params = AnalyseParams.from_mapping({**chosen, "run_dir": str(folder)}, str(summary_path))
    return analyse_records(records, params, read_jsonl(folder / "metrics.jsonl")), shipped


def differences(shipped: Any, fresh: Any, where: str = "") -> Iterator[str]:
    """Lines ``path: shipped x, recomputed y`` for every leaf that differs."""
    if isinstance(shipped, dict) and isinstance(fresh, dict):
        for key in sorted(shipped.keys() | fresh.keys()):
            absent = "(absent)"
            yield from differences(
                shipped.get(key, absent), fresh.get(key, absent), f"{where}.{key}".lstrip(".")
            )
    elif isinstance(shipped, list) and isinstance(fresh, list) and len(shipped) == len(fresh):
        for index, (left, right) in enumerate(zip(shipped, fresh, strict=True)):
            yield from differences(left, right, f"{where}[{index}]")
    elif shipped != fresh or type(shipped) is not type(fresh):
        yield f"{where}: shipped {shipped!r}, recomputed {fresh!r}"


def draw(analysis: Analysis, folder: Path) -> list[Path]:
    """Write every figure of notebook 05 into ``folder``."""
    from agentkit import plots

    figures = {
        "forest": plots.forest(analysis.cells),
        "mosaic": plots.mosaic(analysis.primary),
        "calls": plots.calls_histogram(analysis.records),
    }
    if analysis.training_metrics:
        figures["training_curve"] = plots.training_curve(analysis.training_metrics)
    return [path for name, plot in figures.items() for path in plots.write(plot, folder, name)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="+", help="e.g. docs/results/cpu-pi")
    parser.add_argument("--figures", type=Path, help="draw the figures into this folder")
    options = parser.parse_args(arguments)
    status = 0
    for folder in options.folder:
        started = time.monotonic()
        try:
            analysis, shipped = recompute(folder)
            if options.figures:
                draw(analysis, options.figures / folder.name)
        except KitError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{folder}: {analysis.headline}")
        found = list(differences(shipped, json.loads(canonical_json(analysis.summary))))
        for line in found[:10]:
            print(f"  differs at {line}")
        if len(found) > 10:
            print(f"  and at {len(found) - 10} more places")
        verdict = "every digit as shipped" if not found else f"{len(found)} values differ"
        print(f"{folder}: {verdict} ({time.monotonic() - started:.1f} s)")
        status = max(status, int(bool(found)))
    return status


if __name__ == "__main__":
    sys.exit(main())
