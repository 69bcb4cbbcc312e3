"""What the kit adds to pi: the same work plain and in a session, taken in turns in one run.

``python -m tests.bench_sessions`` prints medians of wall clock and, since a busy machine stretches
that, of CPU time. Plain: ``bash -c true``, and pi run on the host against the same scripted engine
that answers at once. Kit: a sandbox's whole cycle, and a whole session with its validator.
``overhead`` is a session's duration without model and tool time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from agentkit import harnesses, sandboxes
from agentkit.harnesses.base import HarnessSettings
from agentkit.harnesses.pi import PACKAGE, node_folder
from agentkit.sandboxes.base import Limits
from agentkit.sandboxes.launching import launcher
from agentkit.serving.gateway import Gateway
from agentkit.sessions import SessionSettings, run_session, run_sessions
from tests.integration.session_parts import DONE, WRITE, bash, policy, task
from tests.scripted_engine import ScriptedEngine, by_step

CYCLE_LIMIT_S, OVERHEAD_LIMIT_S, EIGHT_LIMIT_S = 0.040, 1.0, 4.0
SCRIPT = by_step([WRITE, bash("python3 hello.py"), DONE])


@dataclass
class Series:
    """Wall and CPU seconds of one kind of work."""

    name: str
    work: Callable[[], Any]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def take(self) -> None:
        before, started = _cpu_s(), time.monotonic()
        self.results.append(self.work())
        self.wall.append(time.monotonic() - started)
        self.cpu.append(_cpu_s() - before)

    def line(self, plain: Series | None = None) -> str:
        text = f"{self.name:38s} wall {median(self.wall) * 1e3:8.1f} ms"
        text += f"  cpu {median(self.cpu) * 1e3:8.1f} ms"
        if plain is not None:
            text += f"  cpu ratio {median(self.cpu) / max(median(plain.cpu), 1e-4):6.2f}"
        return text


def _cpu_s() -> float:
    """CPU seconds of this process, of children that ended, and of what the launcher reaped."""
    own = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    own += sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    fields = Path(f"/proc/{launcher().process.pid}/stat").read_text().rpartition(")")[2].split()
    return own + sum(int(n) for n in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _plain_pi(gateway: Gateway) -> None:
    """pi on the host: no sandbox, its own home, the same configuration."""
    harness, settings = harnesses.get("pi"), HarnessSettings()
    key = gateway.open(policy())
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        work.mkdir()
        for name, data in harness.home_files(gateway.base_url(key), settings).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(data)
        argv, _ = harness.command("Write hello.py that prints 42.", settings)
        argv[0] = str(node_folder() / "node" / "bin" / "node")
        argv[1] = str(node_folder() / PACKAGE / "dist" / "bundle" / "cli.js")
        argv[argv.index("--session-dir") + 1] = str(home / "sessions")
        env = harness.environment(settings)
        env |= {"HOME": str(home), "PI_CODING_AGENT_DIR": str(home / ".pi" / "agent")}
        env |= {"PATH": "/usr/bin:/bin", "TMPDIR": folder, "NODE_COMPILE_CACHE": folder + "/cache"}
        subprocess.run(
            argv, env=env, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
    assert len(gateway.close(key).turns) == 3


@dataclass
class Measured:
    """All series and what the limits are about; seconds."""

    series: list[tuple[Series, Series | None]]
    overhead_s: float
    eight_s: float
    parts: dict[str, float]

    @property
    def met(self) -> bool:
        cycle_s = median(self.series[1][0].wall)
        return (
            cycle_s <= CYCLE_LIMIT_S
            and self.overhead_s <= OVERHEAD_LIMIT_S
            and self.eight_s <= EIGHT_LIMIT_S
        )


def measure(cycles: int = 15, sessions: int = 7) -> Measured:
    """Take plain and kit in turns, then eight sessions at once."""
    kit, pi = sandboxes.backend(), harnesses.get("pi")
    pi.prepare(kit)

    def cycle() -> None:
        with kit.open(limits=Limits()) as box:
            box.exec("true", timeout_s=10)

    plain_bash = Series("bash -c true", lambda: subprocess.run(["bash", "-c", "true"], check=True))
    sandbox = Series("sandbox: open, bash -c true, close", cycle)
    for _ in range(cycles):
        plain_bash.take()
        sandbox.take()
    with ScriptedEngine(SCRIPT) as engine, Gateway(engine.url) as gateway:
        common = {
            "harness": pi, "backend": kit, "gateway": gateway, "arm": "bench", "task": task(),
            "settings": SessionSettings(timeout_s=120), "policy": policy(),
        }  # fmt: skip
        plain = Series("pi on the host, 3 turns, 2 calls", lambda: _plain_pi(gateway))
        session = Series("session: sandbox, pi, validator", lambda: run_session(**common))
        for _ in range(sessions):
            plain.take()
            session.take()
        started = time.monotonic()
        eight = list(run_sessions([common] * 8, concurrency=8))
        eight_s = time.monotonic() - started
    records = [r.record for r in [*session.results, *eight]]
    assert all(r.status == "completed" and r.score == 1.0 for r in records)
    middle = {
        name: round(median(r.record.timing[name] for r in session.results), 3)
        for name in session.results[0].record.timing
    }
    series = [(plain_bash, None), (sandbox, plain_bash), (plain, None), (session, plain)]
    return Measured(series, middle["overhead_s"], eight_s, middle)


def report(measured: Measured) -> str:
    """The comparison as lines of text."""
    lines = [one.line(plain) for one, plain in measured.series]
    lines.append(f"session's parts, median s: {json.dumps(measured.parts)}")
    lines.append(f"overhead {measured.overhead_s:.3f} s (limit {OVERHEAD_LIMIT_S})")
    lines.append(f"8 sessions at once {measured.eight_s:.2f} s (limit {EIGHT_LIMIT_S})")
    lines.append(f"load average {os.getloadavg()[0]:.1f}")
    return "\n".join(lines)


def main() -> int:
    """Print the comparison; with ``--check`` exit status 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_sessions", description=__doc__)
    parser.add_argument("--cycles", type=int, default=15)
    parser.add_argument("--sessions", type=int, default=7)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    measured = measure(args.cycles, args.sessions)
    print(report(measured))
    return 0 if measured.met or not args.check else 1


if __name__ == "__main__":
    sys.exit(main())
