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
from typing import TypeVar

from bathy.errors import DataError

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel_map(function: Callable[[T], R], items: Iterable[T], workers: int = 0) -> Iterator[R]:
    """`map(function, items)` on `workers` processes (0: all cores; 1: here), with a few items under way at a time."""
    workers = workers or cores()
    stream = iter(items)
    first = list(islice(stream, 2))
    if workers == 1 or len(first) < 2:
        yield from map(function, first)
        yield from map(function, stream)
        return
    executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_leave_with_parent)
    waiting: deque[Future[R]] = deque(executor.submit(function, item) for item in first)
    try:
        waiting.extend(executor.submit(function, item) for item in islice(stream, 2 * workers))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(executor.submit(function, item) for item in islice(stream, 1))
    except BrokenProcessPool as error:
        raise DataError(f"one of {workers} worker processes was killed (out of memory?); try fewer workers") from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _leave_with_parent() -> None:
    """End this worker when its parent is gone, even killed; tokenisers must not start threads of their own here."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), daemon=True).start()


def _leave_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
