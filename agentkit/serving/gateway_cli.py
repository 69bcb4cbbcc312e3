"""Layer: boundaries. One session of the gateway by hand: ``python -m agentkit.serving.gateway``.

For pointing a harness at an engine outside a run. Ctrl-C ends the session and writes its log.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import threading
from pathlib import Path

from agentkit.errors import KitError
from agentkit.serving.gateway import Gateway, timings
from agentkit.types import Policy, SessionLog


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agentkit.serving.gateway",
        description="Open one session between a harness and an engine, and record it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--engine", required=True, help="URL of the engine")
    parser.add_argument("--model", default="base", help="name that the engine serves")
    parser.add_argument("--socket", type=Path, help="path of the unix socket")
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1, 0: a free one")
    parser.add_argument("--key", help="key of the session; random when not given")
    parser.add_argument("--record", type=Path, help="where to write the session's log as JSON")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=256, help="for each turn")
    parser.add_argument("--max-turns", type=int, default=15, help="budget of model calls")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _wait_for_signal() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()


def _report(log: SessionLog, record: Path | None) -> None:
    if record is not None:
        record.write_text(json.dumps(dataclasses.asdict(log)) + "\n")
    kinds = sorted({e["type"] for e in log.events})
    print(f"{len(log.turns)} turns, {log.calls} calls, events: {', '.join(kinds) or 'none'}")
    print(json.dumps({k: round(v, 4) for k, v in timings(log).items()}), flush=True)


def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    policy = Policy(
        args.model, args.temperature, args.top_p, args.max_tokens, args.max_turns, args.seed
    )
    try:
        with Gateway(args.engine, args.socket, port=args.port) as gateway:
            key = gateway.open(policy, args.key)
            print(f"base URL {gateway.base_url(key)}", flush=True)
            print(f"socket   {gateway.socket_path} (path /s/{key}/v1)", flush=True)
            _wait_for_signal()
            _report(gateway.close(key), args.record)
    except KitError as error:
        sys.exit(f"{type(error).__name__}: {error}")
