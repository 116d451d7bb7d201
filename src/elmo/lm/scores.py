"""The language model itself: how likely a text is, word by word in both directions, and what could stand in a place.

A sentence `w1 .. wn` is n + 1 predictions in each direction (SEMANTICS section 5). Forward reads `<S> w1 .. wn` and
predicts `w1 .. wn </S>`; backward reads `</S> wn .. w1` and predicts `wn .. w1 <S>`. A word outside the vocabulary is
read by its characters and predicted as `<UNK>`. All probabilities are of the full softmax.

Neither direction reads the boundary that it predicts last. So a sentence is run in two steps: first the boundary that
each direction begins with, then the words, over which both run together. What they then leave is what training carries
into the next sentence; and where all sentences start alike, the first step is taken once for all.

Shapes: B sentences, T words of the longest, n words of one, N predictions, P projection, V words of the vocabulary,
2 directions (forward, backward).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.chars import BOS, EOS
from elmo.embed import Embedder, StateMode
from elmo.engine import EngineName, Precision
from elmo.errors import ElmoError
from elmo.formats.bundle import Bundle
from elmo.lm.perplexity import perplexity_of
from elmo.lm.softmax import Head
from elmo.model import State
from elmo.vocab import SPECIAL_WORDS, Vocabulary

_LOGITS_AT_ONCE = 2**24  # 64 MB in float32, whatever the head


class ScoreOptions(TypedDict, total=False):
    """The settings of an `Embedder` that matter here, as keyword arguments; see `EmbedSettings`."""

    state: StateMode
    precision: Precision
    batch_tokens: int | None
    batch_size: int
    engine: EngineName


@dataclass(frozen=True, eq=False)
class Scores:
    """Log probabilities of one sentence."""

    tokens: tuple[str, ...]
    """Its n words."""
    forward: NDArray[np.float32]
    """`(n + 1,)`: `ln p` of each word given all before it, in the order of the words; at the end, that of `</S>`."""
    backward: NDArray[np.float32]
    """`(n + 1,)`: `ln p` of each word given all behind it, in the order of the words; at the end, that of `<S>`."""
    unknown: NDArray[np.bool_]
    """`(n,)`: words outside the vocabulary, which were predicted as `<UNK>`."""

    @property
    def forward_total(self) -> float:
        """`ln p` of the sentence, read forward."""
        return float(self.forward.sum(dtype=np.float64))

    @property
    def backward_total(self) -> float:
        """`ln p` of the sentence, read backward."""
        return float(self.backward.sum(dtype=np.float64))

    @property
    def total(self) -> float:
        """Mean of the two directions' totals."""
        return 0.5 * (self.forward_total + self.backward_total)

    @property
    def perplexity(self) -> float:
        """`exp(-total / (n + 1))`: that of a text, of this sentence alone."""
        return perplexity_of(-self.total / len(self.forward))


@dataclass(frozen=True)
class Perplexity:
    """What a text costs the language model, with the full softmax."""

    sentences: int
    """Sentences that were read; empty ones are not counted."""
    tokens: int
    """Words of them."""
    unknown: int
    """Words outside the vocabulary, which were predicted as `<UNK>`."""
    forward_loss: float
    """Mean of `-ln p` over the forward predictions."""
    backward_loss: float
    """The same, backward."""

    @property
    def predictions(self) -> int:
        """Of each direction: the words and, for each sentence, the boundary at its end."""
        return self.tokens + self.sentences

    @property
    def unknown_rate(self) -> float:
        """Share of the words that are outside the vocabulary. Two models compare only where it is alike."""
        return self.unknown / max(self.tokens, 1)

    @property
    def forward(self) -> float:
        """Perplexity of the forward direction."""
        return perplexity_of(self.forward_loss)

    @property
    def backward(self) -> float:
        """Perplexity of the backward direction."""
        return perplexity_of(self.backward_loss)

    @property
    def perplexity(self) -> float:
        """`exp` of the mean of the two directions' losses, as bilm-tf and our training print it."""
        return perplexity_of(0.5 * (self.forward_loss + self.backward_loss))

    @property
    def mean(self) -> float:
        """Mean of the two directions' perplexities; never below `perplexity`."""
        return 0.5 * (self.forward + self.backward)


@dataclass(frozen=True)
class Substitute:
    """A word that could stand in a place."""

    word: str
    probability: float
    """By both directions together, among all words that were considered."""
    forward: float
    """`ln p` given the words before, over the whole vocabulary."""
    backward: float
    """`ln p` given the words behind, over the whole vocabulary."""


@dataclass(frozen=True, eq=False)
class Likeliest:
    """What one direction finds likeliest at each of n places, best first."""

    ids: NDArray[np.int64]
    """`(n, k)`, numbers of words in the vocabulary."""
    log_probs: NDArray[np.float32]
    """`(n, k)`: `ln p` over the whole vocabulary."""


@dataclass(frozen=True)
class _Begun:
    """Rows that have read the boundary each direction begins with."""

    top: Tensor
    """`(2, B, P)`: what predicts the first word of each direction."""
    state: State


@dataclass(frozen=True)
class _Read:
    """A sentence that was read: what predicts its words and boundary, in the order of `Scores`."""

    tokens: list[str]
    forward: Tensor
    """`(n + 1, P)`."""
    backward: Tensor
    """`(n + 1, P)`."""


class Scorer:
    """A language model made ready: an embedder of its top layer, its head, its vocabulary."""

    def __init__(self, embedder: Embedder, head: Head, vocab: Vocabulary) -> None:
        """Take an embedder whose settings ask for the top layer alone, and what `head_of` gives for its model."""
        self._embedder = embedder
        self._vocab = vocab
        here = next(head.parameters()).device == embedder.device
        self._head = head if here else copy.deepcopy(head).to(embedder.device)
        self._begun: _Begun | None = None

    def score(self, sentences: Iterable[list[str]]) -> Iterator[Scores]:
        """Score sentences lazily, in order, in bounded memory."""
        state: State | None = None
        waiting: list[_Read] = []
        predictions = 0
        for group in self._embedder.groups(sentences):
            with torch.inference_mode():
                read, state = self._read_group(group, state)
            waiting += read
            predictions += sum(len(one.forward) for one in read)
            # The softmax of one sentence costs more in starting threads than in numbers, and a carried state brings
            # them one by one.
            if predictions >= self._embedder.batch_tokens:
                yield from self._scores(waiting)
                waiting, predictions = [], 0
        yield from self._scores(waiting)

    def _scores(self, read: list[_Read]) -> list[Scores]:
        if not read:
            return []
        ids = [self._vocab.ids(one.tokens) for one in read]
        begin_id, end_id = self._vocab.ids([BOS, EOS])
        targets = [*(id for row in ids for id in (*row, end_id)), *(id for row in ids for id in (*row, begin_id))]
        with torch.inference_mode():
            logs = self._log_probs(
                torch.cat([*(one.forward for one in read), *(one.backward for one in read)]), targets
            )
        cuts = np.cumsum([len(row) + 1 for row in ids * 2])[:-1]
        pieces = [piece.copy() for piece in np.split(logs, cuts)]  # a view would keep all of them alive
        return [
            Scores(tuple(one.tokens), before, behind, np.array([w not in self._vocab for w in one.tokens], np.bool_))
            for one, before, behind in zip(read, pieces[: len(read)], pieces[len(read) :], strict=True)
        ]

    def _read_group(self, group: list[list[str]], state: State | None) -> tuple[list[_Read], State | None]:
        """Read what `Embedder.groups` cut; with it, where the state is carried, what the next group starts from."""
        found: dict[int, _Read] = {}
        ends: list[State] = []
        carried: State | None = None
        if self._embedder.settings.state == "carry":
            carried = self._embedder.zero_state(0) if state is None else state
            starts = carried.take(len(group))
        for batch in self._embedder.batches(group):
            rows = [group[i] for i in batch]
            begun = self._alike() if carried is None else self._begin(starts.rows_at(batch))
            read, end = self._read(rows, begun)
            found.update(zip(batch, read, strict=True))
            if carried is not None:
                ends.append(_where([bool(row) for row in rows], end, starts.rows_at(batch)))
        if carried is not None:
            order = list(found)  # as they were read
            carried = carried.put(State.join(ends).rows_at(sorted(range(len(order)), key=order.__getitem__)))
        return [found[i] for i in range(len(group))], carried

    def _read(self, rows: list[list[str]], begun: _Begun) -> tuple[list[_Read], State]:
        output = self._embedder.contextualise(rows, begun.state)
        forward_BTP, backward_BTP = output.layers[0].chunk(2, dim=-1)
        first_2BP = begun.top.expand(-1, len(rows), -1)  # one row is every row's, as of the state
        # Backward, word i is predicted by what has read word i + 1; the last word by the boundary behind it; the
        # boundary before the sentence by what has read the first word.
        read = [
            _Read(
                row,
                torch.cat([first_2BP[0, b, None], forward_BTP[b, : len(row)]]),
                torch.cat([backward_BTP[b, 1 : len(row)], first_2BP[1, b, None], backward_BTP[b, : min(1, len(row))]]),
            )
            for b, row in enumerate(rows)
        ]
        return read, output.state

    def _log_probs(self, h_NP: Tensor, targets: list[int]) -> NDArray[np.float32]:
        at_once = max(1, _LOGITS_AT_ONCE // self._head.n_words)
        h_NP = h_NP.to(next(self._head.parameters()))
        targets_N = torch.tensor(targets, device=h_NP.device)
        chunks = zip(torch.split(h_NP, at_once), torch.split(targets_N, at_once), strict=True)
        logs: NDArray[np.float32] = -torch.cat([self._head(*chunk) for chunk in chunks]).float().cpu().numpy()
        return logs

    def _alike(self) -> _Begun:
        """Where every sentence starts alike, the boundaries are read once."""
        if self._begun is None:
            self._begun = self._begin(self._embedder.start_state())
        return self._begun

    def _begin(self, start: State) -> _Begun:
        """Let each row read its first boundary, forward `<S>` and backward `</S>`."""
        rows = start.rows
        output = self._embedder.contextualise([[BOS]] * rows + [[EOS]] * rows, State.join([start, start]))
        forward, backward = output.layers[0, :, 0].chunk(2, dim=-1)
        m, c = (torch.stack([x[:, 0, :rows], x[:, 1, rows:]], dim=1) for x in (output.state.m, output.state.c))
        return _Begun(torch.stack([forward[:rows], backward[rows:]]), State(m, c))

    def substitutes(
        self, tokens: list[str], position: int, k: int, *, special_words: bool, divide_by_unigram: bool
    ) -> list[Substitute]:
        """The k best words for a position: see `Model.substitutes`."""
        _check_place(tokens, position, k)
        with torch.inference_mode():
            (read,), _ = self._read([tokens], self._alike())
            h_2P = torch.stack([read.forward[position], read.backward[position]]).to(next(self._head.parameters()))
            logs_2V = self._head.log_probs(h_2P).double()
            together_V = logs_2V.sum(dim=0)
            if divide_by_unigram:
                # What the head says when it is told nothing: for a softmax, its biases alone.
                together_V = together_V - self._head.log_probs(torch.zeros_like(h_2P[:1]))[0].double()
            if not special_words:
                together_V[self._vocab.ids(SPECIAL_WORDS)] = -math.inf
            best = together_V.softmax(dim=0).topk(min(k, int(together_V.isfinite().sum())))
            found = zip(best.indices.tolist(), best.values.tolist(), *logs_2V[:, best.indices].tolist(), strict=True)
        return [Substitute(self._vocab.words[word], *numbers) for word, *numbers in found]

    def likeliest(self, tokens: list[str], k: int, *, without: Sequence[str] = ()) -> tuple[Likeliest, Likeliest]:
        """The k likeliest words at each place, forward given all before it, backward given all behind it.

        Args:
            tokens: the sentence.
            k: how many.
            without: words that are passed over.
        """
        _check_place(tokens, 0, k)
        left_out = torch.tensor(self._vocab.ids(without), dtype=torch.long)
        with torch.inference_mode():
            (read,), _ = self._read([tokens], self._alike())
            forward, backward = (self._best(h[: len(tokens)], k, left_out) for h in (read.forward, read.backward))
        return forward, backward

    def _best(self, h_NP: Tensor, k: int, left_out: Tensor) -> Likeliest:
        ids, logs = [], []
        h_NP = h_NP.to(next(self._head.parameters()))
        for chunk in torch.split(h_NP, max(1, _LOGITS_AT_ONCE // self._head.n_words)):
            logs_NV = self._head.log_probs(chunk).index_fill(1, left_out.to(chunk.device), -math.inf)
            best = logs_NV.topk(min(k, self._head.n_words - len(left_out)))
            ids.append(best.indices)
            logs.append(best.values.float())
        return Likeliest(torch.cat(ids).cpu().numpy(), torch.cat(logs).cpu().numpy())


def perplexity(
    scores: Iterable[Scores], report: Callable[[int, int], None] = lambda sentences, tokens: None
) -> Perplexity:
    """Add the scores of a text up; `report` is told, after each sentence, how many sentences and words were read."""
    sentences = tokens = unknown = 0
    forward = backward = 0.0
    for one in scores:
        sentences, tokens, unknown = sentences + 1, tokens + len(one.tokens), unknown + int(one.unknown.sum())
        forward, backward = forward - one.forward_total, backward - one.backward_total
        report(sentences, tokens)
    if sentences == 0:
        raise ElmoError("the text has no word in it, so it has no perplexity")
    count = sentences + tokens
    return Perplexity(sentences, tokens, unknown, forward / count, backward / count)


def without_boundaries(sentences: Iterable[list[str]]) -> Iterator[list[str]]:
    """The sentences as `elmo prepare` would give them to training.

    Boundaries in the text are left out, for they are easy to guess where they stand twice, and so are sentences with
    nothing in them.
    """
    for sentence in sentences:
        if words := [word for word in sentence if word not in (BOS, EOS)]:
            yield words


def head_of(bundle: Bundle) -> tuple[Head, Vocabulary]:
    """The head of a model and the words that it predicts; a model without one says how to get one."""
    if bundle.head is None or bundle.vocab is None:
        raise ElmoError(
            "this model has no language model head, so it can embed but not predict words: fine-tune it on text with "
            "'elmo finetune M TEXT -o OUT', or load one that was saved with its head, as 'elmo pretrain' does"
        )
    return bundle.head, bundle.vocab


def _check_place(tokens: list[str], position: Any, k: Any) -> None:
    if not tokens:
        raise ElmoError("the sentence is empty: there is no position to find words for")
    if type(position) is not int or not 0 <= position < len(tokens):
        raise ElmoError(
            f"position is {position!r}: give a whole number from 0 to {len(tokens) - 1}, the sentence having "
            f"{len(tokens)} words"
        )
    if type(k) is not int or k < 1:
        raise ElmoError(f"k is {k!r}: give a whole number, 1 or more")


def _where(chosen: list[bool], one: State, other: State) -> State:
    """Rows of one state where they are chosen, of the other elsewhere."""
    mask = torch.tensor(chosen, device=one.m.device)[:, None]
    return State(torch.where(mask, one.m, other.m), torch.where(mask, one.c, other.c))
