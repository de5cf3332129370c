"""Dynamic batching: whatever waits when the engine is free is translated together, sentences of all requests mixed.

The queue counts sentences and has a bound: a request that does not fit is refused at once, so that waiting never grows beyond
what the bound allows. Sentences leave in the order they came; each goes back to the request that brought it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

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
        while jobs := self._take():
            lines = [line for job in jobs for line in job.lines]
            try:
                found = self.engine.translate(lines, max(job.n_best for job in jobs))
                results = iter(found)
                answers = [[next(results)[: job.n_best] for _ in job.lines] for job in jobs]
                for job, answer in zip(jobs, answers, strict=True):
                    job.loop.call_soon_threadsafe(_resolve, job.done, answer, None)
            except Exception as error:  # one batch that fails must not end the server
                log.exception("a batch of %d sentences failed", len(lines))
                for job in jobs:
                    job.loop.call_soon_threadsafe(_resolve, job.done, None, error)
            with self.ready:
                self.sentences -= len(lines)

    def _take(self) -> list[Job]:
        """The jobs of the next batch, those that were cancelled left out; none when closing and nothing waits."""
        with self.ready:
            while True:
                jobs: list[Job] = []
                while self.waiting and sum(len(job.lines) for job in jobs) < self.batch:
                    job = self.waiting.popleft()
                    if job.done.cancelled():
                        self.sentences -= len(job.lines)
                    else:
                        jobs.append(job)
                if jobs or self.closing:
                    return jobs
                self.ready.wait()


def _resolve(future: asyncio.Future[list[list[str]]], answer: list[list[str]] | None, error: Exception | None) -> None:
    if future.done():  # the request has timed out
        return
    if error is not None or answer is None:
        future.set_exception(error or RuntimeError("no answer"))
    else:
        future.set_result(answer)
