"""What a step on a GPU reads, made ready on the host: numbers of fixed sizes in one buffer, sent by one copy.

A CUDA graph (`graphs.py`) replays kernels over the same memory, so nothing in a step may depend on a value that only
the device knows. What does depend on the text is found here, in the reader's thread: the window's distinct words by
their length, the rows of the head that its targets and samples touch, and which sample is which position's target.
Sizes are rounded up to a coarse grid by this step's numbers alone, never by what came before: a resumed run has the
same.

Shapes: B rows, T time steps, M = T * B positions of a direction in the order of time, N distinct words, S samples of a
direction, R rows of the head; N and R with their padding. 2 directions (forward, backward).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from elmo.chars import PAD
from elmo.lm.batches import Corpus, Ints
from elmo.lm.encoder import Groups
from elmo.lm.optimizers import Optimizer
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import Samples

_CUTS = (4, 8, 12, 15, 16)  # sixteenths of the words at which groups of like length end
_EVEN = 2  # a group's longest word is taken as a multiple of this


@dataclass(frozen=True)
class Shape:
    """The sizes of a step that differ from window to window: the key of its graph."""

    groups: Groups
    """Words by length: how many each group has, and how many characters of them are read."""
    rows: int
    """R; 0 where no rows are taken out of the head."""
    head_only: bool
    """Whether the biLM stays as it is."""

    @property
    def words(self) -> int:
        """N."""
        return sum(number for number, _ in self.groups)


@dataclass(frozen=True)
class Layout:
    """Where the parts of a step's buffer of 32-bit numbers lie."""

    shape: Shape
    rows: int
    """B."""
    steps: int
    """T."""
    samples: int
    """S; 0 for a softmax without them."""

    @property
    def parts(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in their order."""
        positions = self.rows * self.steps
        parts: dict[str, tuple[int, ...]] = {
            "rates": (3,),  # float32: see Optimizer.rates
            "kept": (self.rows,),
            "types": (self.shape.words,),
            "inputs": (2, self.steps, self.rows),
            "targets": (2, positions),
        }
        if self.samples:
            parts |= {
                "ids": (self.shape.rows,),
                "count": (1,),
                "tries": (2,),
                "places": (2 * positions + 2 * self.samples,),
                "hits": (2, positions),
            }
        return parts

    @property
    def size(self) -> int:
        """Numbers of all parts."""
        return sum(map(math.prod, self.parts.values()))

    def split(self, buffer: Tensor) -> Inputs:
        """Views of a buffer's parts."""
        parts = self.parts
        pieces = torch.split(buffer, [math.prod(shape) for shape in parts.values()])
        views = {name: piece.view(shape) for (name, shape), piece in zip(parts.items(), pieces, strict=True)}
        return Inputs(rates=views.pop("rates").view(torch.float32), **views)


@dataclass(frozen=True)
class Inputs:
    """The parts of a buffer, int32 if not said otherwise."""

    rates: Tensor
    """`(3,)` float32: what the optimizer needs to know of the step."""
    kept: Tensor
    """`(B,)`: 1 where a row goes on from its state, 0 where it starts from none."""
    types: Tensor
    """`(N,)`: the distinct words by rising length; padding comes first."""
    inputs: Tensor
    """`(2, T, B)`: which of the words stands where."""
    targets: Tensor
    """`(2, M)`: vocabulary ids of the words that come next."""
    ids: Tensor | None = None
    """`(R,)`: which rows are taken out of the head, ascending; 0 behind them."""
    count: Tensor | None = None
    """`(1,)`: how many of them there are."""
    tries: Tensor | None = None
    """`(2,)`: draws that it took to find each direction's samples."""
    places: Tensor | None = None
    """`(2 * M + 2 * S,)`: where targets forward and backward, then samples forward and backward, are in the rows."""
    hits: Tensor | None = None
    """`(2, M)`: which of the samples a position's target is, -1 if none."""


@dataclass(frozen=True)
class Plan:
    """A step, ready to be taken."""

    step: int
    """Its number, the first being 1."""
    layout: Layout
    """What lies where."""
    buffer: Tensor
    """`(layout.size,)` int32 on the host; pinned where there is a GPU."""


class Planner:
    """Makes plans, for one thread: its tables are as long as the vocabulary and are cleared behind each use."""

    def __init__(
        self,
        config: TrainConfig,
        corpus: Corpus,
        optimizer: Optimizer,
        draw: Callable[[int], tuple[Samples, Samples]] | None,
        kept: Callable[[int], Ints],
        *,
        pinned: bool,
    ) -> None:
        """`draw` gives the samples of a step, None for the full softmax; `kept` which rows go on from their state."""
        self._config, self._optimizer, self._pinned = config, optimizer, pinned
        self._draw, self._kept = draw, kept
        self._targets = np.asarray(corpus.targets()).astype(np.int32)
        cnn = config.model.char_cnn
        self._widest = max(width for width, _ in cnn.filters) if cnn is not None else 0
        self._lengths = None if cnn is None else _lengths(corpus.characters())
        self._longest = cnn.max_characters_per_token if cnn is not None else 0
        self._types = _Places(corpus.n_types)
        self._rows = _Places(len(corpus.vocab))
        self._sampled = _Places(len(corpus.vocab))

    def __call__(self, streams_4BT: Ints, step: int) -> Plan:
        """Plan the step that reads a window of types."""
        _, B, T = streams_4BT.shape
        streams_4TB = np.ascontiguousarray(streams_4BT.transpose(0, 2, 1))
        inputs, targets = streams_4TB[:2], self._targets[streams_4TB[2:]].reshape(2, -1)
        words, groups = self._words(inputs)
        padding = sum(number for number, _ in groups) - len(words)
        drawn = () if self._draw is None else self._draw(step)
        samples = [one.ids.numpy() for one in drawn]
        ids = self._rows.distinct([targets, *samples]) if samples else np.empty(0, dtype=np.int64)
        head_only = step <= (self._config.train.head_steps or 0)
        shape = Shape(groups, _rounded(len(ids)) if samples else 0, head_only)
        layout = Layout(shape, B, T, len(samples[0]) if samples else 0)
        buffer = torch.empty(layout.size, dtype=torch.int32, pin_memory=self._pinned)
        buffer.numpy().fill(0)  # not by PyTorch, whose threads would meet the loop's
        into = layout.split(buffer)
        _put(into.rates, np.asarray(self._optimizer.rates(step), dtype=np.float32))
        _put(into.kept, self._kept(step))
        _put(into.types[padding:], words)  # before them type 0, <S>, which is as short as any
        _put(into.inputs, self._types.of(words, inputs) + padding)
        _put(into.targets, targets)
        if samples:
            _put(into.ids, np.pad(ids, (0, shape.rows - len(ids))))
            _put(into.count, np.array([len(ids)]))
            _put(into.tries, np.array([one.tries for one in drawn]))
            _put(into.places, self._rows.of(ids, np.concatenate([targets.ravel(), *samples])))
            _put(into.hits, np.stack([self._sampled.of(some, own) for some, own in zip(samples, targets, strict=True)]))
        return Plan(step, layout, buffer)

    def _words(self, types: Ints) -> tuple[Ints, Groups]:
        """Distinct types, shortest first; and the groups that they are read in, behind their padding."""
        found = self._types.distinct([types])
        number = _rounded(len(found))
        if self._lengths is None:
            return found, ((number, 0),)
        lengths = self._lengths[found]
        order = np.argsort(lengths, kind="stable")
        padded = np.pad(lengths[order], (number - len(found), 0), constant_values=self._lengths[0])
        ends = [0, *(number * cut // 16 for cut in _CUTS)]
        # The longest word of all is another in every window: its group is as wide as a word can be.
        longest = [*(int(padded[end - 1]) for end in ends[1:-1]), self._longest]
        widths = [min(self._longest, -(-length // _EVEN) * _EVEN + self._widest) for length in longest]
        groups = zip(pairwise(ends), widths, strict=True)
        return found[order], tuple((last - first, width) for (first, last), width in groups if last > first)


class _Places:
    """Where numbers below a bound stand in a list: without sorting, a pass over a table."""

    def __init__(self, bound: int) -> None:
        self._seen = np.zeros(bound, dtype=np.bool_)
        self._place = np.full(bound, -1, dtype=np.int32)

    def distinct(self, some: list[Ints]) -> Ints:
        """The numbers of several arrays, each once, ascending."""
        for numbers in some:
            self._seen[numbers] = True
        found = np.flatnonzero(self._seen)
        self._seen[found] = False
        return found

    def of(self, listed: Ints, numbers: Ints) -> Ints:
        """Where each of some numbers stands in a list of others, each once; -1 where it does not."""
        self._place[listed] = np.arange(len(listed), dtype=np.int32)
        places = self._place[numbers]
        self._place[listed] = -1
        return places


def _lengths(characters: Ints) -> Ints:
    """Characters of each type that are no padding, `(n_types,)`, some types at a time."""
    cuts = range(0, len(characters), 2**16)
    lengths = [(np.asarray(characters[at : at + 2**16]) != PAD).sum(axis=1) for at in cuts]
    return np.concatenate(lengths).astype(np.uint16)  # sorted by radix, as 16 bits are


def _rounded(number: int) -> int:
    """The next of eight sizes between powers of two: at most an eighth too many."""
    grain = max(8, 1 << max(0, number.bit_length() - 4))
    return -(-number // grain) * grain


def _put(into: Tensor | None, values: Ints) -> None:
    assert into is not None
    into.numpy()[...] = values.reshape(into.shape)
