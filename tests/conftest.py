"""Markers by folder, the GPU skip, and variables that keep the tests off the network."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKED_FOLDERS = ("integration", "notebooks")

_SCRATCH = tempfile.TemporaryDirectory(prefix="agentkit-tests-")

# Set before any test module is imported: the hub libraries and trackio read them at import.
os.environ["TRACKIO_DIR"] = f"{_SCRATCH.name}/trackio"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("AGENTKIT_NODE_DIR", str(ROOT / ".node"))


def no_cuda_reason() -> str | None:
    """Why a GPU test cannot run here; None where it can."""
    import torch

    if torch.version.cuda is None:
        return f"needs a CUDA device: torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "needs a CUDA device: torch finds none"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder in MARKED_FOLDERS:
            if folder in item.path.parent.parts:
                item.add_marker(folder)
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    reason = no_cuda_reason() if gpu_tests else None
    if reason:
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason=reason))
