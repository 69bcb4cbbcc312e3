"""The shipped corpus is what the recorder makes, with the real pi in real sandboxes."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from agentkit import harnesses, sandboxes
from agentkit.corpus import seed_folder, words
from agentkit.corpus.generate import generate
from agentkit.corpus.normalise import file_name
from agentkit.record_corpus import COUNT, record
from agentkit.serving.models import SMOLLM2, resolve_model

pytestmark = pytest.mark.integration


def test_recording_again_gives_the_shipped_bytes() -> None:
    """One session of each kind and of each refused family, so that all paths are walked."""
    scenarios = generate(COUNT, seed=0)
    first: dict[str, int] = {}
    for place, scenario in enumerate(scenarios):
        first.setdefault(scenario.family if scenario.refusal else scenario.kind, place)
    shipped = seed_folder()
    made = dict(
        record(
            scenarios, 0, harness=harnesses.get("pi"), backend=sandboxes.backend(),
            concurrency=3, only=sorted(first.values()),
        )
    )  # fmt: skip
    assert len(made) == len(first) >= 12
    for place, data in made.items():
        assert data == (shipped / file_name(0, place)).read_bytes(), scenarios[place].family


def test_shipped_sessions_hold_what_their_scenarios_say() -> None:
    scenarios = generate(COUNT, seed=0)
    folder = seed_folder()
    assert sorted(p.name for p in folder.iterdir()) == [file_name(0, i) for i in range(COUNT)]
    kinds: Counter[str] = Counter()
    for place, scenario in enumerate(scenarios):
        text = (folder / file_name(0, place)).read_text()
        records = [json.loads(line) for line in text.splitlines()]
        assert records[0]["version"] == 3 and records[0]["cwd"] == "/work"
        messages = [r["message"] for r in records if r["type"] == "message"]
        (wish,) = [m["content"][0]["text"] for m in messages if m["role"] == "user"]
        assert wish == scenario.wish
        blocks = [b for m in messages if m["role"] == "assistant" for b in m["content"]]
        calls = [(b["name"], b["arguments"]) for b in blocks if b["type"] == "toolCall"]
        assert calls == [(c.name, c.arguments) for turn in scenario.turns for c in turn]
        if not scenario.refusal:
            kinds[scenario.kind] += 1
            last = [m for m in messages if m["role"] == "toolResult"][-1]
            assert last["content"][0]["text"] == f"{scenario.expected}\n", scenario.family
    assert sum(kinds.values()) >= 520 and min(kinds.values()) >= 100


def test_nouns_and_colours_are_one_token_behind_a_space_and_behind_a_quote() -> None:
    """What the word lists promise: a name is copied token by token, wherever it stands."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(resolve_model(SMOLLM2) / "tokenizer.json"))
    for word in (*words.NOUNS, *words.COLORS):
        for before in (" ", "'"):
            tokens = tokenizer.encode(f"{before}{word},", add_special_tokens=False).tokens
            assert tokens in (["\u0120" + word, ","], ["'", word, ","]), tokens
