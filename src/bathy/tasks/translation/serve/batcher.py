"""Dynamic batching: whatever waits when the engine is free is translated together, sentences of all requests mixed.

The queue counts sentences and has a bound: a request that does not fit is refused at once, so that waiting never grows beyond
what the bound allows. Requests take turns: one with more sentences than a batch holds goes to the end of the queue after each,
so that a long text does not keep short ones waiting. A request's sentences stay in their order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bathy.tasks.translation.serve.engines import Engine

log = logging.getLogger("bathy.serve")


class QueueFull(Exception):  # noqa: N818, it names what happened
    """More sentences than the queue has room for."""


@dataclass
class Job:
    """One request's sentences, and where its translations are awaited."""

    lines: list[str]
    n_best: int
    done: asyncio.Future[list[list[str]]]
    loop: asyncio.AbstractEventLoop
    taken: int = 0
    """Sentences that have left the queue."""
    found: list[list[str]] = field(default_factory=list)
    failed: bool = False

    @property
    def over(self) -> bool:
        """Whether nobody waits for the rest: the request timed out, or a batch with some of it failed."""
        return self.failed or self.done.cancelled()


Part = tuple[Job, list[str]]
"""Sentences of one job in a batch."""


class Batcher:
    """An engine with its queue and the one thread that feeds it."""

    def __init__(self, engine: Engine, batch: int, room: int) -> None:
        self.engine, self.batch, self.room = engine, batch, room
        self.waiting: deque[Job] = deque()
        self.sentences = 0
        """Sentences that wait or are being translated."""
        self.ready = threading.Condition()
        self.closing = False
        self.thread = threading.Thread(target=self._work, name=f"{engine.source}-{engine.target}", daemon=True)
        self.thread.start()

    async def translate(self, lines: Sequence[str], n_best: int) -> list[list[str]]:
        """The translations of the lines, in their order; QueueFull where they do not fit."""
        if not lines:
            return []
        loop = asyncio.get_running_loop()
        job = Job(list(lines), n_best, loop.create_future(), loop)
        with self.ready:
            if self.closing or self.sentences + len(lines) > self.room:
                raise QueueFull
            self.sentences += len(lines)
            self.waiting.append(job)
            self.ready.notify()
        return await job.done

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        with self.ready:
            self.closing = True
            self.ready.notify()
        self.thread.join()

    def _work(self) -> None:
        while parts := self._take():
            lines = [line for _, some in parts for line in some]
            try:
                found = iter(self.engine.translate(lines, max(job.n_best for job, _ in parts)))
                for job, some in parts:
                    job.found += [next(found)[: job.n_best] for _ in some]
                    if len(job.found) == len(job.lines):
                        job.loop.call_soon_threadsafe(_resolve, job.done, job.found, None)
            except Exception as error:  # one batch that fails must not end the server
                log.exception("a batch of %d sentences failed", len(lines))
                for job, _ in parts:
                    job.failed = True
                    job.loop.call_soon_threadsafe(_resolve, job.done, None, error)
            with self.ready:
                self.sentences -= len(lines)

    def _take(self) -> list[Part]:
        """The next batch, without jobs that are over; none when closing and nothing waits."""
        with self.ready:
            while True:
                parts: list[Part] = []
                room = self.batch
                unfinished: list[Job] = []
                while self.waiting and room:
                    job = self.waiting.popleft()
                    if job.over:
                        self.sentences -= len(job.lines) - job.taken
                        continue
                    some = job.lines[job.taken : job.taken + room]
                    job.taken, room = job.taken + len(some), room - len(some)
                    parts.append((job, some))
                    if job.taken < len(job.lines):
                        unfinished.append(job)
                self.waiting += unfinished
                if parts or self.closing:
                    return parts
                self.ready.wait()


def _resolve(future: asyncio.Future[list[list[str]]], answer: list[list[str]] | None, error: Exception | None) -> None:
    if future.done():  # the request has timed out
        return
    if error is not None or answer is None:
        future.set_exception(error or RuntimeError("no answer"))
    else:
        future.set_result(answer)
