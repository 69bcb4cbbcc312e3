"""The house's layers: every import goes downwards or stays in its layer, and imports stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agentkit"

# From the bottom to the top. A module or subpackage is named by its first part below agentkit.
LAYERS: tuple[tuple[str, str], ...] = (
    ("words", "types errors params seeds"),
    ("pure logic", "rewards advantages statistics costs"),
    ("records", "runs tasks"),
    ("sources", "trajectories synthesis corpus"),
    ("boundaries", "sandboxes harnesses serving safeagents"),
    (
        "work",
        "sessions stack tour training evaluation analysis synthesise ablation warm_start "
        "record_corpus",
    ),
    ("faces", "plots report reproduce ship"),
)
PURE = LAYERS[1][1].split()
PURE_MAY_IMPORT = {"numpy", "scipy", "agentkit"}
HEAVY = ("torch", "vllm", "docker", "matplotlib", "transformers", "trl", "peft", "datasets")


def layer_of(name: str) -> int:
    """Height of a top-level module of agentkit; the package's own __init__ stands at the bottom."""
    if name == "":
        return 0
    for height, (_, names) in enumerate(LAYERS):
        if name in names.split():
            return height
    raise LookupError(f"agentkit.{name} stands in no layer: place it in LAYERS of {__file__}")


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from agentkit import runs` names a module, `from agentkit.runs import Run` does not;
            # the longer name tells the layer in both cases.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def upward_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """One line for each import of a module that goes to a higher layer."""
    package = module if is_package else module.rpartition(".")[0]
    own = layer_of([*module.split("."), ""][1])
    found = []
    for line, name in imported(ast.parse(source), package):
        parts = name.split(".")
        if parts[0] != "agentkit" or len(parts) < 2 or parts[1].startswith("__"):
            continue
        if layer_of(parts[1]) > own:
            found.append(f"{module}:{line} imports {name} from a higher layer")
    return found


def modules() -> list[tuple[str, Path]]:
    """(dotted name, file) of every module of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "data" in parts:
            continue
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_go_downwards(module: str, path: Path) -> None:
    assert upward_imports(path.read_text(), module, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("agentkit.types", "import agentkit.runs"),
        ("agentkit.types", "from agentkit import runs"),
        ("agentkit.types", "from . import runs"),
        ("agentkit.rewards", "from .tasks import Task"),
        ("agentkit.trajectories.pi", "from ..sandboxes import backend"),
        ("agentkit.serving.engine", "def f():\n    from agentkit.sessions import run_session"),
    ],
)
def test_an_upward_import_is_found(module: str, source: str) -> None:
    assert len(upward_imports(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("agentkit.runs", "from agentkit.types import Task\nfrom agentkit import __version__"),
        (
            "agentkit.serving.engine",
            "from .models import resolve_model\nfrom ..types import Policy",
        ),
        ("agentkit.plots", "import matplotlib\nfrom agentkit.statistics import paired"),
    ],
)
def test_a_downward_import_is_allowed(module: str, source: str) -> None:
    assert upward_imports(source, module) == []


def test_a_module_of_no_layer_is_refused() -> None:
    with pytest.raises(LookupError, match="stands in no layer"):
        upward_imports("", "agentkit.helpers")


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_nothing_imports_papermill_and_pure_logic_imports_only_arrays(
    module: str, path: Path
) -> None:
    tops = {name.split(".")[0] for _, name in imported(ast.parse(path.read_text()), module)}
    assert "papermill" not in tops
    if module.split(".")[1:2] and module.split(".")[1] in PURE:
        assert tops - PURE_MAY_IMPORT - set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize("module", ["agentkit", "agentkit.types", "agentkit.rewards"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr
