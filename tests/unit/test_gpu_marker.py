"""A test marked ``gpu`` is skipped with its reason where there is no CUDA device, and else run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_gpu_test_skips_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_on_gpu.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.gpu\n"
        "def test_adds_on_the_device():\n"
        "    assert torch.ones(2, device='cuda').sum().item() == 2\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p"]
    command += ["no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    import torch

    if torch.cuda.is_available():
        assert "1 passed" in done.stdout
    else:
        assert "1 skipped" in done.stdout
        assert "needs a CUDA device: torch" in done.stdout
