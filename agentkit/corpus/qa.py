"""Layer: sources. QA families: a question whose answer a command computes from the workspace.

What each trace shows: message 1 prints every file of the workspace; message 2 runs one command
that ends in ``| tee answer.txt``, so that the command, the answer and where it was written all
stand in the trace. The answer is nowhere in the wish.
"""

from __future__ import annotations

import random

from agentkit.corpus.scenario import Family, Scenario, bash, lines, pick, show_all, stem, wording
from agentkit.corpus.words import FILE_STEMS, NOUNS

ENDINGS = (
    "Write only the {thing} to answer.txt.",
    "Put the {thing} into answer.txt.",
    "The {thing} goes to answer.txt.",
    "Save the {thing} in answer.txt.",
    "Answer with the {thing} in answer.txt.",
    "I want just the {thing} in answer.txt.",
)


def _scenario(
    rng: random.Random,
    family: str,
    question: str,
    thing: str,
    files: dict[str, bytes],
    command: str,
    answer: object,
) -> Scenario:
    wish = f"{question} {rng.choice(ENDINGS).format(thing=thing)}"
    turns = ((show_all(files),), (bash(f"{command} | tee answer.txt"),))
    return Scenario(family, "qa", wish, files, turns, "Done.", str(answer))


def count_lines(rng: random.Random) -> Scenario:
    """Number of lines of a file."""
    path = f"{stem(rng, NOUNS, FILE_STEMS)}.{rng.choice(['txt', 'log', 'md', 'csv'])}"
    rows = [" ".join(pick(rng, NOUNS, rng.randint(1, 3))) for _ in range(rng.randint(3, 12))]
    cores = (
        "How many lines does {path} have?",
        "Count all lines of {path}.",
        "What is the number of lines in {path}?",
        "How long is {path}, in lines?",
        "Tell me how many lines there are in {path}.",
    )
    question = wording(rng, cores, path=path)
    return _scenario(
        rng, "count_lines", question, "number", {path: lines(*rows)}, f"wc -l < {path}", len(rows)
    )


def sum_column(rng: random.Random) -> Scenario:
    """Sum of one column of a CSV file without a header."""
    path = f"{stem(rng, NOUNS, FILE_STEMS)}.csv"
    column = rng.randint(2, 3)
    size = rng.randint(3, 6)
    rows = [(rng.choice(NOUNS), rng.randint(1, 40), rng.randint(1, 40)) for _ in range(size)]
    cores = (
        "What is the sum of column {column} of {path}?",
        "Add up column {column} of {path}.",
        "Give me the total of column {column} in {path}.",
        "Column {column} of {path} holds numbers. What do they add up to?",
        "I need the sum over column {column} of {path}, fields are split by commas.",
    )
    question = wording(rng, cores, path=path, column=column)
    command = f"awk -F, '{{s += ${column}}} END {{print s}}' {path}"
    data = lines(*(",".join(map(str, row)) for row in rows))
    answer = sum(int(row[column - 1]) for row in rows)
    return _scenario(rng, "sum_column", question, "number", {path: data}, command, answer)


def nth_line(rng: random.Random) -> Scenario:
    """One line of a file."""
    path = f"{stem(rng, NOUNS, FILE_STEMS)}.txt"
    rows = [" ".join(pick(rng, NOUNS, rng.randint(1, 3))) for _ in range(rng.randint(5, 10))]
    n = rng.randint(2, len(rows))
    cores = (
        "What is line {n} of {path}?",
        "Copy line {n} of {path}.",
        "Which text stands in line {n} of {path}?",
        "Take line number {n} from {path}.",
        "I need line {n} out of {path}.",
    )
    question = wording(rng, cores, path=path, n=n)
    command = f"sed -n {n}p {path}"
    return _scenario(rng, "nth_line", question, "line", {path: lines(*rows)}, command, rows[n - 1])


FAMILIES: tuple[Family, ...] = (count_lines, sum_column, nth_line)
