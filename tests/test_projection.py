"""Vectors on a plane: what a picture may show and what it must not invent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from elmo.errors import ElmoError
from elmo.explore.projection import Numbers, cosines, mixed, plane, turned

VECTORS = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=st.floats(-9, 9, width=32)
)


def distances(points: NDArray[np.floating]) -> Numbers:
    apart: Numbers = np.linalg.norm(points[:, None] - points[None, :], axis=-1)
    return apart


def unit(vectors: NDArray[np.floating]) -> Numbers:
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    directions: Numbers = vectors / np.maximum(lengths, 1e-30)
    return directions


class TestPlane:
    @given(VECTORS)
    def test_no_two_points_are_further_apart_than_their_directions(self, vectors: NDArray[np.float32]) -> None:
        points = plane(vectors)
        assert points.shape == (len(vectors), 2)
        assert (distances(points) <= distances(unit(vectors)) + 1e-6).all()

    @given(st.lists(st.floats(0, 6), min_size=2, max_size=9))
    def test_what_lies_in_a_plane_keeps_its_distances(self, angles: list[float]) -> None:
        circle = np.stack([np.cos(angles), np.zeros(len(angles)), np.sin(angles)], axis=1)
        assert distances(plane(circle)) == pytest.approx(distances(circle), abs=1e-6)

    def test_two_groups_fall_apart(self) -> None:
        rng = np.random.default_rng(0)
        groups = [rng.normal(0, 0.2, (20, 50)) + rng.normal(0, 1, 50) for _ in range(2)]
        apart = distances(plane(np.concatenate(groups)))
        assert apart[:20, 20:].min() > 2 * max(apart[:20, :20].max(), apart[20:, 20:].max())

    def test_length_does_not_count(self) -> None:
        vectors = np.random.default_rng(0).normal(size=(7, 5))
        assert plane(vectors * np.arange(1, 8)[:, None]) == pytest.approx(plane(vectors))

    def test_the_same_vector_many_times_is_one_spot(self) -> None:
        assert plane(np.tile(np.array([0.3, -2.0, 5.0], np.float32), (8, 1))) == pytest.approx(0, abs=1e-6)


class TestTurned:
    @given(st.floats(0, 6.3), st.booleans())
    def test_a_turned_and_mirrored_picture_is_turned_back(self, angle: float, mirror: bool) -> None:
        points = np.random.default_rng(0).normal(size=(9, 2))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        other = points @ turn * np.array([-1.0 if mirror else 1.0, 1.0])
        assert turned(other, points) == pytest.approx(points)

    def test_it_keeps_distances(self) -> None:
        first, second = np.random.default_rng(0).normal(size=(2, 9, 2))
        assert distances(turned(first, second)) == pytest.approx(distances(first))


class TestCosines:
    def test_each_with_each(self) -> None:
        first, second = np.array([[1, 0], [1, 1], [0, 0]]), np.array([[2, 0], [0, -3]])
        assert cosines(first, second) == pytest.approx(np.array([[1, 0], [0.5**0.5, -(0.5**0.5)], [0, 0]]))


class TestMixed:
    LAYERS = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)

    def test_one_layer_alone_is_that_layer(self) -> None:
        assert mixed(self.LAYERS, [0, 2, 0]) == pytest.approx(self.LAYERS[1])

    def test_shares_are_divided_by_their_sum(self) -> None:
        assert mixed(self.LAYERS, [1, 1, 2]) == pytest.approx(
            0.25 * self.LAYERS[0] + 0.25 * self.LAYERS[1] + 0.5 * self.LAYERS[2]
        )

    @pytest.mark.parametrize("shares", [[1, 1], [1, 1, -1], [0, 0, 0], [1, float("nan"), 1], []])
    def test_other_shares_are_refused(self, shares: list[float]) -> None:
        with pytest.raises(ElmoError, match="give 3 numbers, one a layer, none negative, not all zero"):
            mixed(self.LAYERS, shares)
