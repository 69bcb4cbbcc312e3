"""Layer: boundaries. LoRA adapters as versions that a running vLLM server serves.

vLLM keys its cached blocks by an adapter's name and path, never by its content, so every version
gets a name and a folder of its own; both carry the hash of the weights. A version answers for as
long as any session holds it, and is unloaded when it is retired and no session does.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from agentkit.errors import EngineError, ModelError
from agentkit.serving.adapter_check import check_adapter, largest_b, weights_sha256
from agentkit.serving.engine_settings import BASE
from agentkit.serving.probe import PROBE_IDS, prompt_logprobs

Expected = Callable[[Sequence[int]], Sequence[float]]
"""Token ids [T] -> their logprobs given the earlier ones [T − 1], as the trainer computes them."""

FAINT = 1e-3
"""An adapter whose B entries are smaller may round to the base's answers in bfloat16."""


@dataclass
class Version:
    """One published adapter. ``users`` counts the sessions that hold it."""

    name: str
    path: Path
    sha256: str
    users: int = 0
    retired: bool = False
    check: dict[str, Any] = field(default_factory=dict)


class AdapterStore:
    """Publishes one trainer's adapters to one server. Safe to use from several threads.

    Args:
        engine_url: address of the server.
        folder: versions are kept here, one folder each; nothing in it is ever overwritten.
        prefix: begins the served names, so that several trainers can share a server.
        model_path: the base's folder; with it adapters are checked before they are sent.
        max_loras, max_rank: the server's limits.
        tolerance: mean |logprob difference|, nats, allowed between server and ``expected``. The
            probe's tokens are unlikely ones, whose logprobs bfloat16 rounds most.
    """

    def __init__(
        self,
        engine_url: str,
        folder: Path,
        prefix: str,
        *,
        model_path: Path | None = None,
        max_loras: int | None = None,
        max_rank: int | None = None,
        tolerance: float = 0.2,
    ) -> None:
        self.url = engine_url.rstrip("/")
        self.folder, self.prefix = Path(folder), prefix
        self.model_path, self.max_loras, self.max_rank = model_path, max_loras, max_rank
        self.tolerance = tolerance
        self.versions: dict[str, Version] = {}
        self._lock = threading.RLock()
        self._http = httpx.Client(base_url=self.url, timeout=120.0, trust_env=False)

    # ------------------------------------------------------------ publish

    def publish(
        self,
        source: Path | str | Callable[[Path], object],
        version: int | str,
        expected: Expected | None = None,
    ) -> str:
        """Publish a peft folder, or what ``source(folder)`` saves there; return the served name.

        The folder appears under its final name by an atomic rename. What is served is compared
        with ``expected`` (the trainer's own logprobs) where given, else with the base's answer.
        The same weights under the same version give the same name and are not sent twice.
        """
        work = self.folder / f".{self.prefix}-{version}-{os.getpid()}-{threading.get_ident()}"
        shutil.rmtree(work, ignore_errors=True)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if callable(source):
                work.mkdir(parents=True)
                source(work)
            else:
                check_adapter(Path(source), self.model_path, self.max_rank)
                shutil.copytree(source, work)
            return self._send(work, version, expected)
        except OSError as error:
            raise ModelError(
                f"adapter {self.prefix}-{version}",
                f"not written to {self.folder} ({error.strerror or error})",
                "a writable folder with free space",
            ) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _send(self, work: Path, version: int | str, expected: Expected | None) -> str:
        check_adapter(work, self.model_path, self.max_rank)
        sha = weights_sha256(work)
        label = f"v{version:04d}" if isinstance(version, int) else version
        name = f"{self.prefix}-{label}-{sha[:8]}"
        path = self.folder / name
        with self._lock:
            if not path.exists():
                work.rename(path)
            elif weights_sha256(path) != sha:
                raise ModelError(
                    f"adapter {path}", "its weights were changed", f"sha256 {sha[:12]}"
                )
            served = self._served()
            known = self.versions.setdefault(name, Version(name, path, sha))
            known.retired = False
            if name not in served:
                self._make_room(served)
                self._post("load", {"lora_name": name, "lora_path": str(path.resolve())})
                known.check = self._verify(known, expected)
        return name

    def _make_room(self, served: dict[str, dict[str, Any]]) -> None:
        adapters = [name for name, card in served.items() if card.get("parent") is not None]
        if self.max_loras is not None and len(adapters) >= self.max_loras:
            raise EngineError(
                f"engine {self.url}",
                f"holds {len(adapters)} adapters ({', '.join(sorted(adapters))})",
                f"at most max_loras = {self.max_loras}",
                "raise max_loras, or let sessions of older versions end and retire() these",
            )

    def _verify(self, version: Version, expected: Expected | None) -> dict[str, Any]:
        served = prompt_logprobs(self._http, version.name, PROBE_IDS)
        base = prompt_logprobs(self._http, BASE, PROBE_IDS)
        report: dict[str, Any] = {"from_base": _mean_difference(served, base)}
        if expected is not None:
            report["from_trainer"] = _mean_difference(served, expected(PROBE_IDS))
        problem = self._problem(version, report)
        if problem:
            self._post("unload", {"lora_name": version.name})
            del self.versions[version.name]
            raise EngineError(
                f"engine {self.url}",
                f"{version.name}: {problem}",
                "answers of the adapter that was published",
                "check that engine and trainer use the same base, dtype and vLLM plugin",
            )
        return report

    def _problem(self, version: Version, report: dict[str, Any]) -> str:
        if report.get("from_trainer", 0.0) > self.tolerance:
            return f"logprobs differ from the trainer's by {report['from_trainer']:.3g} nat"
        largest = largest_b(version.path)
        if report["from_base"] == 0.0 and largest > FAINT:
            return "the base model answers under its name"
        if report["from_base"] > self.tolerance and largest == 0.0:
            return (
                f"all-zero weights, yet it differs from the base by {report['from_base']:.3g} nat"
            )
        return ""

    # ------------------------------------------------------------ use, retire

    def acquire(self, name: str) -> str:
        """Hold a version for one session. Raises ModelError for an unknown or unloaded one."""
        with self._lock:
            if name not in self.versions:
                raise ModelError(
                    f"adapter {name}", "not served", f"one of {sorted(self.versions) or 'none'}"
                )
            self.versions[name].users += 1
        return name

    def release(self, name: str) -> None:
        """Give a version back; a retired one is unloaded with its last session."""
        with self._lock:
            version = self.versions[name]
            version.users -= 1
            if version.users < 0:
                raise ModelError(f"adapter {name}", "released more often than acquired")
            self._unload_if_idle(version)

    def retire(self, name: str) -> bool:
        """Take a version out of service; return whether it is unloaded already."""
        with self._lock:
            version = self.versions[name]
            version.retired = True
            return self._unload_if_idle(version)

    def retire_all(self, keep: Sequence[str] = ()) -> None:
        """Retire every version of this store but ``keep``."""
        with self._lock:
            for name in [n for n in self.versions if n not in keep]:
                self.retire(name)

    def _unload_if_idle(self, version: Version) -> bool:
        if not version.retired or version.users:
            return False
        self._post("unload", {"lora_name": version.name})
        del self.versions[version.name]
        return True

    # ------------------------------------------------------------ the server

    def _served(self) -> dict[str, dict[str, Any]]:
        return {card["id"]: card for card in self._request("GET", "/v1/models").json()["data"]}

    def _post(self, verb: str, body: dict[str, Any]) -> None:
        self._request("POST", f"/v1/{verb}_lora_adapter", json=body)

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise EngineError(
                f"engine {self.url}{path}",
                f"no answer ({type(error).__name__})",
                "a running server",
            ) from error
        if answer.status_code != 200:
            raise EngineError(
                f"engine {self.url}{path}",
                f"status {answer.status_code}: {answer.text[:200]}",
                "status 200",
            )
        return answer


def _mean_difference(a: Sequence[float], b: Sequence[float]) -> float:
    if len(a) != len(b):
        raise ValueError(f"{len(a)} logprobs against {len(b)}")
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)
