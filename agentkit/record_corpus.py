"""Layer: work. Record the seed corpus: the real pi, real sandboxes, the gateway, a scripted policy.

``python -m agentkit.record_corpus --out FOLDER`` plays every scenario of ``agentkit.corpus`` and
writes one session file each, as pi wrote it and then normalised, and ``seed_trajectories.tar.xz``.
The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentkit.corpus.archive import pack
from agentkit.corpus.generate import generate
from agentkit.corpus.normalise import file_name, normalise
from agentkit.corpus.scenario import Scenario
from agentkit.corpus.script import model_name, script
from agentkit.errors import HarnessError, KitError
from agentkit.harnesses.base import Harness, HarnessSettings
from agentkit.runs import write_atomic
from agentkit.sandboxes.base import GATEWAY_PORT, HOME, Limits, SandboxBackend
from agentkit.serving.gateway import Gateway
from agentkit.serving.scripted import Scripted, ScriptedEngine
from agentkit.types import Files, Policy, SessionLog

SETTINGS = HarnessSettings(
    system_prompt="You are a coding agent. Use the tools to do the task.", tools=("bash", "write")
)
COUNT = 780
SESSION_TIMEOUT_S = 120.0


def _check(scenario: Scenario, log: SessionLog, where: str) -> None:
    """A recording counts only when the whole script was played and nothing else happened."""
    calls = sum(len(turn) for turn in scenario.turns)
    if log.events or len(log.turns) != len(scenario.turns) + 1 or log.calls != calls:
        got = f"{len(log.turns)} turns, {log.calls} calls, events {log.events}"
        raise HarnessError(where, got, f"{len(scenario.turns) + 1} turns, {calls} calls, no event")


def record_session(
    scenario: Scenario, index: int, seed: int, *,
    harness: Harness, backend: SandboxBackend, gateway: Gateway,
) -> bytes:  # fmt: skip
    """Play one scenario in a fresh sandbox and return pi's session file, normalised.

    Raises:
        HarnessError: pi did not play the script to its end.
        SandboxError: the sandbox broke.
    """
    where = f"scenario {index} ({scenario.family})"
    key = gateway.open(Policy(model=model_name(index), max_turns=len(scenario.turns) + 2))
    try:
        with backend.open(
            limits=Limits(), mounts=harness.mounts(), gateway_socket=gateway.socket_path
        ) as box:
            box.put(scenario.files)
            base_url = f"http://127.0.0.1:{GATEWAY_PORT}/s/{key}/v1"
            box.put(harness.home_files(base_url, SETTINGS), HOME)
            argv, stdin = harness.command(scenario.wish, SETTINGS)
            # Files of the scripts change within a second of their first import: no bytecode.
            env = {**harness.environment(SETTINGS), "PYTHONDONTWRITEBYTECODE": "1"}
            result = box.exec(argv, timeout_s=SESSION_TIMEOUT_S, env=env, stdin=stdin)
            outcome = harness.outcome(result, box)
            if outcome.status != "completed":
                raise HarnessError(where, f"{outcome.status}: {outcome.reason}", "completed")
    finally:
        log = gateway.close(key)
    _check(scenario, log, where)
    return normalise(outcome.transcript, seed, index)


def record(
    scenarios: Sequence[Scenario], seed: int, *,
    harness: Harness, backend: SandboxBackend, concurrency: int = 4,
    only: Sequence[int] | None = None,
) -> Iterator[tuple[int, bytes]]:  # fmt: skip
    """Record all scenarios (or those at the places ``only``), ``concurrency`` at once.

    Yields (place, session file) in the order asked for.
    """
    places = range(len(scenarios)) if only is None else only
    engine = ScriptedEngine(script(scenarios, lambda text, calls: Scripted(text, calls)))
    with engine, Gateway(engine.url) as gateway, ThreadPoolExecutor(concurrency) as pool:
        parts: dict[str, Any] = {"harness": harness, "backend": backend, "gateway": gateway}
        jobs = {i: pool.submit(record_session, scenarios[i], i, seed, **parts) for i in places}
        try:
            for index, job in jobs.items():
                yield index, job.result()
        finally:
            for job in jobs.values():
                job.cancel()


def index_line(scenario: Scenario, name: str) -> str:
    """One line of ``index.jsonl``: what the session was made from. Synthesis does not read it."""
    row = {"file": name, "family": scenario.family, "kind": scenario.kind}
    return json.dumps({**row, "refusal": scenario.refusal}, sort_keys=True) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 with one line when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m agentkit.record_corpus", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--count", type=int, default=COUNT, help="sessions to record")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--concurrency", type=int, default=4, help="sessions at once")
    args = parser.parse_args(argv)
    try:
        _run(args.out, args.count, args.seed, args.concurrency)
    except (KitError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(out: Path, count: int, seed: int, concurrency: int) -> None:
    from agentkit import harnesses, sandboxes

    harness, backend = harnesses.get("pi"), sandboxes.backend()
    harness.check_installed()
    scenarios = generate(count, seed)
    files: Files = {}
    started = time.monotonic()
    folder = out / "sessions"
    folder.mkdir(parents=True, exist_ok=True)
    for index, data in record(
        scenarios, seed, harness=harness, backend=backend, concurrency=concurrency
    ):
        name = file_name(seed, index)
        files[name] = data
        write_atomic(folder / name, data)
        print(f"\r{index + 1}/{count} {time.monotonic() - started:.0f} s", end="", flush=True)
    archive = pack(files)
    write_atomic(out / "seed_trajectories.tar.xz", archive)
    rows = (index_line(s, file_name(seed, i)) for i, s in enumerate(scenarios))
    write_atomic(out / "index.jsonl", "".join(rows))
    print(f"\n{len(archive)} bytes, sha256 {hashlib.sha256(archive).hexdigest()}")


if __name__ == "__main__":
    sys.exit(main())
