"""Vectors on a plane, and vectors compared: what a picture of some tokens needs.

Shapes: N and M tokens, L layers, D width of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ElmoError

Numbers = NDArray[np.float64]


def plane(vectors_ND: NDArray[Any]) -> Numbers:
    """Points `(N, 2)`: the directions of vectors, seen where they differ most (their first two principal components).

    A vector's length does not count, as it does not in a cosine. Distances keep their scale: two points are never
    further apart than the unit vectors that they stand for. Which way an axis points is settled by its largest value.
    """
    unit_ND = _unit(vectors_ND)
    centred_ND = unit_ND - unit_ND.mean(axis=0)
    # Of the N x N products rather than of the vectors: there are fewer tokens than numbers in a vector.
    values_N, axes_NN = np.linalg.eigh(centred_ND @ centred_ND.T)
    points = np.zeros((len(unit_ND), 2))
    for column, number in enumerate(range(len(unit_ND) - 1, max(len(unit_ND) - 3, -1), -1)):
        axis_N = axes_NN[:, number] * np.sqrt(max(values_N[number], 0.0))
        points[:, column] = axis_N * (np.sign(axis_N[np.abs(axis_N).argmax()]) or 1.0)
    return points


def turned(points_N2: Numbers, onto_N2: Numbers) -> Numbers:
    """Points `(N, 2)` rotated, and mirrored if need be, to lie as near as they can to where others are.

    So that a point can be followed by eye from one layer's picture to the next.
    """
    left, _, right = np.linalg.svd(points_N2.T @ onto_N2)
    turned_N2: Numbers = points_N2 @ (left @ right)
    return turned_N2


def cosines(first_ND: NDArray[Any], second_MD: NDArray[Any]) -> Numbers:
    """Cosine of each vector of one group and each of another, `(N, M)`; a vector of zeros is at right angles to all."""
    return _unit(first_ND) @ _unit(second_MD).T


def mixed(layers_LND: NDArray[Any], shares: Sequence[float]) -> Numbers:
    """Layers added up by their shares, `(N, D)`, as in a task's mix without its scale.

    Args:
        layers_LND: vectors of each layer.
        shares: one a layer, 0 or more; they are divided by their sum.
    """
    weights = np.asarray(shares, dtype=np.float64)
    if (
        weights.shape != (len(layers_LND),)
        or not np.isfinite(weights).all()
        or (weights < 0).any()
        or not weights.any()
    ):
        raise ElmoError(
            f"shares are {list(shares)}: give {len(layers_LND)} numbers, one a layer, none negative, not all zero"
        )
    return np.tensordot(weights / weights.sum(), layers_LND.astype(np.float64), axes=1)


def _unit(vectors_ND: NDArray[Any]) -> Numbers:
    lengths_N = np.linalg.norm(vectors_ND.astype(np.float64), axis=1)
    unit_ND: Numbers = vectors_ND / np.maximum(lengths_N, 1e-30)[:, None]
    return unit_ND
