"""`elmo bench`: how fast a model embeds on this machine, by precision, sentences at a time and their length."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from elmo.embed import Embedder, EmbedSettings
from elmo.engine import Precision
from elmo.errors import ElmoError
from elmo.formats.bundle import Bundle

_VOCABULARY = 5000  # words of the text that is made up
_LETTERS = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What to measure."""

    precisions: tuple[Precision, ...]
    """One table row for each, and for each of the following."""
    at_a_time: tuple[int, ...] = (1, 16, 256)
    """Sentences in a call of `embed`."""
    lengths: tuple[int, ...] = (10, 20, 40)
    """Words in a sentence."""
    seconds: float = 1.0
    """Each row is repeated for so long."""
    device: str | None = None
    """Where to compute; where the model is if not given."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        for name in ("at_a_time", "lengths"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ElmoError(f"{name} is {getattr(self, name)!r}: give whole numbers, 1 or more")
        if not 0 < self.seconds <= 3600:
            raise ElmoError(f"seconds is {self.seconds!r}: give a time over 0, an hour at most")


@dataclass(frozen=True)
class Speed:
    """One row of the table."""

    precision: str
    at_a_time: int
    length: int
    words_per_second: float
    median_ms: float
    """Of a call."""


def bench(model: Bundle, settings: BenchSettings) -> Iterator[Speed]:
    """Measure row after row; a precision that is not to be had here is an error before the first.

    The text is made up, with words as frequent as in English, and new at each call as far as the vocabulary of 5,000
    goes: what is measured is embedding with a warm word cache, as in the middle of a large file.
    """
    text = _Text()
    for precision in settings.precisions:
        embedder = Embedder(model, EmbedSettings(precision=precision), device=settings.device)
        for _ in embedder.embed_iter([text.vocabulary[i : i + 20] for i in range(0, _VOCABULARY, 20)]):
            pass
        for at_a_time in settings.at_a_time:
            for length in settings.lengths:
                yield _measure(embedder, text, at_a_time, length, settings.seconds)


def _measure(embedder: Embedder, text: _Text, at_a_time: int, length: int, seconds: float) -> Speed:
    times: list[float] = []
    while not times or sum(times) < seconds:
        sentences = text.sentences(at_a_time, length)
        start = time.perf_counter()
        embedder.embed(sentences)
        times.append(time.perf_counter() - start)
    words = at_a_time * length * len(times)
    return Speed(embedder.precision, at_a_time, length, words / sum(times), 1000 * float(np.median(times)))


class _Text:
    """Sentences of made-up words, the same in every run."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        letters = [self._random.choice(_LETTERS, size=n) for n in self._random.integers(1, 12, size=_VOCABULARY)]
        self.vocabulary = ["".join(word) for word in letters]
        shares = 1 / (np.arange(_VOCABULARY) + 2.7)  # Zipf's law, as Mandelbrot fitted it
        self._shares = shares / shares.sum()

    def sentences(self, count: int, length: int) -> list[list[str]]:
        drawn = self._random.choice(_VOCABULARY, p=self._shares, size=(count, length))
        return [[self.vocabulary[i] for i in row] for row in drawn.tolist()]


def machine() -> str:
    """What it ran on, in a line."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(errors="replace").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        cpu = names[0] if names else cpu
    return f"{cpu}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
