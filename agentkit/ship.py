"""Layer: faces. Copy what a reader needs of a finished run into ``docs/results/<name>``.

``python -m agentkit.ship runs/cpu docs/results/cpu-pi`` takes the session records, the training
curve, the summary, the figures, the report and all stages' manifests, after ``reproduce`` has
recomputed the summary from the records. A file that names a folder of this machine is refused.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkit.analysis import canonical_json
from agentkit.errors import KitError, RunError
from agentkit.reproduce import differences, recompute

FILES = {
    "sessions.jsonl": "03_evaluate/sessions.jsonl",
    "metrics.jsonl": "02_train/metrics.jsonl",
    "summary.json": "05_analyse/summary.json",
    "report.html": "report.html",
}
"""Name below the results folder -> path below the run directory."""
FIGURES = "05_analyse/figures"
TEXT = (".json", ".jsonl", ".html", ".svg", ".csv")


def manifests(run: Path) -> dict[str, Any]:
    """Stage -> its manifest, for every stage of the run that is finished.

    Raises RunError where a stage stopped before its end.
    """
    found = {}
    for path in sorted(run.glob("*/manifest.json")):
        data = json.loads(path.read_text())
        if data.get("status") != "finished":
            raise RunError(
                str(path), f"status {data.get('status')!r}", "'finished'", "run the stage again"
            )
        found[path.parent.name] = data
    return found


def private_names(folder: Path, names: Sequence[str]) -> list[str]:
    """``file: name`` for each of ``names`` (folders of this machine) in a text file below."""
    texts = {p: p.read_text() for p in folder.rglob("*") if p.suffix in TEXT}
    return [
        f"{path.relative_to(folder)}: {name}"
        for path, text in sorted(texts.items())
        for name in names
        if name in text
    ]


def ship(run: Path, target: Path) -> None:
    """Build the results folder beside ``target`` and put it in its place.

    Raises:
        RunError: a file is missing, the summary is not that of the records, a stage did not
            finish, or a path of this machine would be published.
    """
    draft = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        for name, source in FILES.items():
            if not (run / source).is_file():
                raise RunError(str(run / source), "no such file", "a finished run")
            shutil.copyfile(run / source, draft / name)
        shutil.copytree(run / FIGURES, draft / "figures", ignore=shutil.ignore_patterns("*.pdf"))
        text = json.dumps({"stages": manifests(run)}, indent=1, sort_keys=True) + "\n"
        (draft / "manifest.json").write_text(text)
        analysis, shipped = recompute(draft)
        if found := list(differences(shipped, json.loads(canonical_json(analysis.summary)))):
            raise RunError(str(run / FILES["summary.json"]), found[0], "that of the records")
        project = Path(__file__).resolve().parents[1]
        names = [str(project), f"{Path.home()}/", str(run.resolve())]
        if found := private_names(draft, names):
            raise RunError(str(target), f"would publish a path ({found[0]})", "none")
        readme = target / "README.md"
        if readme.is_file():
            shutil.copyfile(readme, draft / "README.md")
        shutil.rmtree(target, ignore_errors=True)
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="e.g. runs/cpu")
    parser.add_argument("target", type=Path, help="e.g. docs/results/cpu-pi")
    options = parser.parse_args(arguments)
    try:
        ship(options.run, options.target)
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size = sum(p.stat().st_size for p in options.target.rglob("*") if p.is_file())
    print(f"{options.target}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
