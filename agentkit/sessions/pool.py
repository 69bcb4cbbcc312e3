"""Layer: work. Work in sandboxes side by side in threads, cancelled without leftovers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from agentkit.errors import SandboxError
from agentkit.sandboxes.base import Limits, Mount, Sandbox, SandboxBackend

Job = dict[str, Any]
R = TypeVar("R")


class CancellableBackend(SandboxBackend):
    """A back end whose open sandboxes can all be closed at once from another thread."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.backend, self.name = backend, backend.name
        self.lock = threading.Lock()
        self.boxes: set[Sandbox] = set()
        self.cancelled = threading.Event()

    def open(
        self, *, limits: Limits, mounts: Sequence[Mount] = (), gateway_socket: Path | None = None
    ) -> Sandbox:
        if self.cancelled.is_set():
            raise SandboxError("sandbox", "cancelled")
        box = self.backend.open(limits=limits, mounts=mounts, gateway_socket=gateway_socket)
        with self.lock:
            self.boxes = {b for b in self.boxes if not getattr(b, "closed", False)} | {box}
        if self.cancelled.is_set():
            box.close()
        return box

    def enforcement(self) -> dict[str, str]:
        return self.backend.enforcement()

    def cancel(self) -> None:
        """Close all sandboxes; commands that run in them fail at once, and no new one opens."""
        self.cancelled.set()
        with self.lock:
            boxes, self.boxes = self.boxes, set()
        for box in boxes:
            box.close()


def run_pool(
    work: Callable[..., R],
    jobs: Iterable[Job],
    concurrency: int,
    on_result: Callable[[Job, R], None] | None = None,
) -> Iterator[R]:
    """Yield ``work(**job)`` for each job as each one ends.

    Jobs are drawn from the iterable only as places fall free. Leaving the loop early, an error or
    an interrupt closes every sandbox that is open and waits for the threads.
    """
    backends: dict[int, CancellableBackend] = {}
    waiting: dict[Future[R], Job] = {}
    todo = iter(jobs)
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="session")
    try:
        while True:
            while len(waiting) < concurrency and (job := next(todo, None)) is not None:
                given = job["backend"]
                shared = backends.setdefault(id(given), CancellableBackend(given))
                waiting[pool.submit(work, **{**job, "backend": shared})] = job
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                job, result = waiting.pop(future), future.result()
                if on_result is not None:
                    on_result(job, result)
                yield result
    finally:
        if waiting:
            for shared in backends.values():
                shared.cancel()
        pool.shutdown(wait=True, cancel_futures=True)
