"""Exchanged names: the same everywhere in a demonstration, distinct where they were distinct."""

from __future__ import annotations

import json
import re

import numpy as np

from agentkit.corpus.words import FILE_STEMS, FUNCTIONS, NOUNS, SETTINGS
from agentkit.training.renaming import rename

CALL = {"name": "write", "arguments": {"path": "apple_notes.txt", "content": "apple river\n"}}
MESSAGES = [
    {"role": "system", "content": "apple stays in /work"},
    {"role": "user", "content": "Put Apple and river into apple_notes.txt; 17 pineapples."},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "apple", "function": CALL}]},
    {"role": "tool", "tool_call_id": "apple", "content": "Successfully wrote apple_notes.txt"},
]


def test_names_are_exchanged_alike_in_instruction_calls_and_results():
    for seed in range(20):
        system, user, assistant, tool = rename(MESSAGES, np.random.default_rng(seed))
        assert system == MESSAGES[0]
        found = re.fullmatch(
            r"Put (\w+) and (\w+) into ([a-z]+)_([a-z]+)\.txt; 17 pineapples\.", user["content"]
        )
        upper, other, noun, stem = found.groups()
        assert upper == noun.capitalize() and noun in NOUNS and other in NOUNS and noun != other
        assert stem in FILE_STEMS
        arguments = assistant["tool_calls"][0]["function"]["arguments"]
        assert arguments == {"path": f"{noun}_{stem}.txt", "content": f"{noun} {other}\n"}
        assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"] == "apple"
        assert assistant["tool_calls"][0]["function"]["name"] == "write"
        assert tool["content"] == f"Successfully wrote {noun}_{stem}.txt"


def test_the_exchange_is_one_to_one_and_leaves_its_input_alone():
    before = json.dumps(MESSAGES)
    text = [{"role": "user", "content": " ".join(NOUNS)}]
    words = rename(text, np.random.default_rng(0))[0]["content"].split()
    assert sorted(words) == sorted(NOUNS) and words != list(NOUNS)
    rename(MESSAGES, np.random.default_rng(1))
    assert json.dumps(MESSAGES) == before


def test_variables_that_tasks_misspell_stay_and_letter_case_is_kept():
    text = [{"role": "user", "content": "Extend total: CHANNEL = 5, adjust(x), Total, extend totl"}]
    for seed in range(20):
        found = rename(text, np.random.default_rng(seed))[0]["content"]
        setting, function = re.fullmatch(
            r"Extend total: ([A-Z]+) = 5, ([a-z]+)\(x\), Total, extend totl", found
        ).groups()
        assert setting.lower() in SETTINGS and function in FUNCTIONS
