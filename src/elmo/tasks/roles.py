"""Semantic roles: who did what to whom (He et al. 2017, as in the paper).

LSTMs on top of each other read a sentence forwards and backwards in turn; each token gets a score for each tag, and the
best tags that make whole spans are the answer. An example is one predicate, which the model is told.

Shapes: B predicates, T tokens, I input, H hidden, K tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.engine.available import has_row_kernels
from elmo.errors import ElmoError
from elmo.lstm import reverse
from elmo.tasks.batch import Batch, padded
from elmo.tasks.encoder import Sentences, TokenEncoder, Tokens
from elmo.tasks.layers import RowDropout, start_lstms, viterbi
from elmo.tasks.metrics import arguments_of, span_scores
from elmo.tasks.role_reader import Proposition, read_propositions
from elmo.tasks.tagging import Tags, allowed_bio, bracketed
from elmo.tasks.task import Task, TaskModel
from elmo.tasks.vectors import FrozenLayers

_UNKNOWN = -1  # a tag that is not known, or no token's, which the loss leaves out


@dataclass(frozen=True, kw_only=True)
class RoleSettings:
    """Sizes of the model."""

    hidden: int = 300
    """Of each LSTM."""
    layers: int = 8
    """LSTMs, every other one backwards."""
    predicate_dim: int = 100
    """Width of the mark that tells the predicate from other tokens."""
    dropout: float = 0.1
    """Behind each LSTM, one mask for all tokens of a sentence."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        if min(self.hidden, self.layers, self.predicate_dim) < 1 or not 0 <= self.dropout < 1:
            raise ElmoError(
                "model.hidden, model.layers and model.predicate_dim must be 1 or more, model.dropout from 0 to below 1"
            )


@dataclass(frozen=True)
class RoleBatch(Batch):
    """Sentences, a predicate in each, and the tags."""

    sentences: Sentences
    predicates: Tensor
    """`(B,)`: which token."""
    tags: Tensor
    """`(B, T)`: numbers of the tags, -1 where a tag is unknown or there is no token."""


class HighwayLSTM(nn.Module):
    """An LSTM and a way around it: `g * lstm(x) + (1 - g) * W x`, with `g = sigmoid(U [x; lstm(x)] + b)`.

    He et al. have the gate inside the recurrence, which no library runs fast: it takes a Python loop over tokens. With
    the gate outside, a layer is one call, and gradients still have a short way through many layers.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        """Start with most of the input going around, which lets many layers learn sooner."""
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.around = nn.Linear(inputs, hidden, bias=False)
        self.gate = nn.Linear(inputs + hidden, hidden)
        start_lstms(self.lstm)
        nn.init.orthogonal_(self.around.weight)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x_BTI: Tensor, lengths_B: Tensor) -> Tensor:
        """`(B, T, I)` to `(B, T, H)`, first token first."""
        made_BTH = self._recurred(x_BTI, lengths_B)
        gate_BTH = torch.sigmoid(self.gate(torch.cat([x_BTI, made_BTH], dim=-1)))
        out_BTH: Tensor = gate_BTH * made_BTH + (1 - gate_BTH) * self.around(x_BTI)
        return out_BTH

    def _recurred(self, x_BTI: Tensor, lengths_B: Tensor) -> Tensor:
        if has_row_kernels(x_BTI.device, self.lstm.hidden_size):
            from elmo.tasks.triton_rows import lstm_rows

            return lstm_rows(self.lstm, x_BTI, lengths_B.to(torch.int32))
        made_BTH: Tensor = self.lstm(x_BTI)[0]
        return made_BTH


class AlternatingLSTM(nn.Module):
    """Highway LSTMs on top of each other, the second and every other one reading backwards.

    Rows are turned around within their lengths, so padding always comes last, where it changes no token: nothing need
    be packed.
    """

    def __init__(self, inputs: int, hidden: int, *, layers: int, dropout: float) -> None:
        """Set it up."""
        super().__init__()
        self.layers = nn.ModuleList(HighwayLSTM(hidden if layer else inputs, hidden) for layer in range(layers))
        self.dropout = RowDropout(dropout)

    def forward(self, x_BTI: Tensor, mask_BT: Tensor) -> Tensor:
        """`(B, T, I)` to `(B, T, H)`; what stands behind a row's end means nothing."""
        lengths_B = mask_BT.sum(dim=1)
        x = x_BTI
        for layer in self.layers:
            x = reverse(self.dropout(layer(x, lengths_B)), lengths_B)
        return reverse(x, lengths_B) if len(self.layers) % 2 else x


class RoleLabeler(TaskModel[Proposition, Tags]):
    """Scores of tags for each token, given a predicate."""

    def __init__(self, encoder: TokenEncoder, labels: Sequence[str], settings: RoleSettings) -> None:
        """Set it up."""
        super().__init__()
        self.encoder = encoder
        self.names = tuple(labels)
        self._numbers = {name: number for number, name in enumerate(labels)}
        self.mark = nn.Embedding(2, settings.predicate_dim)
        inputs = encoder.input_dim + settings.predicate_dim
        self.lstm = AlternatingLSTM(inputs, settings.hidden, layers=settings.layers, dropout=settings.dropout)
        self.score = nn.Linear(settings.hidden + encoder.output_dim, len(labels))
        self.register_buffer("allowed", allowed_bio(labels), persistent=False)
        self.allowed: Tensor

    def collate(self, examples: Sequence[Proposition], frozen: FrozenLayers | None) -> RoleBatch:
        """Sentences, predicates, and tags where they are known."""
        tags = [[self._numbers.get(tag, _UNKNOWN) for tag in one.tags or ("",) * len(one.tokens)] for one in examples]
        return RoleBatch(
            sentences=self.encoder.collate([one.tokens for one in examples], frozen),
            predicates=torch.tensor([one.predicate for one in examples]),
            tags=padded(tags, fill=_UNKNOWN),
        )

    def loss(self, batch: RoleBatch) -> Tensor:
        """`-ln p` of a token's tag, the mean over all tokens, so that long sentences count for more."""
        return F.cross_entropy(self._scores(batch).flatten(0, 1), batch.tags.flatten(), ignore_index=_UNKNOWN)

    def answers(self, batch: RoleBatch, examples: Sequence[Proposition]) -> list[Tags]:
        """The best tags of each sentence that begin each span with its `B-`."""
        nothing_K = self.score.bias.new_zeros(len(self.names))
        best = viterbi(
            self._scores(batch),
            batch.sentences.lengths,
            transitions=nothing_K.expand(len(nothing_K), -1),
            start=nothing_K,
            end=nothing_K,
            allowed=self.allowed,
        )
        return [tuple(self.names[number] for number in row) for row in best]

    def _scores(self, batch: RoleBatch) -> Tensor:
        """`(B, T, K)`."""
        encoded = self.encoder(batch.sentences)
        place_T = torch.arange(encoded.mask.shape[1], device=encoded.mask.device)
        marked_BT = (place_T == batch.predicates[:, None]).long()
        hidden = self.lstm(torch.cat([encoded.inputs, self.mark(marked_BT)], dim=-1), encoded.mask)
        if encoded.output is not None:
            hidden = torch.cat([hidden, encoded.output], dim=-1)
        scores: Tensor = self.score(hidden)
        return scores


class SemanticRoles(Task[Proposition, Tags]):
    """Arguments of given predicates."""

    name = "srl"
    score = "f1"
    model_settings = RoleSettings
    raw_lines = False
    defaults: ClassVar[Mapping[str, Any]] = {
        "optimizer": {"rate": 0.0015},
        "train": {"batch_size": 128, "epochs": 15},
    }

    def read(self, path: str) -> list[Proposition]:
        """Each predicate of each sentence, of JSON lines or CoNLL 2012."""
        return read_propositions(path)

    def sentences(self, example: Proposition) -> Sequence[Tokens]:
        """The sentence."""
        return (example.tokens,)

    def labels(self, train: Sequence[Proposition]) -> tuple[str, ...]:
        """The tags of the training text."""
        return tuple(sorted({tag for one in train for tag in one.tags}))

    def model(self, encoder: TokenEncoder, labels: Sequence[str], settings: RoleSettings) -> RoleLabeler:
        """A model with start values."""
        return RoleLabeler(encoder, labels, settings)

    def scores(self, examples: Sequence[Proposition], answers: Sequence[Tags]) -> dict[str, float]:
        """Of exact arguments with their roles, as CoNLL 2005 counts them."""
        pairs = [(arguments_of(one.tags), arguments_of(tags)) for one, tags in zip(examples, answers, strict=True)]
        return span_scores(pairs)

    def parse(self, lines: Sequence[str]) -> list[Proposition]:
        """A sentence a line, spaces between tokens, each predicate in brackets, as in `The cat [sat] down`."""
        return [one for number, line in enumerate(lines, start=1) if line.strip() for one in _marked(line, number)]

    def record(self, example: Proposition, answer: Tags) -> dict[str, Any]:
        """Tokens, the predicate's place, and tags."""
        return {"tokens": list(example.tokens), "predicate": example.predicate, "tags": list(answer)}

    def show(self, example: Proposition, answer: Tags) -> str:
        """The sentence with each argument in brackets, behind its role."""
        return bracketed(example.tokens, answer)


def _marked(line: str, number: int) -> list[Proposition]:
    """A proposition for each token in brackets."""
    words = line.split()
    marked = [place for place, word in enumerate(words) if len(word) > 2 and word[0] == "[" and word[-1] == "]"]
    if not marked:
        raise ElmoError(
            f"line {number}: no predicate in {line.strip()!r:.80}: put it in brackets, as in 'The cat [sat] down .'"
        )
    tokens = tuple(word[1:-1] if place in marked else word for place, word in enumerate(words))
    return [Proposition(tokens, place) for place in marked]
