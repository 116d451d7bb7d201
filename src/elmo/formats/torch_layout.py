"""Highways and LSTMs as AllenNLP and ELMoForManyLangs lay them out, beside ours: rows of a table, read both ways.

There a highway is one matrix whose gate opens for the input, not for what is made of it; an LSTM's input and recurrent
products are two matrices, its gates stand in the order i, f, j, o, and 1 is in the forget gate's bias already.

Shapes: F filters, P projection, D cell, G = 4 * D gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elmo.config import LSTMConfig, ModelConfig
from elmo.errors import ElmoError
from elmo.formats.bundle import check_finite, check_names, check_shape
from elmo.lstm import FORGET_BIAS
from elmo.model import weight_shapes

Tensors = tuple[Tensor, ...]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Row:
    """Weights that are the same numbers on both sides: their names and ours, and how one side becomes the other."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Callable[[Tensors], Tensors] = lambda tensors: tensors
    to_theirs: Callable[[Tensors], Tensors] = lambda tensors: tensors


def rows_to_ours(rows: Iterable[Row], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their weights (those of the rows that are given whole) under our names; gradients pass through."""
    return {
        name: weight
        for row in rows
        if all(name in theirs for name in row.theirs)
        for name, weight in zip(row.ours, row.to_ours(tuple(theirs[n] for n in row.theirs)), strict=True)
    }


def rows_to_theirs(rows: Iterable[Row], read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our weights, read by their names one by one, under their names."""
    for row in rows:
        yield from zip(row.theirs, row.to_theirs(tuple(read(name) for name in row.ours)), strict=True)


def shapes_of(rows: Iterable[Row], config: ModelConfig) -> Shapes:
    """Names and shapes of their weights, which follow from ours."""
    ours = weight_shapes(config)
    theirs = rows_to_theirs(rows, lambda name: torch.empty(ours[name], device="meta"))
    return {name: tuple(weight.shape) for name, weight in theirs}


def checked(theirs: Mapping[str, Tensor], shapes: Shapes, path: object) -> dict[str, Tensor]:
    """Exactly the tensors that are expected, float32, by name and shape, without NaN."""
    check_names(set(theirs), set(shapes), path)
    for name, shape in shapes.items():
        check_shape(name, tuple(theirs[name].shape), shape, path)
        check_finite(name, theirs[name], path)
    return {name: theirs[name].float() for name in shapes}


def highway_rows(prefix: str, count: int) -> Iterator[Row]:
    """The highways, whose names begin with `prefix` and their number."""
    for k in range(count):
        for part in ("weight", "bias"):
            ours = (f"encoder.highways.{k}.transform.{part}", f"encoder.highways.{k}.carry.{part}")
            yield Row((f"{prefix}{k}.{part}",), ours, _split_highway, _join_highway)


def lstm_rows(prefix: str, config: LSTMConfig) -> Iterator[Row]:
    """The LSTMs of both directions."""
    if not config.has_projection:
        raise ElmoError(
            f"lstm.dim and lstm.projection_dim are both {config.dim}: LSTMs without a projection are not known in this "
            "format"
        )
    for direction, stack in (("forward", "forwards"), ("backward", "backwards")):
        for k in range(config.n_layers):
            theirs, ours = f"{prefix}{direction}_layer_{k}", f"{stack}.{k}"
            products = f"{theirs}.input_linearity.weight", f"{theirs}.state_linearity.weight"
            yield Row(products, (f"{ours}.kernel",), _join_kernel, _split_kernel)
            yield Row((f"{theirs}.state_linearity.bias",), (f"{ours}.bias",), _bias_to_ours, _bias_to_theirs)
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
