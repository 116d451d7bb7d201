"""What a model is made of: frozen dataclasses, checked on creation, read from and written to `options.json`.

The names of the fields are those of bilm-tf's `options.json`, so an error names what the user typed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from elmo.errors import ElmoError

Activation = Literal["relu", "tanh"]

N_MARKS = 5
"""Begin and end of sentence, begin and end of word, padding (SEMANTICS section 1)."""
N_BYTES_AND_MARKS = 256 + N_MARKS
"""What a character can be in all models but those with an alphabet of their own."""

# Far above any model; below them a hostile file costs neither time nor memory.
_MOST_LAYERS = 1000
_LARGEST_CLIP = 1e30


@dataclass(frozen=True, kw_only=True)
class CharCNNConfig:
    """The token encoder over characters."""

    filters: tuple[tuple[int, int], ...]
    """`(width, number)` of each convolution, in the order in which their outputs are concatenated."""
    embedding_dim: int = 16
    """Width of a character's vector."""
    n_highway: int = 0
    """How many highway layers follow the convolutions."""
    max_characters_per_token: int = 50
    """Length of a word's row of character ids, its two word marks included."""
    activation: Activation = "relu"
    """Applied after the maximum over positions."""
    alphabet: str | None = None
    """The characters that have a vector of their own, each once, where words are cut into these (ELMoForManyLangs)
    and not into the bytes of their UTF-8; all others share one vector."""
    word_dim: int = 0
    """Width of a table of whole words, whose vector is put before the filters' for the projection; 0 for none."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        _whole("char_cnn.embedding.dim", self.embedding_dim)
        _whole("char_cnn.word_dim", self.word_dim, least=0)
        if self.alphabet is not None and (type(self.alphabet) is not str or len({*self.alphabet}) < len(self.alphabet)):
            raise ElmoError(
                f"char_cnn.alphabet is {self.alphabet!r:.50}: give text in which each character stands once"
            )
        _whole("char_cnn.max_characters_per_token", self.max_characters_per_token, least=3, most=10_000)
        _whole("char_cnn.n_highway", self.n_highway, least=0, most=_MOST_LAYERS)
        _whole("the number of char_cnn.filters", len(self.filters), least=0, most=_MOST_LAYERS)
        if self.activation not in get_args(Activation):
            raise ElmoError(f"char_cnn.activation is {self.activation!r}: give 'relu' or 'tanh'")
        if not self.filters:
            raise ElmoError("char_cnn.filters is empty: give at least one [width, number]")
        for width, number in self.filters:
            _whole("char_cnn.filters: a width", width)
            _whole("char_cnn.filters: a number of filters", number)
            if width > self.max_characters_per_token:
                raise ElmoError(
                    f"char_cnn.filters has a width of {width}, but a word is only "
                    f"{self.max_characters_per_token} characters (char_cnn.max_characters_per_token)"
                )

    @property
    def n_filters(self) -> int:
        """Number of all filters."""
        return sum(number for _, number in self.filters)

    @property
    def width(self) -> int:
        """Width of a word before the projection."""
        return self.n_filters + self.word_dim

    @property
    def n_symbols(self) -> int:
        """Characters, the marks not counted: bytes, or an alphabet and one for all that is not in it."""
        return 256 if self.alphabet is None else len(self.alphabet) + 1

    def has_projection(self, projection_dim: int) -> bool:
        """Whether a linear layer makes `projection_dim` of a word's width (ELMoForManyLangs always has one)."""
        return self.alphabet is not None or self.width != projection_dim


@dataclass(frozen=True, kw_only=True)
class LSTMConfig:
    """The stack of LSTMs of one direction; both directions have the same."""

    dim: int
    """Width of the cell state."""
    projection_dim: int
    """Width of a word's vector and of what each layer puts out, per direction."""
    n_layers: int = 2
    """Number of LSTM layers."""
    cell_clip: float | None = None
    """The cell state is kept within plus and minus this value."""
    proj_clip: float | None = None
    """So is the projected output."""
    use_skip_connections: bool = False
    """From the second layer on, a layer's output is the sum of its LSTM's output and its input."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        _whole("lstm.dim", self.dim)
        _whole("lstm.projection_dim", self.projection_dim)
        _whole("lstm.n_layers", self.n_layers, most=_MOST_LAYERS)
        for name in ("cell_clip", "proj_clip"):
            clip = getattr(self, name)
            if clip is not None and not (type(clip) in (int, float) and 0 < clip < _LARGEST_CLIP):
                raise ElmoError(f"lstm.{name} is {clip!r:.50}: give a number above 0, or null for no clipping")
        if type(self.use_skip_connections) is not bool:
            raise ElmoError(f"lstm.use_skip_connections is {self.use_skip_connections!r}: give true or false")
        if self.projection_dim > self.dim:
            raise ElmoError(
                f"lstm.projection_dim ({self.projection_dim}) is larger than lstm.dim ({self.dim}): the LSTM layers "
                "would be narrower than the word layer, and neither bilm-tf nor this library can mix them"
            )

    @property
    def has_projection(self) -> bool:
        """Whether the LSTM's output goes through a projection (and its clip)."""
        return self.projection_dim < self.dim


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A biLM: a token encoder and a stack of LSTMs in each direction."""

    lstm: LSTMConfig
    """The LSTMs."""
    char_cnn: CharCNNConfig | None = None
    """The token encoder over characters; None for a model that reads words from a table."""
    n_words: int | None = None
    """Rows of the word table of a model without `char_cnn`, or with one beside it (`n_tokens_vocab` in
    `options.json`)."""

    def __post_init__(self) -> None:
        """Refuse a model with no token encoder, or with two that are not said to belong together."""
        if self.char_cnn is not None and self.char_cnn.word_dim:
            if self.n_words is None:
                raise ElmoError(f"char_cnn.word_dim is {self.char_cnn.word_dim}, but n_tokens_vocab is not given")
        elif (self.char_cnn is None) == (self.n_words is None):
            raise ElmoError(
                "a model reads either characters (char_cnn) or words (n_tokens_vocab): "
                f"{'neither is' if self.char_cnn is None else 'both are'} given"
            )
        if self.n_words is not None:
            _whole("n_tokens_vocab", self.n_words, most=2**31)

    @property
    def dim(self) -> int:
        """Width of a layer: forward and backward side by side."""
        return 2 * self.lstm.projection_dim

    @property
    def n_layers(self) -> int:
        """Number of layers that come out: the word layer and each LSTM's."""
        return self.lstm.n_layers + 1

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, n_words: int | None = None) -> ModelConfig:
        """Read bilm-tf's options; keys that only its trainer uses are passed over.

        `n_words` is taken where a model without characters does not say its `n_tokens_vocab`.
        """
        lstm = _section(options, "lstm")
        char_cnn = _char_cnn(_section(options, "char_cnn")) if options.get("char_cnn") is not None else None
        reads_words = char_cnn is None or char_cnn.word_dim > 0
        return cls(
            lstm=LSTMConfig(
                dim=_required(lstm, "lstm", "dim"),
                projection_dim=_required(lstm, "lstm", "projection_dim"),
                n_layers=lstm.get("n_layers", 1),
                cell_clip=lstm.get("cell_clip"),
                proj_clip=lstm.get("proj_clip"),
                use_skip_connections=lstm.get("use_skip_connections", False),
            ),
            char_cnn=char_cnn,
            n_words=options.get("n_tokens_vocab", n_words) if reads_words else None,
        )

    def to_options(self) -> dict[str, Any]:
        """Write bilm-tf's options, for prediction (262 characters, as its readers demand)."""
        options: dict[str, Any] = {
            "lstm": {
                "dim": self.lstm.dim,
                "projection_dim": self.lstm.projection_dim,
                "n_layers": self.lstm.n_layers,
                "cell_clip": self.lstm.cell_clip,
                "proj_clip": self.lstm.proj_clip,
                "use_skip_connections": self.lstm.use_skip_connections,
            }
        }
        if self.n_words is not None:
            options["n_tokens_vocab"] = self.n_words
        cnn = self.char_cnn
        if cnn is None:
            return options
        options["char_cnn"] = {
            "embedding": {"dim": cnn.embedding_dim},
            "filters": [list(pair) for pair in cnn.filters],
            "n_highway": cnn.n_highway,
            "n_characters": cnn.n_symbols + N_MARKS + 1,
            "max_characters_per_token": cnn.max_characters_per_token,
            "activation": cnn.activation,
        }
        if cnn.alphabet is not None:
            options["char_cnn"]["alphabet"] = cnn.alphabet
        if cnn.word_dim:
            options["char_cnn"]["word_dim"] = cnn.word_dim
        return options


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from `path`; anything else is an error that names the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ElmoError(f"{path} is not JSON: {error}") from error
    return parse_json(text, str(path))


def parse_json(text: str, name: str) -> dict[str, Any]:
    """Read a JSON object from text; anything else is an error that says where it is, by `name`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, a number of 5,000 digits, 10,000 brackets
        raise ElmoError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ElmoError(f"{name} holds a JSON {type(value).__name__}; an object is expected")
    return value


def _char_cnn(options: Mapping[str, Any]) -> CharCNNConfig:
    n_characters, alphabet = options.get("n_characters", N_BYTES_AND_MARKS + 1), options.get("alphabet")
    if alphabet is None and n_characters not in (N_BYTES_AND_MARKS, N_BYTES_AND_MARKS + 1):
        raise ElmoError(f"char_cnn.n_characters is {n_characters!r}: 261 and 262 (the same model) are known")
    filters = _required(options, "char_cnn", "filters")
    pairs = isinstance(filters, (list, tuple)) and all(isinstance(f, (list, tuple)) and len(f) == 2 for f in filters)
    if not pairs:
        raise ElmoError(f"char_cnn.filters is {filters!r}: give a list of [width, number]")
    embedding = _section(options, "embedding", inside="char_cnn.")
    return CharCNNConfig(
        embedding_dim=_required(embedding, "char_cnn.embedding", "dim"),
        filters=tuple((width, number) for width, number in filters),
        n_highway=options.get("n_highway") or 0,
        max_characters_per_token=options.get("max_characters_per_token", 50),
        activation=options.get("activation", "relu"),
        alphabet=alphabet,
        word_dim=options.get("word_dim", 0),
    )


def _section(options: Mapping[str, Any], name: str, inside: str = "") -> Mapping[str, Any]:
    section = options.get(name)
    if not isinstance(section, Mapping):
        found = "is missing" if section is None else f"is {section!r}"
        raise ElmoError(f"{inside}{name} {found} in the options: an object is expected")
    return section


def _required(section: Mapping[str, Any], where: str, key: str) -> Any:
    if key not in section:
        raise ElmoError(f"{where}.{key} is missing in the options")
    return section[key]


def _whole(name: str, value: object, *, least: int = 1, most: int = 2**20) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ElmoError(f"{name} is {value!r:.50}: give a whole number from {least:,} to {most:,}")
