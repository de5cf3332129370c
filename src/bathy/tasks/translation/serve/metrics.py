"""Counters and histograms in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds that separate the histogram's buckets."""


class Metrics:
    """What a server has done; used from the event loop alone."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.sentences = self.characters = 0
        self.buckets, self.seconds, self.count = [0] * (len(BOUNDS) + 1), 0.0, 0

    def record(self, path: str, status: int, seconds: float) -> None:
        """One answered request."""
        self.requests[path, status] += 1
        if path == "/translate":
            self.buckets[bisect_left(BOUNDS, seconds)] += 1
            self.seconds, self.count = self.seconds + seconds, self.count + 1

    def render(self, waiting: Mapping[str, int]) -> str:
        """The page that Prometheus reads; `waiting` is the number of sentences in each model's queue."""
        lines = ["# TYPE bathy_requests_total counter"]
        lines += [
            f'bathy_requests_total{{path="{path}",status="{status}"}} {n}'
            for (path, status), n in sorted(self.requests.items())
        ]
        lines += ["# TYPE bathy_sentences_total counter", f"bathy_sentences_total {self.sentences}"]
        lines += ["# TYPE bathy_characters_total counter", f"bathy_characters_total {self.characters}"]
        lines += ["# TYPE bathy_queue_sentences gauge"]
        lines += [f'bathy_queue_sentences{{model="{name}"}} {n}' for name, n in sorted(waiting.items())]
        lines.append("# TYPE bathy_translate_seconds histogram")
        total = 0
        for bound, n in zip([*map(str, BOUNDS), "+Inf"], self.buckets, strict=True):
            total += n
            lines.append(f'bathy_translate_seconds_bucket{{le="{bound}"}} {total}')
        lines += [f"bathy_translate_seconds_sum {self.seconds:.6f}", f"bathy_translate_seconds_count {self.count}"]
        return "\n".join(lines) + "\n"
