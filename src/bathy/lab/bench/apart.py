"""A peer in a process of its own, one step at a time: in ours it would have our settings of memory and of small numbers."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from importlib import import_module
from types import TracebackType
from typing import Self

import torch


class Apart:
    """Calling it takes one step of what `function(*args)` of a module returns, there; `seconds` is that step's CPU time."""

    def __init__(self, module: str, function: str, *args: object) -> None:
        start = f"import sys; from {__name__} import serve; serve(*sys.argv[1:])"
        command = [sys.executable, "-c", start, module, function, json.dumps(args)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds = 0.0
        self.memory = 0.0
        """Peak memory of its process so far, in MB."""

    def __call__(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the peer's process ended with code {self._process.wait()}; its error stands above")
        self.seconds, self.memory = json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def peak_memory() -> float:
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(module: str, function: str, args: str) -> None:
    """The other end: a step for each line of standard input."""
    torch.set_num_threads(1)
    step = getattr(import_module(module), function)(*json.loads(args))
    for _ in sys.stdin:
        start = time.process_time()
        step()
        sys.stdout.write(json.dumps([time.process_time() - start, peak_memory()]) + "\n")
        sys.stdout.flush()
