"""Layer: sources. Trace data sets on the Hub, through ``datasets`` (and ``teich``, which it uses).

``datasets`` detects session traces and keeps the raw file in the column ``trace``; our readers
take that text, so that a Hub trace and a local file give the same trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentkit.errors import TraceError
from agentkit.trajectories.pi import Origin


def session_texts(name: str) -> Iterator[tuple[Origin, str]]:
    """Stream (origin, raw session text) over the rows of the data set ``name``.

    Raises TraceError with one line where it cannot be reached or holds no session traces.
    """
    import datasets

    try:
        rows = datasets.load_dataset(name, split="train", streaming=True)
        licence = str(getattr(rows.info, "license", "") or "unknown")
        for index, row in enumerate(rows):
            text = row.get("trace")
            if not isinstance(text, str):
                raise TraceError(name, "no column trace", "a data set of session traces")
            yield Origin(name, str(row.get("file_path") or f"row {index}"), licence), text
    except TraceError:
        raise
    except ImportError as error:
        raise TraceError(name, str(error), "the package teich", "pip install teich") from error
    except Exception as error:  # datasets, hub and http clients raise dozens of classes
        reason = str(error).splitlines()[0][:200] if str(error) else ""
        raise TraceError(
            name,
            f"the Hub data set could not be loaded ({type(error).__name__}: {reason})",
            "a reachable data set of session traces",
            "check the name and the network, or give a folder",
        ) from error
