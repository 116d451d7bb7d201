"""Tags for tokens by a biLSTM-CRF: named entities (Lample et al. 2016, as in the paper) and parts of speech."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from elmo.errors import ElmoError
from elmo.tasks.batch import Batch, padded
from elmo.tasks.encoder import Sentences, TokenEncoder, Tokens
from elmo.tasks.layers import CRF, BiLSTM, RowDropout
from elmo.tasks.metrics import accuracy, span_scores, spans_of
from elmo.tasks.readers import TaggedSentence, read_columns, read_conllu
from elmo.tasks.task import Task, TaskModel
from elmo.tasks.vectors import FrozenLayers

Tags = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TaggerSettings:
    """Sizes of the model."""

    hidden: int = 200
    """Of the LSTMs, each direction."""
    layers: int = 2
    """Of LSTMs."""
    dropout: float = 0.4
    """Before each LSTM and before the tags."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        if self.hidden < 1 or self.layers < 1 or not 0 <= self.dropout < 1:
            raise ElmoError("model.hidden and model.layers must be 1 or more, model.dropout from 0 to below 1")


@dataclass(frozen=True)
class TagBatch(Batch):
    """Sentences and their tags."""

    sentences: Sentences
    tags: Tensor
    """`(B, T)`: numbers of the tags, 0 where a tag is unknown or there is no token."""


class Tagger(TaskModel[TaggedSentence, Tags]):
    """LSTMs in both directions, a score for each tag, and a chain over them."""

    def __init__(
        self, encoder: TokenEncoder, labels: Sequence[str], settings: TaggerSettings, allowed: Tensor | None = None
    ) -> None:
        """Set it up; `allowed` says which tag may follow which (see `viterbi`)."""
        super().__init__()
        self.encoder = encoder
        self.names = tuple(labels)
        self._numbers = {name: number for number, name in enumerate(labels)}
        self._allowed = allowed
        self.lstm = BiLSTM(encoder.input_dim, settings.hidden, layers=settings.layers, dropout=settings.dropout)
        self.dropout = RowDropout(settings.dropout)
        self.score = nn.Linear(self.lstm.output_dim + encoder.output_dim, len(labels))
        self.crf = CRF(len(labels))

    def collate(self, examples: Sequence[TaggedSentence], frozen: FrozenLayers | None) -> TagBatch:
        """Sentences, and their tags where they have some."""
        tags = [[self._numbers.get(tag, 0) for tag in one.tags or ("",) * len(one.tokens)] for one in examples]
        return TagBatch(self.encoder.collate([one.tokens for one in examples], frozen), padded(tags))

    def loss(self, batch: TagBatch) -> Tensor:
        """`-ln p` of a sentence's tags, the mean over the tokens, so that long sentences count for more."""
        found = self.crf.loss(self._scores(batch), batch.tags, batch.sentences.mask)
        return found.sum() / batch.sentences.mask.sum()

    def answers(self, batch: TagBatch, examples: Sequence[TaggedSentence]) -> list[Tags]:
        """The best tags of each sentence."""
        best = self.crf.best(self._scores(batch), batch.sentences.lengths, self._allowed_on(batch.tags))
        return [tuple(self.names[number] for number in row) for row in best]

    def _scores(self, batch: TagBatch) -> Tensor:
        """`(B, T, K)`."""
        encoded = self.encoder(batch.sentences)
        hidden = self.lstm(encoded.inputs, batch.sentences.lengths)
        if encoded.output is not None:
            hidden = torch.cat([hidden, encoded.output], dim=-1)
        scores: Tensor = self.score(self.dropout(hidden))
        return scores

    def _allowed_on(self, like: Tensor) -> Tensor | None:
        return None if self._allowed is None else self._allowed.to(like.device)


class _Tagging(Task[TaggedSentence, Tags]):
    """What entities and parts of speech have in common."""

    model_settings = TaggerSettings

    def sentences(self, example: TaggedSentence) -> Sequence[Tokens]:
        """The sentence."""
        return (example.tokens,)

    def labels(self, train: Sequence[TaggedSentence]) -> tuple[str, ...]:
        """The tags of the training text."""
        return tuple(sorted({tag for one in train for tag in one.tags}))

    def parse(self, lines: Sequence[str]) -> list[TaggedSentence]:
        """A sentence a line, tokens with spaces between them."""
        return [TaggedSentence(tuple(tokens), ()) for line in lines if (tokens := line.split())]

    def record(self, example: TaggedSentence, answer: Tags) -> dict[str, Any]:
        """Tokens and tags."""
        return {"tokens": list(example.tokens), "tags": list(answer)}

    def show(self, example: TaggedSentence, answer: Tags) -> str:
        """Each token with its tag."""
        return " ".join(f"{token}/{tag}" for token, tag in zip(example.tokens, answer, strict=True))


class PartsOfSpeech(_Tagging):
    """Parts of speech of CoNLL-U files."""

    name = "pos"
    score = "accuracy"

    def read(self, path: str) -> list[TaggedSentence]:
        """Sentences with their universal tags."""
        return read_conllu(path)

    def model(self, encoder: TokenEncoder, labels: Sequence[str], settings: TaggerSettings) -> Tagger:
        """Any tag may follow any."""
        return Tagger(encoder, labels, settings)

    def scores(self, examples: Sequence[TaggedSentence], answers: Sequence[Tags]) -> dict[str, float]:
        """Share of the tokens with the right tag."""
        gold = [tag for one in examples for tag in one.tags]
        return {"accuracy": accuracy(gold, [tag for tags in answers for tag in tags])}


class Entities(_Tagging):
    """Named entities: files with a token and a BIO tag a line."""

    name = "ner"
    score = "f1"
    defaults: ClassVar[Mapping[str, Any]] = {"optimizer": {"rate": 0.0015}, "train": {"batch_size": 64}}

    def read(self, path: str) -> list[TaggedSentence]:
        """Sentences with a tag for each token, B- and I- as in IOB2."""
        return read_columns(path)

    def model(self, encoder: TokenEncoder, labels: Sequence[str], settings: TaggerSettings) -> Tagger:
        """An I- may only follow the B- or I- of its own kind."""
        return Tagger(encoder, labels, settings, allowed_bio(labels))

    def scores(self, examples: Sequence[TaggedSentence], answers: Sequence[Tags]) -> dict[str, float]:
        """Of exact spans with their kinds."""
        pairs = [(spans_of(one.tags), spans_of(tags)) for one, tags in zip(examples, answers, strict=True)]
        return span_scores(pairs)

    def show(self, example: TaggedSentence, answer: Tags) -> str:
        """The sentence with each entity in brackets."""
        return bracketed(example.tokens, answer)


def allowed_bio(labels: Sequence[str]) -> Tensor:
    """Which tag may follow which, and in the last row which may come first: `(K + 1, K)` bool."""
    before = [*labels, "O"]
    rows = [
        [not to.startswith("I-") or (one[:2] in ("B-", "I-") and one[2:] == to[2:]) for to in labels] for one in before
    ]
    return torch.tensor(rows)


def bracketed(tokens: Sequence[str], tags: Sequence[str]) -> str:
    """A sentence with each span in brackets, behind its kind."""
    words = list(tokens)
    for kind, start, end in spans_of(tags):
        words[start] = f"[{kind} {words[start]}"
        words[end - 1] += "]"
    return " ".join(words)
