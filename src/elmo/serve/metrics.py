"""What a server counts, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts of values by their size."""

    def __init__(self, bounds: Iterable[float]) -> None:
        """Count values up to each bound, and all."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Its samples; each bucket counts all that is up to its bound."""
        total = 0
        comma = "," if labels else ""
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self._sum:.6f}"
        yield f"{name}_count{braces} {total}"


class Metrics:
    """Counters of one server. Requests are counted by the event loop, batches by the model's thread."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batch_requests = Histogram(_SIZES)
        self._tokens = 0
        self._busy = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Speed of the model so far, while it was busy."""
        return self._tokens / self._busy if self._busy else 0.0

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that has been answered; 499 is one whose client went away."""
        self._requests[path, status] += 1
        self._seconds.setdefault(path, Histogram(_SECONDS)).add(seconds)

    def batch(self, requests: int, tokens: int, seconds: float) -> None:
        """Count what was computed together."""
        self._batch_requests.add(requests)
        self._tokens += tokens
        self._busy += seconds

    def text(self, requests: int, tokens: int) -> str:
        """All samples, and what is in the house now."""
        return "\n".join([*self._lines(requests, tokens), ""])

    def _lines(self, requests: int, tokens: int) -> Iterator[str]:
        yield from _head("elmo_requests_total", "counter", "Requests by path and status.")
        for (path, status), count in sorted(self._requests.items()):
            yield f'elmo_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from _head("elmo_request_seconds", "histogram", "Time from a request's head to the end of its answer.")
        for path, histogram in sorted(self._seconds.items()):
            yield from histogram.lines("elmo_request_seconds", f'path="{path}"')
        yield from _head("elmo_batch_requests", "histogram", "Requests that were computed together.")
        yield from self._batch_requests.lines("elmo_batch_requests")
        for name, kind, help, value in (
            ("elmo_tokens_total", "counter", "Tokens that were embedded.", self._tokens),
            ("elmo_busy_seconds_total", "counter", "Time that the model's thread computed.", round(self._busy, 6)),
            ("elmo_house_requests", "gauge", "Requests in the house.", requests),
            ("elmo_house_tokens", "gauge", "Tokens of the requests in the house.", tokens),
        ):
            yield from _head(name, kind, help)
            yield f"{name} {value}"


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"
