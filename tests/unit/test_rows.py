"""Rows from recorded turns: properties over random conversations, and the cases by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.errors import TrainingError
from agentkit.training.rows import RowStats, build_rows
from agentkit.types import Turn

TOKENS = st.integers(0, 3)  # few values, so that accidental prefixes happen
PIECE = st.lists(TOKENS, min_size=0, max_size=5)


def turn(index: int, prompt: list[int], sampled: list[int]) -> Turn:
    logprobs = [-(index + 1) - k / 100 for k in range(len(sampled))]
    return Turn(index, "m", list(prompt), list(sampled), logprobs, {}, "stop")


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Threads that go on, are cut back to any point (rewritten history) or start afresh."""
    turns: list[Turn] = []
    heads: list[list[int]] = []
    for index in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["fresh", "extend", "cut"]))
        base: list[int] = []
        if heads and kind != "fresh":
            base = draw(st.sampled_from(heads))
            if kind == "cut":
                base = base[: draw(st.integers(0, len(base)))]
        prompt = base + draw(PIECE)
        prompt = prompt or [9]
        sampled = draw(PIECE)
        turns.append(turn(index, prompt, sampled))
        heads.append(prompt + sampled)
    return turns


@given(conversations())
@settings(max_examples=400, deadline=None)
def test_each_sampled_token_trains_once_in_its_exact_context(turns: list[Turn]) -> None:
    rows, stats = build_rows(turns)
    home = {index: row for row in rows for index in row.turns}
    assert sorted(home) == [t.index for t in turns if t.token_ids]
    assert sum(len(row.turns) for row in rows) == len(home)
    for t in turns:
        if not t.token_ids:
            continue
        row = home[t.index]
        tokens = row.prompt_ids + row.completion_ids
        mask = [0] * len(row.prompt_ids) + row.mask
        logprobs = [0.0] * len(row.prompt_ids) + row.logprobs
        start, end = len(t.prompt_token_ids), len(t.prompt_token_ids) + len(t.token_ids)
        assert tokens[:start] == t.prompt_token_ids
        assert tokens[start:end] == t.token_ids
        assert mask[start:end] == [1] * len(t.token_ids)
        assert logprobs[start:end] == t.logprobs
    for row in rows:
        assert len(row.completion_ids) == len(row.mask) == len(row.logprobs)
        assert row.mask[0] == 1 and row.mask[-1] == 1
        assert all(p == 0.0 for p, m in zip(row.logprobs, row.mask, strict=True) if not m)
    total = sum(len(t.token_ids) for t in turns)
    assert sum(sum(row.mask) for row in rows) == total
    assert stats.trained_tokens == stats.sampled_tokens == total


@given(conversations())
@settings(max_examples=400, deadline=None)
def test_a_turn_joins_the_longest_row_that_it_extends(turns: list[Turn]) -> None:
    rows, stats = build_rows(turns)
    # Recomputed from scratch: what every row held just before each turn, from its turns alone.
    by_index = {t.index: t for t in turns}
    extending = 0
    for t in turns:
        if not t.token_ids:
            continue
        held = {}
        for number, row in enumerate(rows):
            earlier = [i for i in row.turns if i < t.index]
            if earlier:
                last = by_index[earlier[-1]]
                held[number] = last.prompt_token_ids + last.token_ids
        fits = {n: len(h) for n, h in held.items() if t.prompt_token_ids[: len(h)] == h}
        mine = next(n for n, row in enumerate(rows) if t.index in row.turns)
        if fits:
            extending += 1
            assert fits.get(mine) == max(fits.values())
        else:
            assert rows[mine].turns[0] == t.index
    assert stats.extending_turns == extending
    assert stats.rows == len(rows) == len([t for t in turns if t.token_ids]) - extending


@given(conversations(), st.integers(1, 25))
@settings(max_examples=200, deadline=None)
def test_too_long_turns_are_left_out_whole_and_counted(turns: list[Turn], limit: int) -> None:
    rows, stats = build_rows(turns, max_row_tokens=limit)
    long = [t for t in turns if t.token_ids and len(t.prompt_token_ids) + len(t.token_ids) > limit]
    assert all(len(row) <= limit for row in rows)
    assert stats.too_long_turns == len(long)
    assert stats.too_long_tokens == sum(len(t.token_ids) for t in long)
    assert stats.trained_tokens == stats.sampled_tokens - stats.too_long_tokens


def test_three_turn_session_is_one_row() -> None:
    rows, stats = build_rows(
        [turn(0, [1, 2], [3]), turn(1, [1, 2, 3, 7, 7], [4]), turn(2, [1, 2, 3, 7, 7, 4, 8], [5])]
    )
    assert len(rows) == 1
    assert rows[0].prompt_ids == [1, 2]
    assert rows[0].completion_ids == [3, 7, 7, 4, 8, 5]
    assert rows[0].mask == [1, 0, 0, 1, 0, 1]
    assert rows[0].logprobs == [-1.0, 0.0, 0.0, -2.0, 0.0, -3.0]
    assert stats.summary()["extending_share"] == 1.0
    assert stats.row_tokens == 8 and stats.turn_tokens == 3 + 6 + 8


def test_interleaved_side_calls_do_not_fork_the_main_row() -> None:
    main0, side0 = turn(0, [1, 1], [2]), turn(1, [9], [8])
    main1, side1 = turn(2, [1, 1, 2, 5], [2]), turn(3, [9, 8, 6], [8])
    rows, stats = build_rows([main0, side0, main1, side1])
    assert [row.turns for row in rows] == [[0, 2], [1, 3]]
    assert stats.extending_turns == 2


def test_rewritten_history_opens_a_row_with_masked_context() -> None:
    rows, _ = build_rows([turn(0, [1], [2, 3]), turn(1, [1, 2, 4], [5])])
    assert [row.turns for row in rows] == [[0], [1]]
    assert rows[1].prompt_ids == [1, 2, 4] and rows[1].mask == [1]


def test_resend_of_the_same_prompt_is_a_row_of_its_own() -> None:
    rows, _ = build_rows([turn(0, [1, 2], [3]), turn(1, [1, 2], [4])])
    assert [row.completion_ids for row in rows] == [[3], [4]]


@pytest.mark.parametrize(
    "bad",
    [
        Turn(0, "m", [1], [2, 3], [-1.0], {}, "stop"),
        Turn(0, "m", [], [2], [-1.0], {}, "stop"),
        Turn(0, "m", [1], [2], [math.nan], {}, "stop"),
        Turn(0, "m", [1], [2], [-math.inf], {}, "stop"),
    ],
)
def test_turns_without_exact_tokens_are_refused(bad: Turn) -> None:
    with pytest.raises(TrainingError, match="turn 0"):
        build_rows([bad])


def test_stats_add_up() -> None:
    _, one = build_rows([turn(0, [1], [2])])
    both = one + one
    assert (both.sessions, both.turns, both.sampled_tokens) == (2, 2, 2)
    assert RowStats().summary()["rows_per_session"] == 0.0
