"""AllenNLP's names and layouts of a biLM's weights beside ours: one table, read both ways.

The names are those in the state dict of `_ElmoBiLm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from elmo.config import ModelConfig
from elmo.errors import ElmoError
from elmo.formats.torch_layout import Row, highway_rows, lstm_rows, rows_to_ours, rows_to_theirs

ENCODER = "_token_embedder"
LSTM = "_elmo_lstm"


def table(config: ModelConfig) -> list[Row]:
    """Every weight of a model that reads characters, in the order of the network."""
    cnn = config.char_cnn
    if cnn is None or cnn.alphabet is not None or cnn.word_dim:
        raise ElmoError("AllenNLP's ELMo reads the bytes of words and nothing else: give a model that does (char_cnn)")
    if not cnn.has_projection(config.lstm.projection_dim):
        raise ElmoError("the options say filters without a projection: AllenNLP's ELMo always has one")
    rows = [Row((f"{ENCODER}._char_embedding_weights",), ("encoder.characters.weight",))]
    parts = [(f"char_conv_{i}", f"convolutions.{i}") for i in range(len(cnn.filters))]
    for theirs, ours in parts:
        rows += [Row((f"{ENCODER}.{theirs}.{kind}",), (f"encoder.{ours}.{kind}",)) for kind in ("weight", "bias")]
    rows += highway_rows(f"{ENCODER}._highways._layers.", cnn.n_highway)
    rows += [Row((f"{ENCODER}._projection.{kind}",), (f"encoder.projection.{kind}",)) for kind in ("weight", "bias")]
    return [*rows, *lstm_rows(f"{LSTM}.", config.lstm)]


def to_ours(config: ModelConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their weights (those of the table's rows that are given whole) under our names; gradients pass through."""
    return rows_to_ours(table(config), theirs)


def to_theirs(config: ModelConfig, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our weights, read by their names one by one, under AllenNLP's names."""
    return rows_to_theirs(table(config), read)
