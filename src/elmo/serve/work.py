"""All computation of a server: one thread has the model, and what requests want at the same time is batched for it.

Sentences of concurrent requests are embedded together, up to a budget of tokens: the model reads its weights once for
all of them. Where there are more than fit a batch, each request gets its turn, so a large one does not hold up small
ones behind it.

A request in the house counts with its tokens until its answer is sent (`visit`): that bounds the memory. Beyond the
bound it is refused at once, rather than answered late. A request that is given up leaves the queue.

Shapes: L layers, T tokens, D width of a layer.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from elmo.api import Model
from elmo.embed import EmbedOptions, Sentence, Vectors, as_tokens
from elmo.serve.metrics import Metrics
from elmo.serve.refused import Refused
from elmo.serve.settings import Settings
from elmo.text import Tokenizer

Result = TypeVar("Result")

_SHARE = 4  # a request has at most this part of a batch at a turn, while others wait


@dataclass
class _Visit:
    """What a request holds."""

    tokens: int = 0


_VISIT: ContextVar[_Visit | None] = ContextVar("visit", default=None)


@dataclass(eq=False)
class _Job:
    """What a request waits for: what a function gives for each of its sentences."""

    function: Callable[[list[list[str]]], list[Any]]
    """It is called with the sentences of several jobs that have the same one; for a job without any, with none."""
    sentences: Sequence[list[str]]
    tokens: int
    """Of its sentences; of a job without any, those that its function reads."""
    future: asyncio.Future[list[Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    results: list[Any] = field(default_factory=list)
    taken: int = 0
    since: float = field(default_factory=time.monotonic)

    def take(self, tokens: int) -> list[list[str]]:
        """The next sentences, of at most so many tokens, but one at least."""
        start = self.taken
        while self.taken < len(self.sentences):
            tokens -= len(self.sentences[self.taken])
            if tokens < 0 and self.taken > start:
                break
            self.taken += 1
        return list(self.sentences[start : self.taken])

    @property
    def waiting(self) -> int:
        """Tokens that are still to be computed."""
        return sum(map(len, self.sentences[self.taken :]))


_Batch = list[tuple[_Job, list[list[str]]]]
"""Jobs that have the same function, and which of their sentences are computed together."""


class Work:
    """The model's thread and the queue before it. Its methods belong to the event loop."""

    def __init__(self, model: Model, settings: Settings, metrics: Metrics) -> None:
        """Take a model; the thread starts with the first job, and `close` ends it."""
        self.model = model
        self.settings = settings
        self.draining = False
        """Set when the server is about to end: connections are closed behind their answers."""
        self._metrics = metrics
        self._requests = 0
        self._tokens = 0
        self._queue: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        options: EmbedOptions = {"layers": "all", "precision": settings.precision}
        self._embedder = model.embedder(**options)
        self._embed = self._embedder.embed  # bound once: what is batched together has the same function
        self._embed([["warm"]])

    @property
    def precision(self) -> str:
        """What the model is computed in."""
        return self._embedder.precision

    async def layers(self, sentences: Sequence[Sentence]) -> list[Vectors]:
        """All layers of each sentence, float32 `(L, T, D)`, batched with what other requests ask for.

        Args:
            sentences: each a list of tokens, or a string that is split at white space.

        Raises:
            Refused: they are beyond the limits of a request or of the house, or it took too long.
        """
        return await self.each(self._embed, sentences)

    async def each(
        self, function: Callable[[list[list[str]]], list[Result]], sentences: Sequence[Sentence]
    ) -> list[Result]:
        """What a function gives for each sentence, batched with other requests that come with the same function.

        Args:
            function: of sentences as tokens, a result for each, whatever its company; it is run on the model's thread.
            sentences: each a list of tokens, or a string that is split at white space.

        Raises:
            Refused: as in `layers`.
        """
        tokens = [as_tokens(sentence) for sentence in sentences]
        self.check(tokens)
        return await self._wait(_Job(function, tokens, sum(map(len, tokens)))) if tokens else []

    async def run(self, function: Callable[[], Result], tokens: int = 0) -> Result:
        """What a function returns, run on the model's thread when its turn comes, under the same limits.

        Args:
            function: takes nothing; it must not touch the event loop.
            tokens: how many it reads, to be counted.

        Raises:
            Refused: the house is full, or it took too long.
        """
        result: list[Result] = await self._wait(_Job(lambda _: [function()], (), tokens))
        return result[0]

    def check(self, sentences: Sequence[Sequence[str]]) -> None:
        """Refuse sentences, as tokens, that no request may have."""
        allowed = self.settings
        for what, given, limit in (
            ("sentences", len(sentences), allowed.max_sentences),
            ("tokens", sum(map(len, sentences)), allowed.max_tokens),
            ("tokens in one sentence", max(map(len, sentences), default=0), allowed.max_length),
        ):
            if given > limit:
                raise Refused(
                    413, "too_large", f"{given:,} {what}: at most {limit:,} are allowed; send fewer at a time"
                )

    @contextmanager
    def visit(self) -> Iterator[None]:
        """The stay of a request: what it asks for in the block is counted until the block ends."""
        if self._requests >= self.settings.max_requests:
            raise self._full(f"{self._requests:,} requests are in the house, which is all there may be")
        visit = _Visit()
        before = _VISIT.set(visit)
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._tokens -= visit.tokens
            _VISIT.reset(before)

    @property
    def load(self) -> tuple[int, int]:
        """Requests and tokens in the house."""
        return self._requests, self._tokens

    async def close(self) -> None:
        """Finish what is queued and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def _wait(self, job: _Job) -> list[Any]:
        visit = _VISIT.get()
        if visit is None:
            with self.visit():
                return await self._wait(job)
        if self._tokens + job.tokens > self.settings.max_house_tokens:
            raise self._full(f"{self._tokens:,} tokens are waiting, and these would be too many")
        self._tokens += job.tokens
        visit.tokens += job.tokens
        self._put(job)
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await job.future
        except TimeoutError:
            message = f"not computed within {self.settings.timeout:g} seconds: try again later, or send less at a time"
            raise Refused(503, "timeout", message, retry_after=self._retry_after()) from None
        finally:
            job.future.cancel()
            with self._changed:
                if job in self._queue:
                    self._queue.remove(job)

    def _full(self, what: str) -> Refused:
        retry_after = self._retry_after()
        return Refused(429, "busy", f"{what}: try again in {retry_after} s", retry_after=retry_after)

    def _retry_after(self) -> int:
        """Seconds in which what is in the house should be done, by the speed so far."""
        return min(60, max(1, math.ceil(self._tokens / max(self._metrics.tokens_per_second, 1.0))))

    def _put(self, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise Refused(503, "closing", "the server is ending: ask another", retry_after=1)
            self._queue.append(job)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="model", daemon=True)
            self._thread.start()

    # What follows runs on the model's thread.

    def _loop(self) -> None:
        while batch := self._next():
            started = time.monotonic()
            try:
                results = _compute(batch)
            except BaseException as error:
                _tell([job for job, _ in batch], error)
            else:
                tokens = sum(sum(map(len, sentences)) if job.sentences else job.tokens for job, sentences in batch)
                self._metrics.batch(len(batch), tokens, time.monotonic() - started)
                _deliver(batch, results)
                del results
            del batch  # nothing of a request is held while the next is waited for

    def _next(self) -> _Batch:
        """The next batch; nothing at the end."""
        with self._changed:
            while not (self._closed and not self._queue):
                if not self._queue:
                    self._changed.wait()
                elif not self._others_join(self._queue[0]):
                    return self._batch(self._queue[0])
        return []

    def _others_join(self, first: _Job) -> bool:
        """Wait for more, if the first job has not waited long enough and its batch is not full; whether it waited."""
        left = first.since + self.settings.wait_ms / 1000 - time.monotonic()
        if left <= 0 or self._closed or not first.sentences:
            return False
        alike = (job.waiting for job in self._queue if job.function == first.function)
        if sum(alike) >= self.settings.batch_tokens:
            return False
        self._changed.wait(left)
        return True

    def _batch(self, first: _Job) -> _Batch:
        """What is computed with the first job: a share of each that has the same function, as far as there is room."""
        room = self.settings.batch_tokens
        alike = [job for job in self._queue if job.function == first.function]
        share = room if len(alike) == 1 else max(1, room // _SHARE)
        batch: _Batch = []
        for job in alike:
            if room <= 0:
                break
            sentences = job.take(min(share, room))
            room -= sum(map(len, sentences))
            batch.append((job, sentences))
            self._queue.remove(job)
            if job.taken < len(job.sentences):
                self._queue.append(job)
        return batch


@cache
def tokenizer() -> Tokenizer:
    """The one that all requests for raw text share, and its cache of words with it."""
    return Tokenizer("en")


def _compute(batch: _Batch) -> list[Any]:
    together = [sentence for _, sentences in batch for sentence in sentences]
    return batch[0][0].function(together)


def _deliver(batch: _Batch, results: list[Any]) -> None:
    """Hand results to those who wait; all of a batch in one call, for waking the event loop costs."""
    if not batch[0][1]:  # a function that is run by itself
        batch[0][0].results = results
    else:
        each = iter(results)
        for job, sentences in batch:
            job.results += [next(each) for _ in sentences]
    finished = [job for job, _ in batch if job.taken == len(job.sentences)]

    def hand_over() -> None:
        for job in finished:
            if not job.future.done():
                job.future.set_result(job.results)

    _in_loop(finished, hand_over)


def _tell(jobs: list[_Job], error: BaseException) -> None:
    def hand_over() -> None:
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)

    _in_loop(jobs, hand_over)


def _in_loop(jobs: list[_Job], call: Callable[[], None]) -> None:
    if jobs and not (loop := jobs[0].future.get_loop()).is_closed():
        loop.call_soon_threadsafe(call)
