from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from elmo.errors import ElmoError
from elmo.formats.quantise import dequantise_, quantise, scale_shape

SMALLEST = 2.0**-100


@st.composite
def weights(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...]]:
    """A weight of a drawn kind and size, its channels of very different sizes, some of them zero."""
    name = draw(st.sampled_from(["bilm.forwards.0.kernel", "bilm.forwards.0.projection", "head.weight", "bilm.conv"]))
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=3 if name == "bilm.conv" else 2)))
    if name.endswith("kernel"):
        shape = (2 * shape[0], *shape[1:])
    scales = scale_shape(name, shape)
    assert scales is not None
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    exponents = torch.randint(-44, 39, scales, generator=rng).double()
    weight = torch.randn(shape, generator=rng).double().clamp(-3, 3) * whole(10.0**exponents, shape)
    if draw(st.booleans()):
        weight.view(-1)[:: draw(st.integers(1, 5))] = 0
    return weight.clamp(-3.4028e38, 3.4028e38).float(), scales


def whole(scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Scales in the shape of their weight."""
    return scale.repeat_interleave(shape[0] // len(scale), dim=0).expand(shape)


@given(drawn=weights())
def test_no_number_is_off_by_more_than_half_a_step(drawn: tuple[Tensor, tuple[int, ...]]) -> None:
    weight, scales = drawn
    values, scale = quantise(weight, scales)
    assert values.dtype == torch.int8
    assert values.shape == weight.shape
    assert scale.shape == scales
    assert bool((scale > 0).all())
    again = dequantise_(values.float(), scale, rows=len(weight) // len(scale))
    assert bool(((again.double() - weight.double()).abs() <= 0.5 * whole(scale, weight.shape).double()).all())
    assert bool((again[weight == 0] == 0).all())


@given(drawn=weights())
def test_the_largest_number_of_a_scale_takes_all_of_its_range(drawn: tuple[Tensor, tuple[int, ...]]) -> None:
    weight, scales = drawn
    values, scale = quantise(weight, scales)
    step = whole(scale, weight.shape)
    assert bool((values.abs() <= 127).all())
    for one in set(scale.flatten().tolist()):
        if float(weight[step == one].abs().max()) >= SMALLEST:
            assert int(values[step == one].abs().max()) == 127


@given(drawn=weights())
def test_quantising_what_was_quantised_changes_nothing(drawn: tuple[Tensor, tuple[int, ...]]) -> None:
    weight, scales = drawn
    values, scale = quantise(weight, scales)
    again = dequantise_(values.float(), scale, rows=len(weight) // len(scale))
    for one, other in zip(quantise(again, scales), (values, scale), strict=True):
        assert torch.equal(one, other)


@given(drawn=weights(), data=st.data())
def test_some_rows_are_those_rows_of_the_whole(drawn: tuple[Tensor, tuple[int, ...]], data: st.DataObject) -> None:
    weight, scales = drawn
    values, scale = quantise(weight, scales)
    size = len(weight) // len(scale)
    start = data.draw(st.integers(0, len(weight) - 1))
    stop = data.draw(st.integers(start + 1, len(weight)))
    groups = scale[start // size : -(-stop // size)]
    some = dequantise_(values[start:stop].float(), groups, rows=size, skipped=start % size)
    assert torch.equal(some, dequantise_(values.float(), scale, rows=size)[start:stop])


def test_a_channel_of_zeros_stays_zeros() -> None:
    values, scale = quantise(torch.tensor([[0.0, 0.0], [1.0, -2.0]]), (2, 1))
    assert values.tolist() == [[0, 0], [64, -127]]  # 63.5 is nearer to 64 by a hair: the scale was cut
    assert float(scale[0, 0]) == 1


def test_the_largest_float_does_not_become_infinity() -> None:
    largest = torch.finfo(torch.float32).max
    values, scale = quantise(torch.tensor([[largest, -largest, 1.0]]), (1, 1))
    assert values.tolist() == [[127, -127, 0]]
    assert bool(dequantise_(values.float(), scale).isfinite().all())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_refused(value: float) -> None:
    with pytest.raises(ElmoError, match="holds NaN or infinity"):
        quantise(torch.tensor([[1.0, value], [0.0, 1.0]]), (2, 1))


class TestWhatSharesAScale:
    @pytest.mark.parametrize(
        ("name", "shape", "scales"),
        [
            ("bilm.forwards.0.kernel", (10, 48), (2, 48)),  # a column's input half, and its recurrent half
            ("bilm.backwards.1.projection", (12, 5), (1, 5)),
            ("bilm.encoder.convolutions.2.weight", (8, 4, 3), (8, 1, 1)),
            ("bilm.encoder.highways.0.carry.weight", (16, 16), (16, 1)),
            ("bilm.encoder.projection.weight", (5, 16), (5, 1)),
            ("bilm.encoder.weight", (100, 5), (100, 1)),
            ("head.weight", (100, 5), (100, 1)),
            ("head.softmax.tail.0.1.weight", (70, 2), (70, 1)),
        ],
    )
    def test_the_products_of_one_sum(self, name: str, shape: tuple[int, ...], scales: tuple[int, ...]) -> None:
        assert scale_shape(name, shape) == scales

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("bilm.encoder.characters.weight", (262, 16)),
            ("bilm.forwards.0.bias", (48,)),
            ("head.bias", (100,)),
            ("mix.weights", (3,)),
            ("mix.gamma", ()),
            ("warm.c", (2, 2, 1, 12)),
        ],
    )
    def test_small_things_have_none(self, name: str, shape: tuple[int, ...]) -> None:
        assert scale_shape(name, shape) is None
