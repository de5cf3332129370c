"""SIGINT and SIGTERM ask a run to stop after its current update; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Stop:
    """Whether a signal has come, and which."""

    asked: bool = False
    name: str = ""


@contextmanager
def stopping() -> Iterator[Stop]:
    """A block in which signals set the given `Stop`; outside the main thread, where none arrive, it does nothing."""
    stop = Stop()

    def ask(number: int, frame: object) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked, stop.name = True, signal.Signals(number).name

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
