"""The notebooks as committed: parameters agree everywhere, cells are short, no outputs."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import nbformat
import pytest

from agentkit.params import STAGES, read_yaml

ROOT = Path(__file__).resolve().parents[2]
PROFILES = sorted(p.name for p in (ROOT / "params").iterdir() if p.is_dir())
LOGIC = ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.If
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def _pipeline():
    spec = importlib.util.spec_from_file_location("pipeline", ROOT / "notebooks" / "pipeline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _stage(path: Path) -> str:
    return next(s for s, name in _pipeline().NOTEBOOKS.items() if name == path.stem)


def _cells(path: Path, kind: str):
    return [c for c in nbformat.read(path, 4).cells if c.cell_type == kind]


def _parameter_cell(path: Path):
    found = [c for c in _cells(path, "code") if "parameters" in c.metadata.get("tags", [])]
    assert len(found) == 1, f"{path.name}: {len(found)} parameter cells"
    return found[0]


def test_every_stage_has_its_notebook():
    assert {p.stem for p in NOTEBOOKS} == set(_pipeline().NOTEBOOKS.values())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_parameter_cell_has_the_fields_of_the_model_and_the_demo_values(path):
    cell = ast.parse(_parameter_cell(path).source)
    values = {node.targets[0].id: ast.literal_eval(node.value) for node in cell.body}
    stage = _stage(path)
    assert list(values) == list(STAGES[stage].model_fields)
    assert values == read_yaml(ROOT / "params" / "demo" / f"{stage}.yaml")


@pytest.mark.parametrize("profile", PROFILES)
def test_params_files_are_complete_and_valid(profile):
    files = {p.stem: p for p in (ROOT / "params" / profile).glob("*.yaml")}
    assert set(files) == set(STAGES)
    for stage, path in files.items():
        assert set(read_yaml(path)) == set(STAGES[stage].model_fields), path
        STAGES[stage].from_yaml(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_cells_are_calls_without_outputs_or_shell(path):
    for cell in _cells(path, "code"):
        assert not cell.outputs and cell.execution_count is None, "committed with outputs"
        if "parameters" in cell.metadata.get("tags", []):
            continue
        assert len(cell.source.splitlines()) <= 14, cell.source
        assert not any(line.lstrip().startswith(("!", "%")) for line in cell.source.splitlines())
        # Logic belongs in agentkit: no definitions, loops or branches as statements.
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, LOGIC)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_code_is_introduced_by_markdown(path):
    cells = nbformat.read(path, 4).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert sum(c.cell_type == "markdown" for c in cells) >= 3
