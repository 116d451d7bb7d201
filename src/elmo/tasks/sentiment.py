"""Texts into classes by a biattentive classification network (McCann et al. 2017, as in the paper): SST-5.

A text is read, attends to itself, is read again with what it attended to, and pooled in four ways.

Shapes: B texts, T tokens, I input, H hidden, E width of what is pooled, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.errors import ElmoError
from elmo.tasks.batch import Batch
from elmo.tasks.encoder import Sentences, TokenEncoder, Tokens
from elmo.tasks.layers import BiLSTM, masked_max, masked_mean, masked_softmax
from elmo.tasks.metrics import accuracy
from elmo.tasks.task import Task, TaskModel
from elmo.tasks.trees import LabelledText, read_labelled
from elmo.tasks.vectors import FrozenLayers

_UNKNOWN = -1  # a label that is not known, which the loss leaves out


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """Sizes of the model, and what it is trained on."""

    hidden: int = 300
    """Of the LSTMs, each direction; other layers are multiples of it."""
    dropout: float = 0.2
    """Before each layer but the first."""
    shortest_phrase: int = 1
    """Parts of a tree with so many tokens or more are trained on as texts of their own; 0 for whole texts alone."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        if self.hidden < 1 or self.shortest_phrase < 0 or not 0 <= self.dropout < 1:
            raise ElmoError(
                "model.hidden must be 1 or more, model.shortest_phrase 0 or more, model.dropout from 0 to below 1"
            )


@dataclass(frozen=True)
class TextBatch(Batch):
    """Texts and their classes."""

    sentences: Sentences
    labels: Tensor
    """`(B,)`: numbers of the classes, -1 where not known."""


@dataclass(frozen=True)
class Verdict:
    """What a text is held to be."""

    label: str
    shares: Mapping[str, float]
    """The probability of each class."""


class BiattentiveClassifier(TaskModel[LabelledText, Verdict]):
    """The network; with two ReLU layers at its end, as the paper has it, where McCann et al. have maxout layers."""

    def __init__(self, encoder: TokenEncoder, labels: Sequence[str], settings: ClassifierSettings) -> None:
        """Set it up."""
        super().__init__()
        self.encoder = encoder
        self.names = tuple(labels)
        self._numbers = {name: number for number, name in enumerate(labels)}
        hidden = settings.hidden
        self.before = nn.Sequential(nn.Linear(encoder.input_dim, hidden), nn.ReLU())
        self.reader = BiLSTM(hidden, hidden, dropout=settings.dropout)
        self.integrator = BiLSTM(3 * self.reader.output_dim, hidden, dropout=settings.dropout)
        width = self.integrator.output_dim + encoder.output_dim
        self.attention = nn.Linear(width, 1)
        self.answer = nn.Sequential(
            nn.Dropout(settings.dropout),
            nn.Linear(4 * width, 4 * hidden),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(4 * hidden, 2 * hidden),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(2 * hidden, len(labels)),
        )

    def collate(self, examples: Sequence[LabelledText], frozen: FrozenLayers | None) -> TextBatch:
        """Texts, and their classes where they are known."""
        labels = torch.tensor([self._numbers.get(one.label, _UNKNOWN) for one in examples])
        return TextBatch(self.encoder.collate([one.tokens for one in examples], frozen), labels)

    def loss(self, batch: TextBatch) -> Tensor:
        """`-ln p` of a text's class, the mean over the texts."""
        return F.cross_entropy(self._scores(batch.sentences), batch.labels, ignore_index=_UNKNOWN)

    def answers(self, batch: TextBatch, examples: Sequence[LabelledText]) -> list[Verdict]:
        """The most probable class of each text."""
        shares = torch.softmax(self._scores(batch.sentences), dim=-1).tolist()
        return [
            Verdict(self.names[max(range(len(row)), key=row.__getitem__)], dict(zip(self.names, row, strict=True)))
            for row in shares
        ]

    def _scores(self, sentences: Sentences) -> Tensor:
        """`(B, K)`."""
        encoded = self.encoder(sentences)
        read = self.reader(self.before(encoded.inputs), sentences.lengths)
        attended = _to_itself(read, encoded.mask)
        both = torch.cat([read, read - attended, read * attended], dim=-1)
        integrated = self.integrator(both, sentences.lengths)
        if encoded.output is not None:
            integrated = torch.cat([integrated, encoded.output], dim=-1)
        scores: Tensor = self.answer(self._pooled(integrated, encoded.mask))
        return scores

    def _pooled(self, x_BTE: Tensor, mask_BT: Tensor) -> Tensor:
        """`(B, 4E)`: largest, smallest, mean, and a mean whose weights are learned."""
        weights_B1T = masked_softmax(self.attention(x_BTE).squeeze(2), mask_BT)[:, None]
        weighted = (weights_B1T @ x_BTE).squeeze(1)
        return torch.cat(
            [masked_max(x_BTE, mask_BT), -masked_max(-x_BTE, mask_BT), masked_mean(x_BTE, mask_BT), weighted], dim=-1
        )


def _to_itself(x_BTE: Tensor, mask_BT: Tensor) -> Tensor:
    """For each token, the mean of the text's tokens, weighted by how alike they are."""
    weights_BTT = masked_softmax(x_BTE @ x_BTE.transpose(1, 2), mask_BT[:, None])
    return weights_BTT @ x_BTE


class Sentiment(Task[LabelledText, Verdict]):
    """One of several classes for a text, such as the five of the Stanford Sentiment Treebank."""

    name = "sentiment"
    score = "accuracy"
    model_settings = ClassifierSettings
    defaults: ClassVar[Mapping[str, Any]] = {
        "encoder": {"dropout": 0.0},
        "optimizer": {"rate": 0.0007},
        "train": {"batch_size": 256, "epochs": 8},
    }

    def read(self, path: str) -> list[LabelledText]:
        """Whole texts, those of trees with their phrases."""
        return read_labelled(path)

    def for_training(self, examples: Sequence[LabelledText], settings: ClassifierSettings) -> list[LabelledText]:
        """Texts and, if long enough, their phrases, the same one only once; no phrase of a class that no text has."""
        if not settings.shortest_phrase:
            return list(examples)
        known = {text.label for text in examples}
        phrases = (
            LabelledText(text.tokens[start:end], label)
            for text in examples
            for label, start, end in text.phrases
            if end - start >= settings.shortest_phrase and label in known
        )
        whole = (LabelledText(text.tokens, text.label) for text in examples)
        return list(dict.fromkeys([*whole, *phrases]))

    def sentences(self, example: LabelledText) -> Sequence[Tokens]:
        """The text."""
        return (example.tokens,)

    def labels(self, train: Sequence[LabelledText]) -> tuple[str, ...]:
        """The classes of the training texts."""
        return tuple(sorted({text.label for text in train}))

    def model(
        self, encoder: TokenEncoder, labels: Sequence[str], settings: ClassifierSettings
    ) -> BiattentiveClassifier:
        """A model with start values."""
        return BiattentiveClassifier(encoder, labels, settings)

    def scores(self, examples: Sequence[LabelledText], answers: Sequence[Verdict]) -> dict[str, float]:
        """Share of the texts with the right class."""
        return {"accuracy": accuracy([text.label for text in examples], [answer.label for answer in answers])}

    def parse(self, lines: Sequence[str]) -> list[LabelledText]:
        """A text a line, tokens with spaces between them."""
        return [LabelledText(tuple(tokens)) for line in lines if (tokens := line.split())]

    def record(self, example: LabelledText, answer: Verdict) -> dict[str, Any]:
        """Tokens, the class, and the probability of each."""
        return {"tokens": list(example.tokens), "label": answer.label, "shares": dict(answer.shares)}

    def show(self, example: LabelledText, answer: Verdict) -> str:
        """The class and its probability before the text."""
        return f"{answer.label} ({answer.shares[answer.label]:.2f})\t{' '.join(example.tokens)}"
