"""AllenNLP's names and layouts of a biLM's weights beside ours: one table, read both ways.

The names are those in the state dict of `_ElmoBiLm`. Its highways are one matrix, the gate negated; its LSTMs have two
matrices and their gates in the order i, f, j, o; the 1 that TensorFlow adds to the forget gate is inside the bias.

Shapes: F filters, P projection, D cell, G = 4 * D gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elmo.config import ModelConfig
from elmo.errors import ElmoError
from elmo.lstm import FORGET_BIAS

Tensors = tuple[Tensor, ...]

ENCODER = "_token_embedder"
LSTM = "_elmo_lstm"


@dataclass(frozen=True)
class Row:
    """Weights that are the same numbers on both sides: their names and ours, and how one side becomes the other."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Callable[[Tensors], Tensors] = lambda tensors: tensors
    to_theirs: Callable[[Tensors], Tensors] = lambda tensors: tensors


def table(config: ModelConfig) -> list[Row]:
    """Every weight of a model that reads characters, in the order of the network."""
    return [*_encoder_rows(config), *_lstm_rows(config)]


def to_ours(config: ModelConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their weights (those of the table's rows that are given whole) under our names; gradients pass through."""
    rows = [row for row in table(config) if all(name in theirs for name in row.theirs)]
    return {
        name: weight
        for row in rows
        for name, weight in zip(row.ours, row.to_ours(tuple(theirs[n] for n in row.theirs)), strict=True)
    }


def to_theirs(config: ModelConfig, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our weights, read by their names one by one, under AllenNLP's names."""
    for row in table(config):
        yield from zip(row.theirs, row.to_theirs(tuple(read(name) for name in row.ours)), strict=True)


def _encoder_rows(config: ModelConfig) -> Iterator[Row]:
    if config.char_cnn is None:
        raise ElmoError("AllenNLP has no models that read words: give one that reads characters (char_cnn)")
    yield Row((f"{ENCODER}._char_embedding_weights",), ("encoder.characters.weight",))
    for i in range(len(config.char_cnn.filters)):
        for kind in ("weight", "bias"):
            yield Row((f"{ENCODER}.char_conv_{i}.{kind}",), (f"encoder.convolutions.{i}.{kind}",))
    for k in range(config.char_cnn.n_highway):
        for kind in ("weight", "bias"):
            ours = f"encoder.highways.{k}"
            yield Row(
                (f"{ENCODER}._highways._layers.{k}.{kind}",),
                (f"{ours}.transform.{kind}", f"{ours}.carry.{kind}"),
                _split_highway,
                _join_highway,
            )
    if config.char_cnn.n_filters != config.lstm.projection_dim:
        for kind in ("weight", "bias"):
            yield Row((f"{ENCODER}._projection.{kind}",), (f"encoder.projection.{kind}",))


def _lstm_rows(config: ModelConfig) -> Iterator[Row]:
    for direction, stack in (("forward", "forwards"), ("backward", "backwards")):
        for k in range(config.lstm.n_layers):
            theirs, ours = f"{LSTM}.{direction}_layer_{k}", f"{stack}.{k}"
            products = f"{theirs}.input_linearity.weight", f"{theirs}.state_linearity.weight"
            yield Row(products, (f"{ours}.kernel",), _join_kernel, _split_kernel)
            yield Row((f"{theirs}.state_linearity.bias",), (f"{ours}.bias",), _bias_to_ours, _bias_to_theirs)
            if config.lstm.has_projection:
                yield Row((f"{theirs}.state_projection.weight",), (f"{ours}.projection",), _transposed, _transposed)


def _split_highway(tensors: Tensors) -> Tensors:  # (2F, ...) to twice (F, ...)
    transform, kept = tensors[0].chunk(2)
    return transform, -kept  # their gate says how much of the input stays, ours how much goes


def _join_highway(tensors: Tensors) -> Tensors:
    transform, carry = tensors
    return (torch.cat([transform, -carry]),)


def _join_kernel(tensors: Tensors) -> Tensors:  # (G, P) and (G, P) to (2P, G)
    return (_swapped(torch.cat(tensors, dim=1)).t(),)


def _split_kernel(tensors: Tensors) -> Tensors:
    return _swapped(tensors[0].t()).chunk(2, dim=1)


def _swapped(gates: Tensor) -> Tensor:
    """Gates in the other order: i, f, j, o is i, j, f, o with the middle ones exchanged, and back."""
    first, second, third, last = gates.chunk(4)
    return torch.cat([first, third, second, last])


def _bias_to_ours(tensors: Tensors) -> Tensors:
    i, f, j, o = tensors[0].chunk(4)
    return (torch.cat([i, j, f - FORGET_BIAS, o]),)


def _bias_to_theirs(tensors: Tensors) -> Tensors:
    i, j, f, o = tensors[0].chunk(4)
    return (torch.cat([i, f + FORGET_BIAS, j, o]),)


def _transposed(tensors: Tensors) -> Tensors:
    return (tensors[0].t(),)
