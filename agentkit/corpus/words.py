"""Layer: sources. Word lists from which the scenario families draw names.

All words are common English ones, since a small model has to copy them exactly. A test holds the
lists to what the generated programs need: no Python keyword, builtin or standard module name.
"""

from __future__ import annotations

NOUNS: tuple[str, ...] = (
    "apple", "river", "stone", "cloud", "maple", "tiger", "lemon", "robot", "piano", "candle",
    "forest", "marble", "silver", "garden", "pepper", "violet", "copper", "button", "window",
    "rocket", "banana", "bridge", "camera", "castle", "cherry", "circle", "coffee", "cotton",
    "desert", "dragon", "engine", "falcon", "flower", "guitar", "hammer", "harbor", "island",
    "jacket", "kettle", "ladder", "lizard", "magnet", "market", "meadow", "mirror", "monkey",
    "mountain", "needle", "ocean", "orange", "orchid", "oven", "paper", "pearl", "pencil",
    "planet", "pillow", "pocket", "potato", "puzzle", "rabbit", "ribbon", "saddle", "salmon",
    "sailor", "shadow", "shelter", "spider", "spoon", "squirrel", "stable", "station", "sugar",
    "summer", "sunset", "temple", "thunder", "ticket", "tomato", "tower", "train", "tunnel",
    "valley", "velvet", "village", "wagon", "walnut", "water", "whale", "winter", "wizard",
    "yellow", "anchor", "basket", "beacon", "blanket",
)  # fmt: skip

FILE_STEMS: tuple[str, ...] = (
    "notes", "items", "stock", "orders", "visits", "events", "points", "scores", "prices",
    "parts", "teams", "rooms", "guests", "books", "songs", "plants", "pets", "tools", "toys",
    "trips", "meals", "shops", "crops", "boats",
)  # fmt: skip

FUNCTIONS: tuple[str, ...] = (
    "total", "amount", "score", "price", "width", "height", "speed", "cost", "profit",
    "volume", "weight", "length", "depth", "growth", "bonus", "margin", "salary", "discount",
    "double", "shift", "scale", "adjust", "convert", "combine",
)  # fmt: skip

VARIABLES: tuple[str, ...] = (
    "total", "count", "value", "result", "amount", "score", "price", "width", "height",
    "speed", "weight", "number", "answer", "length", "balance", "budget", "message", "target",
    "level", "letter",
)  # fmt: skip

SETTINGS: tuple[str, ...] = (
    "port", "host", "mode", "level", "color", "theme", "limit", "timeout", "retries", "workers",
    "speed", "width", "height", "volume", "language", "region", "owner", "profile", "backend",
    "channel", "depth", "delay", "budget", "quota",
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
    "red", "blue", "green", "black", "white", "pink", "gray", "brown", "purple", "gold",
    "silver", "orange",
)  # fmt: skip
