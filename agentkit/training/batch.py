"""Layer: work. From groups of finished sessions to weighted rows, and on to padded tensors.

``torch`` is imported inside :func:`collate` only, so that the selection can be tested and used
without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agentkit.advantages import gradient_weight, group_advantages
from agentkit.training.rows import Row, RowStats, build_rows
from agentkit.types import Baseline, SessionLog, SessionRecord

if TYPE_CHECKING:
    import torch


class FinishedSession(Protocol):
    """What training needs of a session: its record (reward) and the gateway's log (turns)."""

    @property
    def record(self) -> SessionRecord: ...

    @property
    def log(self) -> SessionLog: ...


@dataclass(frozen=True)
class WeightedRow:
    """A row and the advantage of its session (dimensionless; 0 for padding rows)."""

    row: Row
    advantage: float
    session_id: str = ""


@dataclass
class Selection:
    """What one step trains on, and the counts behind it.

    ``counts`` holds groups, dropped groups, sessions by fate, and the row statistics of all
    unbroken sessions (``rows`` there counts before zero-advantage rows are dropped).
    """

    rows: list[WeightedRow]
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Sampled tokens in the loss: the denominator of the token mean."""
        return sum(x.row.sampled for x in self.rows)


def select_rows(
    groups: Sequence[Sequence[FinishedSession]],
    *,
    baseline: Baseline = "mean",
    scale_by_std: bool = False,
    max_row_tokens: int | None = None,
) -> Selection:
    """Turn the groups of one step into weighted rows.

    A session's advantage (see :func:`agentkit.advantages.group_advantages`) stands on all its
    rows. Broken sessions (``record.reward is None``) are neither in the baseline nor in the loss.
    Groups whose rewards are all equal have advantage 0: their rows would add nothing to the
    gradient but would count in the token mean's denominator, so they are dropped and counted. The
    same holds for a single session that sits exactly on its group's mean.
    """
    rewards = [[s.record.reward for s in group] for group in groups]
    weights = None
    if baseline == "optimal":
        weights = [
            [sum(gradient_weight(turn.logprobs) for turn in s.log.turns) for s in group]
            for group in groups
        ]
    advantages, counted = group_advantages(rewards, weights=weights, scale_by_std=scale_by_std)
    rows: list[WeightedRow] = []
    stats = RowStats()
    sessions_in_loss = zero_advantage = 0
    for group, values in zip(groups, advantages, strict=True):
        for session, advantage in zip(group, values, strict=True):
            if advantage is None:
                continue
            made, session_stats = build_rows(
                session.log.turns,
                max_row_tokens=max_row_tokens,
                where=f"session {session.record.session_id} turn",
            )
            stats += session_stats
            if abs(advantage) < 1e-9:  # rounding of a reward that equals the mean
                zero_advantage += 1
                continue
            sessions_in_loss += bool(made)
            rows += [WeightedRow(row, advantage, session.record.session_id) for row in made]
    counts: dict[str, float] = {
        **stats.summary(),
        "groups": counted["groups"],
        "groups_equal": counted["equal"],
        "groups_small": counted["small"],
        "broken_sessions": counted["broken_sessions"],
        "zero_advantage_sessions": zero_advantage,
        "sessions_in_loss": sessions_in_loss,
        "rows_in_loss": len(rows),
        "loss_tokens": sum(x.row.sampled for x in rows),
    }
    return Selection(rows, counts)


def pad_rows(rows: Sequence[WeightedRow], multiple: int, filler_id: int) -> list[WeightedRow]:
    """Sort rows by length (longest first) and fill up to a multiple with zero-advantage rows.

    TRL splits the batch into ``multiple`` equal parts. A filler is two tokens long, and its mask is
    0, so that it adds nothing to the loss, to the token count or to the metrics.
    """
    ordered = sorted(rows, key=lambda x: len(x.row), reverse=True)
    total = max(1, -(-len(ordered) // multiple)) * multiple
    filler = WeightedRow(Row([filler_id], [filler_id], [0], [0.0]), 0.0)
    return ordered + [filler] * (total - len(ordered))


def collate(rows: Sequence[WeightedRow], pad_id: int) -> dict[str, torch.Tensor]:
    """Pad rows into the tensors that ``GRPOTrainer._compute_loss`` reads.

    Prompts (B, P) are padded on the left and completions (B, C) on the right, as TRL does.
    ``old_per_token_logps`` (B, C) are the engine's logprobs, so that the clipped ratio is
    trainer / engine. ``num_items_in_batch`` is the number of masked-in tokens of the batch.
    """
    import torch
    from trl.trainer.utils import pad

    def stack(values: list[list[Any]], fill: float, side: str, dtype: torch.dtype) -> torch.Tensor:
        tensors = [torch.tensor(v, dtype=dtype) for v in values]
        return pad(tensors, padding_value=fill, padding_side=side)  # type: ignore[arg-type]

    prompts = [x.row.prompt_ids for x in rows]
    completions = [x.row.completion_ids for x in rows]
    long, real = torch.long, torch.float32
    tool_mask = stack([x.row.mask for x in rows], 0, "right", long)
    return {
        "prompt_ids": stack(prompts, pad_id, "left", long),
        "prompt_mask": stack([[1] * len(p) for p in prompts], 0, "left", long),
        "completion_ids": stack(completions, pad_id, "right", long),
        "completion_mask": stack([[1] * len(c) for c in completions], 0, "right", long),
        "tool_mask": tool_mask,
        "old_per_token_logps": stack([x.row.logprobs for x in rows], 0.0, "right", real),
        "advantages": torch.tensor([x.advantage for x in rows], dtype=real),
        "num_items_in_batch": tool_mask.sum(),
    }
