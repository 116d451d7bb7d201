"""The tokens of a text whose vectors are nearest to that of a word in its context: Table 4 of the paper.

    embedder = model.embedder(layers="top")
    queries = [Query("He made a superb play .", 4), Query("She wrote a play .", 3)]
    for hits in nearest(embedder, queries, sentences, k=5): ...

All queries are answered in one pass, and of the text only the best hits are kept, so it may be of any length.

Shapes: Q queries, N tokens looked at together, T of a sentence, D width of a layer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.chars import refuse_string
from elmo.embed import Embedder, Sentence, Vectors, as_tokens
from elmo.errors import ElmoError

_CHUNK_TOKENS = 2**12  # looked at together; a window of a GPU's has many times as many, and float64 doubles them

Report = Callable[[int, int], None]
"""Told how many sentences and tokens are done."""


@dataclass(frozen=True)
class Query:
    """A word in its sentence."""

    sentence: Sentence
    """A list of tokens, or a string that is split at white space."""
    position: int
    """Which token, from 0."""

    def __post_init__(self) -> None:
        """Refuse a place that the sentence does not have."""
        if type(self.position) is not int or not 0 <= self.position < len(self.tokens):
            count = len(self.tokens)
            allowed = f"give a whole number from 0 to {count - 1}" if count else "give a sentence with a word in it"
            raise ElmoError(f"position is {self.position!r}, and the sentence has {count} words: {allowed}")

    @property
    def tokens(self) -> tuple[str, ...]:
        """The words of the sentence."""
        return tuple(as_tokens(self.sentence))

    @property
    def word(self) -> str:
        """The word that is asked for."""
        return self.tokens[self.position]


@dataclass(frozen=True)
class Neighbour:
    """A token of the text that was searched."""

    score: float
    """Cosine of its vector and the query's."""
    tokens: tuple[str, ...]
    """Its sentence."""
    position: int
    """Which token of it, from 0."""
    sentence: int
    """Which sentence of the text, from 0."""


def nearest(
    embedder: Embedder,
    queries: Sequence[Query],
    sentences: Iterable[Sentence],
    k: int = 5,
    *,
    same_word: bool = False,
    one_per_sentence: bool = True,
    own_sentence: bool = False,
    report: Report = lambda sentences, tokens: None,
) -> list[list[Neighbour]]:
    """The k tokens nearest to each query, best first; of tokens that are equally near, the first of the text.

    Args:
        embedder: one that gives a vector a token; the paper's Table 4 has the top layer.
        queries: words in their contexts, all answered in one pass.
        sentences: what to search, from a list or a stream, each a list of tokens or a string that is split at white
            space.
        k: how many; fewer come where the text has fewer.
        same_word: look only at occurrences of the query's word, in whatever case.
        one_per_sentence: at most one hit from a sentence, and none from copies of it.
        own_sentence: look at sentences that are the query's own, too; its word would be found there, with 1.
        report: told how far it is.
    """
    _check(embedder, k)
    refuse_string(sentences)
    if not queries:
        return []
    searches = [_Search(query, k, same_word, one_per_sentence, own_sentence) for query in queries]
    vectors = zip(embedder.embed([query.tokens for query in queries]), queries, strict=True)
    queries_QD = np.stack([vectors_TD[query.position] for vectors_TD, query in vectors], dtype=np.float64)
    queries_QD /= _lengths(queries_QD)[:, None]
    words = {search.word for search in searches} if same_word else None
    done = tokens = 0
    report(0, 0)
    # Ahead: nobody waits for an answer before the text has ended.
    for window in embedder.windows(map(as_tokens, sentences), ahead=True):
        for chunk in _chunks(window.sentences, window.vectors, done):
            _look(chunk, searches, queries_QD, words)
            done += len(chunk.sentences)
            tokens += sum(map(len, chunk.sentences))
            report(done, tokens)
    return [search.best for search in searches]


@dataclass(frozen=True)
class _Chunk:
    """Whole sentences that are looked at together."""

    first: int
    """Number of the first."""
    sentences: list[list[str]]
    vectors: list[Vectors]


def _chunks(sentences: list[list[str]], vectors: list[Vectors], first: int) -> Iterator[_Chunk]:
    start = tokens = 0
    for end, sentence in enumerate(sentences, start=1):
        tokens += len(sentence)
        if tokens >= _CHUNK_TOKENS or end == len(sentences):
            yield _Chunk(first + start, sentences[start:end], vectors[start:end])
            start, tokens = end, 0


class _Search:
    """A query and the best hits so far, best first."""

    def __init__(self, query: Query, k: int, same_word: bool, one_per_sentence: bool, own_sentence: bool) -> None:
        self.word = query.word.casefold()
        self.best: list[Neighbour] = []
        self._tokens = query.tokens
        self._k = k
        self._same_word = same_word
        self._one_per_sentence = one_per_sentence
        self._own_sentence = own_sentence

    @property
    def bar(self) -> float:
        """What a hit further on in the text must be better than."""
        return self.best[-1].score if len(self.best) == self._k else -math.inf

    def wants(self, hit: Neighbour) -> bool:
        """Whether a hit is one that was asked for, whatever its score."""
        return (not self._same_word or hit.tokens[hit.position].casefold() == self.word) and (
            self._own_sentence or hit.tokens != self._tokens
        )

    def add(self, hits: Iterable[Neighbour]) -> None:
        """Put hits from further on in the text, the best first, among those that are there; no more than needed."""
        kept: dict[object, Neighbour] = {}
        for hit in heapq.merge(self.best, filter(self.wants, hits), key=lambda hit: -hit.score):
            kept.setdefault(hit.tokens if self._one_per_sentence else (hit.sentence, hit.position), hit)
            if len(kept) == self._k:
                break
        self.best = list(kept.values())


def _look(chunk: _Chunk, searches: list[_Search], queries_QD: NDArray[np.float64], words: set[str] | None) -> None:
    """Add what is near in a chunk to each search; only `words`, in lower case, are looked at if they are given."""
    places = [
        (row, position)
        for row, tokens in enumerate(chunk.sentences)
        for position, token in enumerate(tokens)
        if words is None or token.casefold() in words
    ]
    if not places:
        return
    # Summed in float64 and then cut: the same vector twice must have the same score, wherever it is in a product.
    vectors_ND = np.stack([chunk.vectors[row][position] for row, position in places], dtype=np.float64)
    scores_QN = (queries_QD @ vectors_ND.T / _lengths(vectors_ND)).astype(np.float32)
    for search, scores_N in zip(searches, scores_QN, strict=True):
        near = np.flatnonzero(scores_N > search.bar)
        order = near[np.argsort(-scores_N[near], kind="stable")]
        search.add(_hit(chunk, places[i], float(scores_N[i])) for i in order.tolist())


def _hit(chunk: _Chunk, place: tuple[int, int], score: float) -> Neighbour:
    row, position = place
    return Neighbour(score, tuple(chunk.sentences[row]), position, chunk.first + row)


def _lengths(vectors_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    """`(N,)`, never 0: a vector of zeros is then as far from all."""
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("nd,nd->n", vectors_ND, vectors_ND))
    return np.maximum(lengths, 1e-30)


def _check(embedder: Embedder, k: Any) -> None:
    settings = embedder.settings
    if type(k) is not int or k < 1:
        raise ElmoError(f"k is {k!r}: give a whole number, 1 or more")
    if settings.layers == "all" or isinstance(settings.layers, tuple):
        raise ElmoError(f"layers is {settings.layers!r}: give top, average, mix or one number, for one vector a word")
    if settings.pool is not None:
        raise ElmoError(f"pool is {settings.pool!r}: give none, for one vector a word")
    if settings.state == "carry":
        raise ElmoError("state is 'carry': give zero or warm, for a query has no text before it to carry a state from")
