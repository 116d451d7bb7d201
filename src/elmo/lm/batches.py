"""Prepared text as endless streams for training, and as one pass for validation (SEMANTICS section 5).

A row of the batch reads sentence after sentence without padding. Forward it reads `<S> w1 .. wn` and predicts
`w1 .. wn </S>`; backward `</S> wn .. w1` and `wn .. w1 <S>`. Both take n + 1 positions, so the two streams of a row
walk through the same sentences side by side.

Order: a split is cut into blocks of neighbouring sentences. Each epoch shuffles the blocks (by seed and epoch) and
deals them to the rows like cards; a row shuffles the sentences of a block when it comes to it. So a row holds one block
in memory, no two rows read the same sentence in an epoch, and what a row reads in window w is a function of seed, w and
the number of rows: the position of a run is one number. A row that is through with its share goes on with its share of
the next epoch, a little before or after the others.

Shapes: R rows of all ranks, B rows here, T time steps, N distinct words of a window, 2 directions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from elmo.errors import ElmoError
from elmo.lm.network import Window
from elmo.lm.softmax import PADDING
from elmo.transfer import to_device
from elmo.vocab import Vocabulary

Ints = NDArray[Any]

BOS_TYPE = 0
EOS_TYPE = 1

_LARGEST_BLOCK = 512  # sentences: some 60 kB of positions a row
_BLOCKS_A_ROW = 16  # at least, where there are sentences enough: shares of even length, sentences well mixed


class Shard(Protocol):
    """Some sentences, one after the other."""

    @property
    def tokens(self) -> Ints:
        """`(N,)` uint32: the type of each token."""

    @property
    def starts(self) -> Ints:
        """`(S + 1,)` uint64: where each sentence begins, and where the last one ends."""


class Split(Protocol):
    """The sentences for training, or those held out."""

    @property
    def n_sentences(self) -> int:
        """Sentences of all shards."""

    @property
    def shards(self) -> Sequence[Shard]:
        """Where they are."""


class Corpus(Protocol):
    """What `elmo prepare` makes: see `elmo.lm.corpus`."""

    @property
    def vocab(self) -> Vocabulary:
        """The words that are predicted, by falling frequency behind `<S>`, `</S>`, `<UNK>`."""

    @property
    def n_types(self) -> int:
        """Distinct words of the text."""

    @property
    def digest(self) -> str:
        """What tells this corpus from another."""

    def characters(self) -> Ints:
        """`(n_types, C)` character ids; row 0 is `<S>`, row 1 `</S>`."""

    def targets(self) -> Ints:
        """`(n_types,)` vocabulary ids."""

    def counts(self) -> Ints:
        """`(V,)` how often each word is in the training split."""

    def split(self, name: Literal["train", "valid"]) -> Split:
        """One of the two parts."""


class Blocks:
    """A split, cut into blocks."""

    def __init__(self, corpus: Corpus, name: Literal["train", "valid"], sentences: int) -> None:
        """Cut into blocks of so many sentences (a shard's last may be shorter)."""
        self._shards = corpus.split(name).shards
        self._n_types = corpus.n_types
        self._name = name
        table: list[Ints] = []
        for number, shard in enumerate(self._shards):
            ends = np.append(np.arange(0, len(shard.starts) - 1, sentences), len(shard.starts) - 1)
            offsets = shard.starts[ends].astype(np.int64)
            table.append(
                np.stack(
                    [np.full(len(ends) - 1, number), ends[:-1], ends[1:], np.diff(offsets) + np.diff(ends)], axis=1
                )
            )
        whole = np.concatenate(table) if table else np.empty((0, 4), dtype=np.int64)
        self._places = whole[:, :3]  # shard, first sentence, sentence behind the last
        self.lengths = whole[:, 3]
        """`(blocks,)`: positions, a sentence of n words having n + 1."""

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.lengths)

    def positions(self, block: int, rng: np.random.Generator | None) -> Ints:
        """Types of a block, `(4, positions)`: inputs forward and backward, targets forward and backward.

        Sentences stay in order without a generator.
        """
        shard_number, first, last = (int(place) for place in self._places[block])
        shard = self._shards[shard_number]
        starts = shard.starts[first : last + 1].astype(np.int64)
        tokens = np.asarray(shard.tokens[starts[0] : starts[-1]]).astype(np.int64)
        if len(tokens) and int(tokens.max()) >= self._n_types:
            raise ElmoError(
                f"shard {shard_number} of the {self._name} split has the word id {int(tokens.max()):,}, the corpus "
                f"only {self._n_types:,} words: it is damaged; prepare the text again"
            )
        order = np.arange(last - first) if rng is None else rng.permutation(last - first)
        lengths = np.diff(starts)[order]
        begins = (starts[:-1] - starts[0])[order]
        ends = np.cumsum(lengths + 1)
        within = np.arange(ends[-1]) - np.repeat(ends - lengths - 1, lengths + 1)
        start, length = np.repeat(begins, lengths + 1), np.repeat(lengths, lengths + 1)
        # One more type at the end of the tokens keeps an index one past a last sentence legal; it is overwritten.
        tokens = np.append(tokens, 0)
        streams = np.stack(
            [
                tokens[start + within - 1],
                tokens[start + length - within],
                tokens[start + within],
                tokens[start + length - 1 - within],
            ]
        )
        streams[0, within == 0] = BOS_TYPE
        streams[1, within == 0] = EOS_TYPE
        streams[2, within == length] = EOS_TYPE
        streams[3, within == length] = BOS_TYPE
        return streams.astype(np.int32)


class Windows:
    """Turns types into what the network reads."""

    def __init__(self, corpus: Corpus, *, characters: bool, device: torch.device) -> None:
        """Read characters, or (for a model that reads words) vocabulary ids."""
        self._targets = np.asarray(corpus.targets())
        self._words = corpus.characters() if characters else None
        self._device = device
        n_words = len(corpus.vocab)
        if len(self._targets) != corpus.n_types or not 0 <= self._targets.min() <= self._targets.max() < n_words:
            raise ElmoError(
                f"the corpus says targets up to {int(self._targets.max()):,} for {len(self._targets):,} of "
                f"{corpus.n_types:,} words, its vocabulary has {n_words:,}: it is damaged; prepare the text again"
            )

    def __call__(self, streams_4BT: Ints, counted_BT: Ints | None = None) -> Window:
        """Gather each distinct word's characters once; `counted` says which targets count, all if not given."""
        types_N, inverse = np.unique(streams_4BT[:2], return_inverse=True)
        targets = self._targets[streams_4BT[2:]].astype(np.int64)
        if counted_BT is not None:
            targets[:, ~counted_BT] = PADDING
        words = self._words[types_N] if self._words is not None else self._targets[types_N] + 1
        return Window(
            words=self._tensor(words.astype(np.int64)),
            inputs=self._tensor(inverse.reshape(streams_4BT[:2].shape)),
            targets=self._tensor(targets),
        )

    def _tensor(self, array: Ints) -> torch.Tensor:
        return to_device(np.ascontiguousarray(array), self._device)


class _Row:
    """One row's stream, of which windows are taken."""

    def __init__(self, blocks: Iterator[Ints]) -> None:
        self._blocks = blocks
        self._rest = np.empty((4, 0), dtype=np.int32)

    def take(self, steps: int) -> Ints:
        """The next positions, `(4, steps)`; fewer where the stream ends."""
        pieces = [self._rest[:, :steps]]
        missing = steps - pieces[0].shape[1]
        self._rest = self._rest[:, steps:]
        while missing and (block := next(self._blocks, None)) is not None:
            pieces.append(block[:, :missing])
            self._rest = block[:, missing:]
            missing -= pieces[-1].shape[1]
        return np.concatenate(pieces, axis=1) if len(pieces) > 1 else pieces[0]


class TrainStream:
    """The endless streams of the rows `first` to `last` of all `rows`, one window after the other."""

    def __init__(
        self, corpus: Corpus, *, rows: int, first: int, last: int, steps: int, seed: int, position: int = 0
    ) -> None:
        """Stand before window number `position`; windows are `steps` long."""
        n_sentences = corpus.split("train").n_sentences
        if n_sentences < rows:
            raise ElmoError(
                f"the training split has {n_sentences:,} sentences, the batch {rows:,} rows (data.rows): give fewer "
                "rows or more text"
            )
        self._blocks = Blocks(corpus, "train", _block_size(n_sentences, rows))
        self._n_rows, self._steps, self._seed = rows, steps, seed
        self._orders: dict[int, Ints] = {}
        epochs, offsets = self._places(position * steps)
        self._rows = [_Row(self._read(row, int(epochs[row]), int(offsets[row]))) for row in range(first, last)]

    @property
    def windows_an_epoch(self) -> int:
        """How many windows show as many positions as the split has."""
        return max(1, int(self._blocks.lengths.sum()) // (self._n_rows * self._steps))

    def __next__(self) -> Ints:
        """The next window of types, `(4, B, T)`: see `Blocks.positions`."""
        return np.stack([row.take(self._steps) for row in self._rows], axis=1)

    def _order(self, epoch: int) -> Ints:
        if epoch not in self._orders:
            if len(self._orders) > 1:  # rows are hardly ever more than one epoch apart
                del self._orders[min(self._orders)]
            self._orders[epoch] = np.random.default_rng([self._seed, epoch]).permutation(len(self._blocks))
        return self._orders[epoch]

    def _places(self, position: int) -> tuple[Ints, Ints]:
        """In which epoch each row is at a position of its stream, and how far it is in it: `(R,)` both."""
        epochs, offsets = np.zeros(self._n_rows, dtype=np.int64), np.full(self._n_rows, position, dtype=np.int64)
        for epoch in itertools.count():
            lengths = self._blocks.lengths[self._order(epoch)]
            shares = np.bincount(np.arange(len(lengths)) % self._n_rows, weights=lengths).astype(np.int64)
            beyond = (epochs == epoch) & (offsets >= shares)
            if not beyond.any():
                return epochs, offsets
            offsets[beyond] -= shares[beyond]
            epochs[beyond] += 1
        raise AssertionError

    def _read(self, row: int, epoch: int, offset: int) -> Iterator[Ints]:
        """Blocks of one row, the first without what lies before `offset` in the epoch."""
        while True:
            for block in self._order(epoch)[row :: self._n_rows].tolist():
                if offset >= self._blocks.lengths[block]:
                    offset -= int(self._blocks.lengths[block])
                    continue
                yield self._blocks.positions(block, np.random.default_rng([self._seed, epoch, block]))[:, offset:]
                offset = 0
            epoch += 1


def validation_windows(
    corpus: Corpus, *, rows: int, first: int, last: int, steps: int, most: int | None = None
) -> Iterator[tuple[Ints, Ints]]:
    """One pass over the held-out text: windows `(4, B, T)` of types and, `(B, T)`, which of their positions count.

    Each position comes once. A row reads neighbouring sentences in their order; one that is at its end is padded. All
    ranks get as many windows, at most `most`.
    """
    n_sentences = corpus.split("valid").n_sentences
    if n_sentences == 0:
        raise ElmoError("the corpus has no held-out sentences: prepare it with a part held out")
    blocks = Blocks(corpus, "valid", _block_size(n_sentences, rows))
    ends = np.cumsum(blocks.lengths)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, rows) / rows)
    shares = np.split(np.arange(len(blocks)), cuts)
    readers = [_Row(blocks.positions(block, None) for block in share.tolist()) for share in shares[first:last]]
    n_windows = -(-max(int(blocks.lengths[share].sum()) for share in shares) // steps)
    for _ in range(n_windows if most is None else min(n_windows, most)):
        streams = np.zeros((4, last - first, steps), dtype=np.int32)
        counted = np.zeros((last - first, steps), dtype=bool)
        for row, reader in enumerate(readers):
            positions = reader.take(steps)
            streams[:, row, : positions.shape[1]] = positions
            counted[row, : positions.shape[1]] = True
        yield streams, counted


def _block_size(n_sentences: int, rows: int) -> int:
    return min(_LARGEST_BLOCK, max(1, n_sentences // (rows * _BLOCKS_A_ROW)))
