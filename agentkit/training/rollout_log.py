"""Layer: work. Finished sessions of the training steps, append-only, with their exact tokens.

One line of ``rollouts.jsonl`` is one session: step, task, attempt, the digest of the policy that
it was sampled from, its record, and the gateway's log (zlib, base64: a turn is mostly its prompt,
which its neighbours repeat). A step that was interrupted reuses the sessions that it had finished,
as long as the policy is the same to the bit.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentkit.runs import append_jsonl, read_jsonl
from agentkit.types import Policy, SessionLog, SessionRecord, Turn

Key = tuple[int, str, int]
"""(step, task id, attempt)."""


@dataclass(frozen=True)
class Rollout:
    """A finished session as training needs it (a :class:`FinishedSession`)."""

    record: SessionRecord
    log: SessionLog


def pack_log(log: SessionLog) -> str:
    """The log without the first request, as text."""
    data = asdict(log) | {"first_request": None}
    raw = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(zlib.compress(raw, 6)).decode()


def unpack_log(text: str) -> SessionLog:
    """Inverse of :func:`pack_log`."""
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    data["policy"] = Policy(**data["policy"])
    data["turns"] = [Turn(**turn) for turn in data["turns"]]
    return SessionLog(**data)


class RolloutLog:
    """``rollouts.jsonl`` of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, key: Key, policy_sha256: str, rollout: Rollout) -> None:
        """Append one session, durably."""
        step, task_id, attempt = key
        line = {
            "step": step,
            "task_id": task_id,
            "attempt": attempt,
            "policy_sha256": policy_sha256,
            "record": rollout.record.model_dump(mode="json"),
            "log": pack_log(rollout.log),
        }
        append_jsonl(self.path, line)

    def finished(self, step: int, policy_sha256: str) -> dict[Key, Rollout]:
        """Unbroken sessions of ``step`` under exactly this policy; broken ones are run again."""
        found: dict[Key, Rollout] = {}
        for line in read_jsonl(self.path):
            if line["step"] != step or line["policy_sha256"] != policy_sha256:
                continue
            record = SessionRecord.model_validate(line["record"])
            if not record.broken:
                key = (step, line["task_id"], line["attempt"])
                found[key] = Rollout(record, unpack_log(line["log"]))
        return found
