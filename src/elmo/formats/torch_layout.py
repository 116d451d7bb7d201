"""Highways and LSTMs as AllenNLP and ELMoForManyLangs lay them out, and what becomes of them here.

There a highway is one matrix whose gate opens for the input, not for what is made of it; an LSTM's input and recurrent
products are two matrices, its gates stand in the order i, f, g, o, and 1 is in the forget gate's bias already.

Shapes: F filters, P projection, D cell.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from elmo.config import LSTMConfig
from elmo.errors import ElmoError
from elmo.formats.bundle import check_finite, check_names, check_shape
from elmo.lstm import FORGET_BIAS

Shapes = dict[str, tuple[int, ...]]


def highway_shapes(prefix: str, count: int, filters: int) -> Shapes:
    """Names and shapes of highways."""
    shapes: Shapes = {}
    for k in range(count):
        shapes |= {f"{prefix}{k}.weight": (2 * filters, filters), f"{prefix}{k}.bias": (2 * filters,)}
    return shapes


def highway_weights(theirs: Mapping[str, Tensor], prefix: str, count: int) -> dict[str, Tensor]:
    """Our highways, by their names in `BiLM.state_dict`."""
    ours = {}
    for k in range(count):
        for part in ("weight", "bias"):
            transform, kept = theirs[f"{prefix}{k}.{part}"].chunk(2)
            # sigmoid(-z) is 1 - sigmoid(z): their gate turned round.
            ours[f"encoder.highways.{k}.transform.{part}"] = transform
            ours[f"encoder.highways.{k}.carry.{part}"] = -kept
    return ours


def lstm_shapes(prefix: str, config: LSTMConfig) -> Shapes:
    """Names and shapes of both directions' LSTMs."""
    if not config.has_projection:
        raise ElmoError(
            f"lstm.dim and lstm.projection_dim are both {config.dim}: LSTMs without a projection are not known in this "
            "format"
        )
    gates, width = 4 * config.dim, config.projection_dim
    shapes: Shapes = {}
    for layer in _layers(prefix, config):
        shapes |= {
            f"{layer}.input_linearity.weight": (gates, width),
            f"{layer}.state_linearity.weight": (gates, width),
            f"{layer}.state_linearity.bias": (gates,),
            f"{layer}.state_projection.weight": (width, config.dim),
        }
    return shapes


def lstm_weights(theirs: Mapping[str, Tensor], prefix: str, config: LSTMConfig) -> dict[str, Tensor]:
    """Our LSTMs, by their names in `BiLM.state_dict`."""
    ours = {}
    names = [f"{stack}.{k}" for stack in ("forwards", "backwards") for k in range(config.n_layers)]
    for name, layer in zip(names, _layers(prefix, config), strict=True):
        products = [theirs[f"{layer}.{part}_linearity.weight"] for part in ("input", "state")]
        ours[f"{name}.kernel"] = torch.cat([_in_our_order(product).t() for product in products])
        bias = _in_our_order(theirs[f"{layer}.state_linearity.bias"]).clone()
        bias[2 * config.dim : 3 * config.dim] -= FORGET_BIAS
        ours[f"{name}.bias"] = bias
        ours[f"{name}.projection"] = theirs[f"{layer}.state_projection.weight"].t()
    return ours


def checked(theirs: Mapping[str, Tensor], shapes: Shapes, path: object) -> dict[str, Tensor]:
    """Exactly the tensors that are expected, float32, by name and shape, without NaN."""
    check_names(set(theirs), set(shapes), path)
    for name, shape in shapes.items():
        check_shape(name, tuple(theirs[name].shape), shape, path)
        check_finite(name, theirs[name], path)
    return {name: theirs[name].float() for name in shapes}


def _layers(prefix: str, config: LSTMConfig) -> list[str]:
    directions = ("forward", "backward")
    return [f"{prefix}{direction}_layer_{k}" for direction in directions for k in range(config.n_layers)]


def _in_our_order(gates: Tensor) -> Tensor:
    """Rows of i, f, g, o as i, g, f, o."""
    i, f, g, o = gates.chunk(4)
    return torch.cat([i, g, f, o])
