"""What is shipped of a run: all that the interval rests on, and no path of the machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentkit import reproduce
from agentkit.ship import main
from tests.unit.test_report_reproduce import shipped  # noqa: F401


@pytest.fixture
def run(shipped: Path, tmp_path: Path) -> Path:  # noqa: F811
    """A finished run directory, made of the shipped fixture's records."""
    root = tmp_path / "runs" / "x"
    for stage in ("02_train", "03_evaluate", "05_analyse/figures"):
        (root / stage).mkdir(parents=True)
    shutil.copy(shipped / "sessions.jsonl", root / "03_evaluate")
    shutil.copy(shipped / "summary.json", root / "05_analyse")
    (root / "02_train" / "metrics.jsonl").write_text('{"step": 1}\n')
    (root / "05_analyse" / "figures" / "forest.png").write_bytes(b"png")
    (root / "report.html").write_text("<p>report</p>")
    for stage in ("02_train", "03_evaluate"):
        (root / stage / "manifest.json").write_text('{"status": "finished", "seed": 0}')
    return root


def test_shipped_folder_reproduces_itself(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "docs" / "pi"
    (target / "figures").mkdir(parents=True)
    (target / "README.md").write_text("kept")
    (target / "old.txt").write_text("gone")
    assert main([str(run), str(target)]) == 0
    assert reproduce.main([str(target)]) == 0
    assert (target / "README.md").read_text() == "kept" and not (target / "old.txt").exists()
    stages = json.loads((target / "manifest.json").read_text())["stages"]
    assert sorted(stages) == ["02_train", "03_evaluate"]
    assert (target / "figures" / "forest.png").read_bytes() == b"png"


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("report.html", "<p>{root}/x</p>", "would publish a path (report.html"),
        ("02_train/manifest.json", '{{"status": "stopped"}}', "expected 'finished'"),
        ("03_evaluate/sessions.jsonl", "", "no records"),
    ],
)
def test_nothing_is_shipped_where_something_is_wrong(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, text: str, said: str
) -> None:
    (run / path).write_text(text.format(root=Path(__file__).resolve().parents[2]))
    target = tmp_path / "docs" / "pi"
    assert main([str(run), str(target)]) == 1
    assert said in capsys.readouterr().err
    assert not target.exists() and not list(target.parent.glob(".*"))
