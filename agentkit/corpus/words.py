"""Layer: sources. Word lists from which the scenario families draw names.

All words are common English ones, since a small model has to copy them exactly. Nouns and colours
are one token of SmolLM2's vocabulary behind a space and behind a quote as well (which its
tokenizer splits before s, t, m, d, re, ve and ll): a wish has `` camera,75`` where the call has
``'camera,75``, and a word that falls apart in one of the two ("'summer" is ``'s`` and ``ummer``)
has to be learnt by itself. Tests hold the lists to that and to what the generated programs need:
no keyword, builtin or standard module.
"""

from __future__ import annotations

NOUNS: tuple[str, ...] = (
    "apple", "river", "cloud", "robot", "forest", "button", "window", "bridge", "camera",
    "castle", "circle", "engine", "flower", "ocean", "orange", "paper", "planet", "water",
    "winter", "yellow", "anchor", "branch", "finger", "chair", "house", "bird", "fish",
    "horse", "fire", "wind", "rain", "lake", "boat", "road", "wall", "glass", "plate", "bread",
    "rice", "corn", "fruit", "leaf", "grass", "farm", "city", "hill", "park", "box", "ball",
    "book", "coat", "ring", "iron", "wood", "rock", "wheel", "clock", "phone", "flag", "lion",
    "bear", "wolf", "office", "egg",
)  # fmt: skip

FILE_STEMS: tuple[str, ...] = (
    "notes", "items", "stock", "orders", "events", "points", "scores", "parts", "rooms",
    "books", "plants", "tools", "boats", "roads", "games", "votes", "tasks", "names", "labels",
    "levels", "cards", "coins", "seeds", "tracks",
)  # fmt: skip

FUNCTIONS: tuple[str, ...] = (
    "total", "amount", "score", "price", "width", "height", "speed", "cost", "profit",
    "volume", "weight", "length", "depth", "growth", "margin", "double", "shift", "scale",
    "adjust", "convert", "boost", "measure", "estimate", "charge",
)  # fmt: skip

VARIABLES: tuple[str, ...] = (
    "total", "count", "value", "result", "amount", "score", "price", "width", "height",
    "speed", "weight", "number", "answer", "length", "balance", "budget", "message", "target",
    "level", "record",
)  # fmt: skip

SETTINGS: tuple[str, ...] = (
    "port", "host", "mode", "level", "color", "theme", "limit", "timeout", "workers", "speed",
    "width", "height", "volume", "language", "region", "owner", "profile", "backend",
    "channel", "depth", "delay", "budget",
)  # fmt: skip

SECTIONS: tuple[str, ...] = (
    "server", "client", "database", "cache", "logging", "display", "network", "storage",
    "printer", "camera", "editor", "mail", "player", "engine", "worker",
)  # fmt: skip

NAMES: tuple[str, ...] = (
    "Ada", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kate", "Leo",
    "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Uma", "Vera", "Will", "Yara", "Zoe",
    "Anna", "Bob", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Julia", "Kevin",
    "Laura", "Mark", "Nina", "Oscar", "Peter", "Ruth", "Simon", "Tom", "Victor", "Wendy",
)  # fmt: skip

COLORS: tuple[str, ...] = (
    "blue", "green", "black", "white", "gray", "brown", "purple", "gold",
)  # fmt: skip
