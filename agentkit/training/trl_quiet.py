"""Layer: work. Importing TRL without warnings about parts of it that are not used here."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def trl_import() -> Iterator[None]:
    """Hide that TRL's own vLLM client does not know this vLLM: the kit talks to vLLM by HTTP."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TRL currently supports vLLM versions")
        yield
