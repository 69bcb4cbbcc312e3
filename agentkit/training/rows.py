"""Layer: work (pure part, no torch). From recorded turns to rows that a trainer can use.

A row is a token sequence in which some tokens were sampled by the policy. Turns whose prompt
extends what a row already holds, token by token, join that row; a rewritten history opens a new
one. Nothing is re-rendered or re-tokenised, so the context of every trained token is exactly the
one in which the engine sampled it (TRL issue 5224: a re-rendered history differs silently).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from agentkit.errors import TrainingError
from agentkit.types import Turn


@dataclass
class Row:
    """One training sequence; the first sampled token starts the completion.

    ``prompt_ids`` (P); ``completion_ids``, ``mask`` and ``logprobs`` (C each). ``mask`` is 1 on
    sampled tokens, and ``logprobs`` holds the engine's natural-log probabilities there and 0.0
    elsewhere. ``turns`` lists the indices of the recorded turns in the row.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    turns: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def sampled(self) -> int:
        return sum(self.mask)

    def is_extended_by(self, prompt: Sequence[int]) -> bool:
        """Whether ``prompt`` starts with all tokens of this row."""
        split, end = len(self.prompt_ids), len(self)
        return (
            len(prompt) >= end
            and prompt[split:end] == self.completion_ids
            and prompt[:split] == self.prompt_ids
        )

    def extend(self, turn: Turn) -> None:
        """Append what is new of the turn's prompt (masked) and its sampled tokens."""
        between = turn.prompt_token_ids[len(self) :]
        self.completion_ids += [*between, *turn.token_ids]
        self.mask += [0] * len(between) + [1] * len(turn.token_ids)
        self.logprobs += [0.0] * len(between) + list(turn.logprobs)
        self.turns.append(turn.index)


@dataclass
class RowStats:
    """Counts over the rows of one or more sessions; addable.

    ``later_turns`` are turns after a session's first; ``extending_turns`` of them continue a row.
    ``too_long_turns`` would need a row above the limit and are not trained. ``turn_tokens`` is the
    sum of prompt + completion over turns: what a trainer without merged rows would forward.
    """

    sessions: int = 0
    turns: int = 0
    rows: int = 0
    later_turns: int = 0
    extending_turns: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    row_tokens: int = 0
    turn_tokens: int = 0
    empty_turns: int = 0
    too_long_turns: int = 0
    too_long_tokens: int = 0

    def __add__(self, other: RowStats) -> RowStats:
        return RowStats(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    def summary(self) -> dict[str, float]:
        """The counts and three ratios (0.0 where the denominator is 0)."""
        out: dict[str, float] = {f.name: getattr(self, f.name) for f in fields(self)}
        out["rows_per_session"] = self.rows / self.sessions if self.sessions else 0.0
        out["extending_share"] = (
            self.extending_turns / self.later_turns if self.later_turns else 0.0
        )
        out["forwarded_share"] = self.row_tokens / self.turn_tokens if self.turn_tokens else 0.0
        return out


def check_turn(turn: Turn, where: str = "turn") -> None:
    """Raise TrainingError where a recorded turn cannot be trained on exactly."""
    if len(turn.logprobs) != len(turn.token_ids):
        raise TrainingError(
            f"{where} {turn.index}",
            f"{len(turn.logprobs)} logprobs for {len(turn.token_ids)} tokens",
            "one for each",
            "the engine must answer with return_token_ids and logprobs",
        )
    if not turn.prompt_token_ids:
        raise TrainingError(
            f"{where} {turn.index}",
            "no prompt tokens",
            "the exact prompt",
            "the engine must answer with return_token_ids",
        )
    if not all(math.isfinite(x) for x in turn.logprobs):
        raise TrainingError(
            f"{where} {turn.index}",
            "a logprob is not finite",
            "finite logprobs",
            "check the engine",
        )


def build_rows(
    turns: Iterable[Turn], *, max_row_tokens: int | None = None, where: str = "turn"
) -> tuple[list[Row], RowStats]:
    """Merge one session's turns into rows, in order of the turns.

    Each turn joins the row with the most tokens among all rows that its prompt extends, so that
    an interleaved side conversation does not split the main one; where none fits, it opens a new
    row whose earlier sampled tokens, if any, are context only. So each sampled token has mask 1
    in exactly one row.

    A turn whose prompt and sampled tokens exceed ``max_row_tokens`` is left out whole and counted
    (``too_long_turns``, ``too_long_tokens``): cutting it would change the context of its tokens.

    Raises:
        TrainingError: a turn without exact tokens or finite logprobs.
    """
    rows: list[Row] = []
    stats = RowStats(sessions=1)
    for turn in turns:
        check_turn(turn, where)
        size = len(turn.prompt_token_ids) + len(turn.token_ids)
        stats.turns += 1
        stats.later_turns += stats.turns > 1
        stats.sampled_tokens += len(turn.token_ids)
        stats.turn_tokens += size
        if not turn.token_ids:
            stats.empty_turns += 1
            continue
        if max_row_tokens is not None and size > max_row_tokens:
            stats.too_long_turns += 1
            stats.too_long_tokens += len(turn.token_ids)
            continue
        fitting = [row for row in rows if row.is_extended_by(turn.prompt_token_ids)]
        if fitting:
            max(fitting, key=len).extend(turn)
            stats.extending_turns += 1
        else:
            tokens, logprobs = list(turn.token_ids), list(turn.logprobs)
            prompt = list(turn.prompt_token_ids)
            rows.append(Row(prompt, tokens, [1] * len(tokens), logprobs, [turn.index]))
    stats.rows = len(rows)
    stats.row_tokens = sum(map(len, rows))
    stats.trained_tokens = sum(row.sampled for row in rows)
    return rows, stats
