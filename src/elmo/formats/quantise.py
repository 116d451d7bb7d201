"""Weights as int8 with scales: which weights, with a scale for what, there and back.

A scale serves all the weights of one sum: the products of an output share it, so it can be taken out of the sum. It is
the largest magnitude over 127, cut to 16 significant bits. So 127 scales, or fewer, are exact in float32, and what was
quantised once gives the same integers and the same scales again, here and in the int8 engines.

Shapes: a weight is `(R, ...)`, its scales `(G, ...)`: G groups of R / G rows each, and elsewhere as wide as the weight
or 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmo.errors import ElmoError

SCALE = ".scale"
"""What the name of a weight's scales ends with."""
LARGEST = 127
"""Of the integers, either way."""
LARGEST_SCALE = torch.finfo(torch.float32).max / 128
"""A larger one would make infinity of some integers."""

_LEAST = 2.0**-100  # magnitudes below are nothing: their scales would lose bits
_CUT = ~0xFF  # the last 8 of a float32's 24 bits


def scale_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of a weight's scales, by its name in a native file; nothing for small ones, which are never cut.

    The LSTM's kernel is two weights, of the input's and of the recurrent sum, one above the other.
    """
    if len(shape) < 2 or not name.startswith(("bilm.", "head.")) or name == "bilm.encoder.characters.weight":
        return None
    if name.endswith(".kernel"):  # (2 * P, 4 * D)
        return (2, shape[1])
    if name.endswith(".projection"):  # (D, P)
        return (1, shape[1])
    return (shape[0], *(1 for _ in shape[1:]))  # (outputs, inputs, ...), or a row a word


def quantise(weight: Tensor, scales: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Integers, in the shape of the weight, and scales, in the shape given, whose product is nearest to it."""
    groups_G = weight.detach().float().contiguous().view(scales[0], -1, *weight.shape[1:])  # (G, R / G, ...)
    shared = [1, *(axis + 1 for axis in range(1, len(scales)) if scales[axis] == 1)]
    largest = groups_G.abs().amax(dim=shared, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise ElmoError("it holds NaN or infinity")
    scale = (largest / LARGEST).view(torch.int32).bitwise_and(_CUT).view(torch.float32)
    scale = torch.where(largest < _LEAST, 1.0, scale)
    values = (groups_G / scale).round_().clamp_(-LARGEST, LARGEST)
    return values.to(torch.int8).view(weight.shape), scale.view(scales)


def dequantise_(values: Tensor, scale: Tensor, *, rows: int = 1, skipped: int = 0) -> Tensor:
    """Multiply integers by their scales, in place.

    Args:
        values: some successive rows of a weight, float32.
        scale: the scales of the groups that these rows are of.
        rows: of a group, R / G.
        skipped: rows of the first group that are not among these.
    """
    if rows == 1:
        return values.mul_(scale)
    start, group = 0, 0
    while start < len(values):
        end = min(len(values), (group + 1) * rows - skipped)
        values[start:end].mul_(scale[group])
        start, group = end, group + 1
    return values
