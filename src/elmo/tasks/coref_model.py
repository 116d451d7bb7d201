"""Coreference by ranking spans (Lee et al. 2017): which earlier span, if any, is of the same thing as this one.

Every span of a sentence up to a width is scored as a mention; the best, some for each token, are compared with those
before them. A span's first and last token, its head found by attention, and its width are all that is known of it.

Shapes: N tokens of all documents, S spans, W widest span, M spans kept of a document, K antecedents of a span, X width
of an input, H of a token behind the LSTMs, G of a span, F of a feature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.errors import ElmoError
from elmo.tasks.batch import Batch
from elmo.tasks.coref_reader import Clusters, Document
from elmo.tasks.coref_spans import (
    all_spans,
    clusters_of,
    gold_antecedents,
    gold_numbers,
    keep_spans,
    n_spans,
    speaker_numbers,
)
from elmo.tasks.encoder import Sentences, TokenEncoder
from elmo.tasks.layers import IMPOSSIBLE, BiLSTM, masked_softmax
from elmo.tasks.task import TaskModel
from elmo.tasks.vectors import FrozenLayers

_MOST_KEPT = 4000  # spans of a document, as they are compared with each other
_SPANS, _PAIRED = 2**14, 2**9  # spans scored at a time, and spans compared with their antecedents: bounds memory
_DISTANCES = (2, 3, 4, 5, 8, 16, 32, 64)  # where a new kind of distance between kept spans begins
_UNKNOWN, _SAME, _OTHER = range(3)  # what a speaker is to another


@dataclass(frozen=True, kw_only=True)
class CorefSettings:
    """Sizes of the model."""

    hidden: int = 200
    """Of the LSTMs, each direction."""
    layers: int = 1
    """Of LSTMs."""
    scorer: int = 150
    """Of the two hidden layers that score spans, and pairs of them."""
    features: int = 20
    """Width of what is learned of a width, a distance, a pair of speakers."""
    span_width: int = 10
    """Tokens of the widest span."""
    spans: float = 0.4
    """Spans kept for each token of a document."""
    antecedents: int = 100
    """Spans before a span with which it is compared."""
    sentences: int = 50
    """Of a document, in a training step; which of a longer one is drawn."""
    mentions: float = 1.0
    """Weight of a loss that says of each span whether it is a mention; Lee et al. have none, which is 0."""
    dropout: float = 0.2
    """Behind each layer."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        for name in ("hidden", "layers", "scorer", "features", "span_width", "antecedents", "sentences"):
            if getattr(self, name) < 1:
                raise ElmoError(f"model.{name} is {getattr(self, name)}: give a whole number from 1 on")
        if not 0 <= self.dropout < 1:
            raise ElmoError(f"model.dropout is {self.dropout!r}: give a number from 0 to below 1")
        if not 0 < self.spans < math.inf:
            raise ElmoError(f"model.spans is {self.spans!r}: give a number above 0")
        if not self.mentions >= 0:
            raise ElmoError(f"model.mentions is {self.mentions!r}: give 0 or more")


@dataclass(frozen=True)
class CorefBatch(Batch):
    """Documents, whose sentences, tokens and spans lie one behind the other."""

    sentences: Sentences
    documents: tuple[tuple[int, ...], ...]
    """Tokens of each sentence of each document; on the host, where counts are wanted."""
    tokens: Tensor
    """`(N,)`: where each token stands among all places of the padded sentences."""
    speakers: Tensor
    """`(N,)`: numbers of speakers, 0 for an unknown one."""
    firsts: Tensor
    """`(S,)`: the first token of each span, by which they are ordered."""
    lasts: Tensor
    """`(S,)`: the last token of each span, itself in it."""
    clusters: Tensor
    """`(S,)`: numbers of gold clusters, 0 for none."""


@dataclass(frozen=True)
class _Tokens:
    """What the encoder and the LSTMs make of all tokens."""

    inputs: Tensor
    """`(N, X)`."""
    hidden: Tensor
    """`(N, H)`."""
    headness: Tensor
    """`(N,)`: how much of a span's head a token is."""


@dataclass(frozen=True)
class _Ranked:
    """The spans of a document, and those that are kept in the order of the text."""

    stretch: slice
    """Where the batch has its spans."""
    mention: Tensor
    """`(S,)`: a score for each of them."""
    spans: Tensor
    """`(M,)`: which of the batch's spans are kept."""
    scores: Tensor
    """`(M, 1 + K)`: of no antecedent, which is 0, and then of each, the nearest first."""


class CorefModel(TaskModel[Document, Clusters]):
    """LSTMs over sentences, a score for each span and for each pair of kept ones."""

    def __init__(self, encoder: TokenEncoder, settings: CorefSettings) -> None:
        """Set it up."""
        super().__init__()
        self.encoder, self.settings = encoder, settings
        self.lstm = BiLSTM(encoder.input_dim, settings.hidden, layers=settings.layers)
        self.dropout = nn.Dropout(settings.dropout)
        token_dim, n_features = self.lstm.output_dim + encoder.output_dim, settings.features
        self.headness = nn.Linear(token_dim, 1)
        self.widths = nn.Embedding(settings.span_width, n_features)
        span_dim = 2 * token_dim + encoder.input_dim + n_features
        self.mention = nn.Sequential(nn.Linear(span_dim, settings.scorer), *_scorer(settings))
        self.distances = nn.Embedding(len(_DISTANCES) + 1, n_features)
        kinds_K = torch.bucketize(torch.arange(1, settings.antecedents + 1), torch.tensor(_DISTANCES), right=True)
        self.distance_kinds = nn.Buffer(kinds_K, persistent=False)
        self.speakers = nn.Embedding(3, n_features)
        self.this = nn.Linear(span_dim, settings.scorer)
        self.other = nn.Linear(span_dim, settings.scorer, bias=False)
        self.both = nn.Linear(span_dim, settings.scorer, bias=False)
        self.between = nn.Linear(2 * n_features, settings.scorer, bias=False)
        self.pair = nn.Sequential(*_scorer(settings))

    def collate(self, examples: Sequence[Document], frozen: FrozenLayers | None) -> CorefBatch:
        """Documents with all their spans, and which are coreferent where that is known."""
        sentences = self.encoder.collate([tokens for one in examples for tokens in one.sentences], frozen)
        documents = tuple(tuple(map(len, one.sentences)) for one in examples)
        longest = sentences.mask.shape[1]
        places = [row * longest + place for row, n in enumerate(sentences.lengths) for place in range(n)]
        firsts, lasts = all_spans(sentences.lengths, self.settings.span_width)
        return CorefBatch(
            sentences=sentences,
            documents=documents,
            tokens=torch.tensor(places),
            speakers=torch.tensor([number for one in examples for number in speaker_numbers(one)]),
            firsts=torch.from_numpy(firsts),
            lasts=torch.from_numpy(lasts),
            clusters=torch.from_numpy(gold_numbers(examples, self.settings.span_width)[firsts, lasts - firsts]),
        )

    def loss(self, batch: CorefBatch) -> Tensor:
        """`-ln p` of the gold antecedents of a kept span, any of which will do, and of mentions being such.

        Both are sums over a document, divided by how many spans are kept.
        """
        stretches = [_drawn(lengths, self.settings.sentences) for lengths in batch.documents]
        losses = []
        for ranked in self._documents(batch, self._tokens(batch), stretches):
            found_MK = gold_antecedents(batch.clusters[ranked.spans], ranked.scores.shape[1] - 1)
            right_M = torch.logsumexp(ranked.scores.masked_fill(~found_MK, IMPOSSIBLE), dim=1)
            linked = (torch.logsumexp(ranked.scores, dim=1) - right_M).sum()
            gold_S = (batch.clusters[ranked.stretch] > 0).float()
            mentioned = F.binary_cross_entropy_with_logits(ranked.mention, gold_S, reduction="sum")
            losses.append((linked + self.settings.mentions * mentioned) / len(right_M))
        return torch.stack(losses).mean()

    def answers(self, batch: CorefBatch, examples: Sequence[Document]) -> list[Clusters]:
        """Spans linked to their best antecedents, where that is better than none; without those linked to no other."""
        whole = [(0, len(lengths)) for lengths in batch.documents]
        found = [
            torch.stack([batch.firsts[one.spans], batch.lasts[one.spans], one.scores.argmax(dim=1)])
            for one in self._documents(batch, self._tokens(batch), whole)
        ]
        table = torch.cat(found, dim=1).T.tolist()  # the only time that the host waits for the device
        answers, row = [], 0
        for one, starts in zip(found, accumulate(map(sum, batch.documents), initial=0), strict=False):
            rows = table[row : row + one.shape[1]]
            links = [((first - starts, last + 1 - starts), offset) for first, last, offset in rows]
            answers.append(clusters_of(links))
            row += len(rows)
        return answers

    def _tokens(self, batch: CorefBatch) -> _Tokens:
        encoded = self.encoder(batch.sentences)
        hidden = self.dropout(self.lstm(encoded.inputs, batch.sentences.lengths))
        if encoded.output is not None:
            hidden = torch.cat([hidden, encoded.output], dim=-1)
        hidden_NH = hidden.flatten(0, 1)[batch.tokens].float()
        inputs_NX = encoded.inputs.flatten(0, 1)[batch.tokens].float()
        return _Tokens(inputs_NX, hidden_NH, self.headness(hidden_NH).squeeze(1))

    def _documents(self, batch: CorefBatch, tokens: _Tokens, stretches: Sequence[tuple[int, int]]) -> Iterator[_Ranked]:
        """Each document by itself, from one of its sentences to another."""
        start = 0
        for lengths, (first, last) in zip(batch.documents, stretches, strict=True):
            counts = [n_spans(length, self.settings.span_width) for length in lengths]
            yield self._ranked(batch, tokens, start + sum(counts[:first]), lengths[first:last], counts[first:last])
            start += sum(counts)

    def _ranked(
        self, batch: CorefBatch, tokens: _Tokens, start: int, lengths: Sequence[int], counts: Sequence[int]
    ) -> _Ranked:
        """Score and keep spans of sentences, the first of which is `start`, and compare them."""
        stretch = slice(start, start + sum(counts))
        firsts, lasts = batch.firsts[stretch], batch.lasts[stretch]
        parts = zip(torch.split(firsts, _SPANS), torch.split(lasts, _SPANS), strict=True)
        scores = torch.cat([self.mention(self._vectors(tokens, *part)).squeeze(1).float() for part in parts])
        n_kept = min(math.ceil(self.settings.spans * sum(lengths)), sum(counts), _MOST_KEPT)
        kept_M = keep_spans(scores.detach(), firsts, lasts, n_kept)
        vectors_MG = self._vectors(tokens, firsts[kept_M], lasts[kept_M])
        speakers_M = batch.speakers[firsts[kept_M]]
        ranked_MK = self._antecedents(vectors_MG, scores[kept_M], speakers_M)
        return _Ranked(stretch, scores, start + kept_M, ranked_MK)

    def _vectors(self, tokens: _Tokens, firsts_S: Tensor, lasts_S: Tensor) -> Tensor:
        """`[first; last; head; width]` of spans, `(S, G)`; the head is a mean of inputs, by attention."""
        within_SW = firsts_S[:, None] + torch.arange(self.settings.span_width, device=firsts_S.device)
        mask_SW = within_SW <= lasts_S[:, None]
        within_SW = torch.where(mask_SW, within_SW, firsts_S[:, None])
        shares_SW = masked_softmax(tokens.headness[within_SW].float(), mask_SW)
        head_SX = F.embedding_bag(within_SW, tokens.inputs, per_sample_weights=shares_SW, mode="sum")
        parts = [tokens.hidden[firsts_S], tokens.hidden[lasts_S], head_SX, self.widths(lasts_S - firsts_S)]
        return torch.cat(parts, dim=1)

    def _antecedents(self, vectors_MG: Tensor, mention_M: Tensor, speakers_M: Tensor) -> Tensor:
        """Scores of no antecedent and of each of the K before a span, `(M, 1 + K)`."""
        n_kept = len(vectors_MG)
        n_antecedents = min(self.settings.antecedents, max(1, n_kept - 1))
        offsets_K = torch.arange(1, n_antecedents + 1, device=vectors_MG.device)
        other_MK = torch.arange(n_kept, device=vectors_MG.device)[:, None] - offsets_K
        mask_MK, other_MK = other_MK >= 0, other_MK.clamp(min=0)
        this_MP, other_MP = self.this(vectors_MG), self.other(vectors_MG)
        far_KF = self.distances(self.distance_kinds[:n_antecedents])
        near_MKF = self.speakers(_compared(speakers_M, other_MK))
        parts = []
        for row in range(0, n_kept, _PAIRED):
            rows = slice(row, row + _PAIRED)
            between = torch.cat([far_KF.expand_as(near_MKF[rows]), near_MKF[rows]], dim=2)
            products = vectors_MG[rows, None] * F.embedding(other_MK[rows], vectors_MG)
            hidden = this_MP[rows, None] + F.embedding(other_MK[rows], other_MP) + self.both(products)
            parts.append(self.pair(hidden + self.between(self.dropout(between))).squeeze(2).float())
        scores_MK = torch.cat(parts) + mention_M[:, None] + mention_M[other_MK]
        return F.pad(scores_MK.masked_fill(~mask_MK, IMPOSSIBLE), (1, 0))


def _scorer(settings: CorefSettings) -> list[nn.Module]:
    """What follows a first hidden layer's sums: a second one, and a score."""
    size, dropout = settings.scorer, settings.dropout
    return [
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(size, size),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(size, 1),
    ]


def _compared(speakers_M: Tensor, other_MK: Tensor) -> Tensor:
    """What a span's speaker is to that of each antecedent, `(M, K)`."""
    others_MK = speakers_M[other_MK]
    kinds = torch.where(speakers_M[:, None] == others_MK, _SAME, _OTHER)
    return kinds.masked_fill((speakers_M[:, None] == 0) | (others_MK == 0), _UNKNOWN)


def _drawn(lengths: Sequence[int], most: int) -> tuple[int, int]:
    """A stretch of as many sentences as a step takes, drawn by the host's generator, which training has seeded."""
    if len(lengths) <= most:
        return 0, len(lengths)
    first = int(torch.randint(len(lengths) - most + 1, ()))
    return first, first + most
