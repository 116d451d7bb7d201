"""Does one sentence follow from another? ESIM (Chen et al. 2017), the sequence model, as in the paper's section A.2.

Shapes: B pairs, T tokens of the longest sentence, X width of what the first LSTMs and ELMo say of a token, K labels.
The premises and the hypotheses of a batch are the rows of one tensor, `2B` of them, so that each layer runs once.
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
from elmo.tasks.layers import BiLSTM, RowDropout, masked_max, masked_mean, masked_softmax
from elmo.tasks.metrics import accuracy
from elmo.tasks.pairs import Pair, read_pairs
from elmo.tasks.task import Task, TaskModel
from elmo.tasks.texts import two_texts
from elmo.tasks.vectors import FrozenLayers


@dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """Sizes of the model."""

    hidden: int = 300
    """Of the LSTMs, each direction, and of the layers between them."""
    dropout: float = 0.0
    """Before each LSTM, before the layer behind the alignment, and before each of the two last ones."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        if self.hidden < 1 or not 0 <= self.dropout < 1:
            raise ElmoError("model.hidden must be 1 or more, model.dropout from 0 to below 1")


@dataclass(frozen=True)
class PairBatch(Batch):
    """Pairs and their labels."""

    sentences: Sentences
    """The premises, and behind them the hypotheses: `2B`."""
    labels: Tensor
    """`(B,)`: their numbers, 0 where a label is unknown."""


class InferenceModel(TaskModel[Pair, str]):
    """LSTMs over each sentence, its alignment with the other, LSTMs over both, and a decision."""

    def __init__(self, encoder: TokenEncoder, labels: Sequence[str], settings: InferenceSettings) -> None:
        """Set it up to choose among labels."""
        super().__init__()
        self.encoder = encoder
        self.names = tuple(labels)
        self._numbers = {name: number for number, name in enumerate(labels)}
        hidden, dropout = settings.hidden, settings.dropout
        self.reading = BiLSTM(encoder.input_dim, hidden, dropout=dropout, sharing=2)
        self.dropout = RowDropout(dropout, sharing=2)
        self.project = nn.Linear(4 * (self.reading.output_dim + encoder.output_dim), hidden)
        self.composing = BiLSTM(hidden, hidden, dropout=dropout, sharing=2)
        self.decide = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(8 * hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, len(labels)),
        )

    def collate(self, examples: Sequence[Pair], frozen: FrozenLayers | None) -> PairBatch:
        """Sentences, and their labels where they have some."""
        sentences = [one.premise.tokens for one in examples] + [one.hypothesis.tokens for one in examples]
        labels = [self._numbers.get(one.label or "", 0) for one in examples]
        return PairBatch(self.encoder.collate(sentences, frozen), torch.tensor(labels))

    def loss(self, batch: PairBatch) -> Tensor:
        """`-ln p` of the label, the mean over the pairs."""
        return F.cross_entropy(self._scores(batch), batch.labels)

    def answers(self, batch: PairBatch, examples: Sequence[Pair]) -> list[str]:
        """The label of each pair."""
        return [self.names[number] for number in self._scores(batch).argmax(dim=1).tolist()]

    def _scores(self, batch: PairBatch) -> Tensor:
        """`(B, K)`."""
        mask, composed = batch.sentences.mask, self._composed(batch.sentences)
        pooled = torch.cat([masked_mean(composed, mask), masked_max(composed, mask)], dim=-1)
        scores: Tensor = self.decide(torch.cat(pooled.chunk(2), dim=-1))
        return scores

    def _composed(self, sentences: Sentences) -> Tensor:
        """`(2B, T, 2H)`: each token beside what the other sentence has for it."""
        read = self._read(sentences)
        other = aligned(read, sentences.mask)
        compared = torch.cat([read, other, read - other, read * other], dim=-1)
        composed: Tensor = self.composing(torch.relu(self.project(self.dropout(compared))), sentences.lengths)
        return composed

    def _read(self, sentences: Sentences) -> Tensor:
        """`(2B, T, X)`; ELMo's output place is that of the lowest LSTMs."""
        encoded = self.encoder(sentences)
        hidden: Tensor = self.reading(encoded.inputs, sentences.lengths)
        return hidden if encoded.output is None else torch.cat([hidden, encoded.output], dim=-1)


def aligned(read: Tensor, mask: Tensor) -> Tensor:
    """For each token the mean of the other sentence's vectors, weighted by how much they are like its own.

    Args:
        read: `(2B, T, X)`, the first half of the rows being the others of the second.
        mask: `(2B, T)`, true where there is a token.
    """
    premise, hypothesis = read.chunk(2)
    other = torch.cat([hypothesis, premise])
    other_mask = mask.roll(len(premise), dims=0)
    return masked_softmax(read @ other.transpose(1, 2), other_mask[:, None, :]) @ other


class Inference(Task[Pair, str]):
    """Natural language inference, or any label for two sentences."""

    name = "inference"
    score = "accuracy"
    model_settings = InferenceSettings
    raw_lines = False
    defaults: ClassVar[Mapping[str, Any]] = {
        "encoder": {"elmo": "both", "dropout": 0.0},
        "optimizer": {"rate": 0.002},
        "train": {"epochs": 10},
    }

    def read(self, path: str) -> list[Pair]:
        """Pairs of a file in one of the forms of `pairs.py`."""
        return read_pairs(path)

    def sentences(self, example: Pair) -> Sequence[Tokens]:
        """Premise and hypothesis."""
        return example.premise.tokens, example.hypothesis.tokens

    def labels(self, train: Sequence[Pair]) -> tuple[str, ...]:
        """Those of the training pairs."""
        return tuple(sorted({one.label for one in train if one.label is not None}))

    def model(self, encoder: TokenEncoder, labels: Sequence[str], settings: InferenceSettings) -> InferenceModel:
        """ESIM."""
        return InferenceModel(encoder, labels, settings)

    def scores(self, examples: Sequence[Pair], answers: Sequence[str]) -> dict[str, float]:
        """Share of the pairs with the right label."""
        return {"accuracy": accuracy([one.label for one in examples], answers)}

    def parse(self, lines: Sequence[str]) -> list[Pair]:
        """A pair a line: two sentences with a tab between them, or an object with sentence1 and sentence2."""
        return [Pair(*texts) for texts in two_texts(lines, ("sentence1", "sentence2"))]

    def record(self, example: Pair, answer: str) -> dict[str, Any]:
        """Both sentences and the label."""
        return {"sentence1": example.premise.raw, "sentence2": example.hypothesis.raw, "label": answer}

    def show(self, example: Pair, answer: str) -> str:
        """Both sentences, and the label behind them."""
        return f"{example.premise.raw.strip()} | {example.hypothesis.raw.strip()} | {answer}"
