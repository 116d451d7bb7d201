"""The words of a task model: `[x; ELMo]`, section 3.3 of the paper.

`x` is what a word is without its sentence: a static vector and, read by a small convolution, its characters. ELMo's mix
of layers stands beside it at the model's input, at its output (beside what the model's own recurrent layers made), or
at both, a mix of its own in each place.

Shapes: B sentences, T tokens, L layers, D width of a layer, C characters of a word, N different words of a batch, I
width of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.chars import words_to_ids
from elmo.config import CharCNNConfig
from elmo.errors import ElmoError
from elmo.model import BiLM, CharEncoder, ScalarMix
from elmo.tasks.batch import Batch, padded
from elmo.tasks.vectors import FrozenLayers
from elmo.tasks.words import WordVectors

Place = Literal["none", "input", "output", "both"]
Tokens = Sequence[str]

_NONE, _UNKNOWN = 0, 1  # rows of the word table before those of words
_CHARACTERS = 20  # of a word that the small convolution reads, its two marks included


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """What a task model knows of a word."""

    elmo: Place = "input"
    """Where ELMo goes in."""
    layers: str = "all"
    """Which layers of the biLM are mixed: all, top, or a number."""
    elmo_dropout: float = 0.5
    """On the mixed vectors."""
    penalty: float = 0.001
    """The paper's lambda: `lambda * sum w^2` is added to the loss, and pulls the mix to the plain average."""
    layer_norm: bool = False
    """Normalise each layer over the batch before it is mixed."""
    train_bilm: bool = False
    """Train the biLM, too; else its layers are computed once, before training."""
    vectors: str = "default"
    """Static word vectors: default for the package's own, a file or folder, or none: a table that is learned."""
    word_dim: int = 100
    """Width of a learned table."""
    characters: int = 50
    """Filters, three characters wide, over a word's characters; 0 for none."""
    dropout: float = 0.3
    """On the words without context."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        if self.elmo not in get_args(Place):
            raise ElmoError(f"encoder.elmo is {self.elmo!r}: give one of {', '.join(get_args(Place))}")
        if self.layers not in ("all", "top") and not self.layers.isdecimal():
            raise ElmoError(f"encoder.layers is {self.layers!r}: give all, top, or the number of a layer")
        for name in ("elmo_dropout", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ElmoError(f"encoder.{name} is {getattr(self, name)!r}: give a number from 0 to below 1")
        if self.penalty < 0:
            raise ElmoError(f"encoder.penalty is {self.penalty!r}: give 0 or more")
        if self.word_dim < 1 or self.characters < 0:
            raise ElmoError("encoder.word_dim must be 1 or more, encoder.characters 0 or more")

    @property
    def places(self) -> tuple[str, ...]:
        """Where ELMo goes in, as names of mixes."""
        return {"none": (), "both": ("input", "output")}.get(self.elmo, (self.elmo,))

    def chosen(self, n_layers: int) -> list[int]:
        """Numbers of the layers, of a biLM that has so many."""
        if self.layers == "all":
            return list(range(n_layers))
        layer = n_layers - 1 if self.layers == "top" else int(self.layers)
        if layer >= n_layers:
            raise ElmoError(f"encoder.layers is {layer}: the model has layers 0 to {n_layers - 1}")
        return [layer]


@dataclass(frozen=True)
class Sentences(Batch):
    """Sentences as numbers."""

    lengths: tuple[int, ...]
    """Tokens of each sentence; on the host, where packing wants them."""
    mask: Tensor
    """`(B, T)`, true where there is a token."""
    words: Tensor
    """`(B, T)`: rows of the word table."""
    types: Tensor
    """`(B, T)`: which of the batch's different words, whose characters are below."""
    characters: Tensor
    """`(N, C)`, the first word being no word."""
    layers: Tensor | None
    """`(B, T, L, D)` float16, of a frozen biLM."""
    elmo_types: Tensor | None
    """`(N, C')`: the words' characters as the biLM reads them, if it is trained."""


@dataclass(frozen=True)
class Encoded:
    """Vectors of the tokens of sentences."""

    inputs: Tensor
    """`(B, T, I)`: `x`, or `[x; ELMo]`."""
    output: Tensor | None
    """`(B, T, D)`: ELMo for the model's output, if it goes in there."""
    mask: Tensor
    """`(B, T)`."""


class TokenEncoder(nn.Module):
    """Makes vectors of tokens."""

    def __init__(
        self,
        settings: EncoderSettings,
        words: WordVectors | Sequence[str],
        *,
        elmo: tuple[int, int] | None = None,
        bilm: BiLM | None = None,
        word_dim: int | None = None,
    ) -> None:
        """Set it up.

        Args:
            settings: what is known of a word.
            words: static vectors, which are not trained; or only words, whose vectors are.
            elmo: number and width of the layers that are mixed, where ELMo goes in.
            bilm: the biLM, if it is trained with the model.
            word_dim: width of a table of words alone; that of the settings if not given.
        """
        super().__init__()
        self.settings = settings
        self.words = words.words if isinstance(words, WordVectors) else tuple(words)
        self._rows: Mapping[str, int] = {word: row for row, word in enumerate(self.words, start=_UNKNOWN + 1)}
        self.bilm = bilm
        cnn = None if bilm is None else bilm.config.char_cnn
        if bilm is not None and (cnn is None or cnn.alphabet is not None or cnn.word_dim):
            raise ElmoError(
                "--train-bilm: a biLM that reads words, or characters of an alphabet of its own (ELMoForManyLangs), "
                "cannot be trained in a task model: leave that out"
            )
        dim = words.dim if isinstance(words, WordVectors) else word_dim or settings.word_dim
        table = nn.Embedding(len(self.words) + 2, dim, padding_idx=_NONE)
        if isinstance(words, WordVectors):
            scale = float(words.vectors.std()) if len(words.words) else 1.0
            table.weight.data[2:] = torch.from_numpy(words.vectors) / max(scale, 1e-6) * 0.5
            table.weight.data[_UNKNOWN].zero_()
            table.requires_grad_(False)
        else:
            nn.init.normal_(table.weight, std=0.1)[_NONE].detach().zero_()
        self.table = table
        config = CharCNNConfig(filters=((3, max(1, settings.characters)),), max_characters_per_token=_CHARACTERS)
        self.spelling = CharEncoder(config, settings.characters) if settings.characters else None
        n_layers, width = elmo or (0, 0)
        self.mixes = nn.ModuleDict(
            {place: ScalarMix(n_layers, settings.layer_norm) for place in (settings.places if elmo else ())}
        )
        self.input_dim = dim + settings.characters + (width if "input" in self.mixes else 0)
        """I."""
        self.output_dim = width if "output" in self.mixes else 0
        """D where ELMo goes in at the output, else 0."""
        self._dropout = nn.Dropout(settings.dropout)
        self._elmo_dropout = nn.Dropout(settings.elmo_dropout)

    def collate(self, sentences: Sequence[Tokens], frozen: FrozenLayers | None) -> Sentences:
        """Sentences as numbers; `frozen` has their layers, where the biLM is not trained."""
        types: dict[str, int] = {}
        numbers = [[types.setdefault(word, len(types)) + 1 for word in tokens] for tokens in sentences]
        ids = padded(numbers)
        rows = torch.tensor([_NONE, *map(self._row, types)], dtype=torch.long)
        trained = self.bilm is not None
        return Sentences(
            lengths=tuple(map(len, sentences)),
            mask=ids > 0,
            words=rows[ids],
            types=ids,
            characters=_characters(list(types), _CHARACTERS),
            layers=frozen(sentences) if frozen is not None and self.mixes and not trained else None,
            elmo_types=_characters(list(types), self._elmo_width()) if trained else None,
        )

    def forward(self, batch: Sentences) -> Encoded:
        """Encode sentences."""
        parts = [self.table(batch.words)]
        if self.spelling is not None:
            parts.append(F.embedding(batch.types, self.spelling(batch.characters)))
        x_BTI = self._dropout(torch.cat(parts, dim=-1))
        mixed = self._mixed(batch)
        inputs = torch.cat([x_BTI, mixed["input"]], dim=-1) if "input" in mixed else x_BTI
        return Encoded(inputs * batch.mask[:, :, None], mixed.get("output"), batch.mask)

    def penalty(self) -> Tensor:
        """What the mixes add to the loss."""
        found = [mix.penalty(self.settings.penalty) for mix in self.mixes.values() if isinstance(mix, ScalarMix)]
        return torch.stack(found).sum() if found else self.table.weight.new_zeros(())

    def layer_weights(self) -> dict[str, list[float]]:
        """What each mix has learned: the layers' shares, which sum to 1, by where ELMo goes in."""
        return {
            place: torch.softmax(mix.weights, dim=0).tolist()
            for place, mix in self.mixes.items()
            if isinstance(mix, ScalarMix)
        }

    def _mixed(self, batch: Sentences) -> dict[str, Tensor]:
        if not self.mixes:
            return {}
        layers_LBTD = self._trained_layers(batch) if batch.layers is None else batch.layers.permute(2, 0, 1, 3).float()
        return {
            place: self._elmo_dropout(mix(layers_LBTD, batch.mask) * batch.mask[:, :, None])
            for place, mix in self.mixes.items()
        }

    def _trained_layers(self, batch: Sentences) -> Tensor:
        assert self.bilm is not None
        assert batch.elmo_types is not None
        ids_BTC = batch.elmo_types[batch.types] * batch.mask[:, :, None]
        layers = self.settings.chosen(self.bilm.config.n_layers)
        layers_LBTD: Tensor = self.bilm(self.bilm.with_boundaries(ids_BTC), layers=layers).layers
        return layers_LBTD[:, :, 1:-1]

    def _row(self, word: str) -> int:
        found = self._rows.get(word)
        return self._rows.get(word.lower(), _UNKNOWN) if found is None else found

    def _elmo_width(self) -> int:
        assert self.bilm is not None
        cnn = self.bilm.config.char_cnn
        assert cnn is not None
        return cnn.max_characters_per_token


def _characters(words: list[str], width: int) -> Tensor:
    """`(N + 1, C)`: characters of words, behind a row that is no word's."""
    return F.pad(torch.from_numpy(words_to_ids(words, width)).long(), (0, 0, 1, 0))
