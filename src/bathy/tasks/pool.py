"""All cores, in order, in constant memory: a map over an endless stream of work."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import Self, TypeVar

from bathy.errors import DataError

T = TypeVar("T")
R = TypeVar("R")


MOST = 512
"""Processes that are started at most, whatever is asked for: more would only wait for each other."""


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Worker processes that start when first needed and serve several maps; close it, or use it in a `with` block."""

    def __init__(self, workers: int = 0) -> None:
        self.workers = min(workers or cores(), MOST)
        self.executor: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """`map(function, items)` in order, a few items under way at a time; a single item is done here."""
        stream = iter(items)
        first = list(islice(stream, 2))
        if self.workers == 1 or len(first) < 2:
            yield from map(function, first)
            yield from map(function, stream)
            return
        submit = self._started().submit
        waiting: deque[Future[R]] = deque(submit(function, item) for item in first)
        try:
            waiting.extend(submit(function, item) for item in islice(stream, 2 * self.workers))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(submit(function, item) for item in islice(stream, 1))
        except BrokenProcessPool as error:
            raise DataError(
                f"one of {self.workers} worker processes died: out of memory (try fewer), or started from a script "
                "whose work is not under `if __name__ == '__main__':`"
            ) from error
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the workers."""
        if self.executor:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> ProcessPoolExecutor:
        if self.executor is None:
            context = multiprocessing.get_context("spawn")
            self.executor = ProcessPoolExecutor(self.workers, context, initializer=_leave_with_parent)
        return self.executor


def _leave_with_parent() -> None:
    """End this worker when its parent is gone, even killed; tokenisers must not start threads of their own here."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), daemon=True).start()


def _leave_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
