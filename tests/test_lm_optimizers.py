from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from elmo.lm.optimizers import Gradient, Optimizer, clip
from elmo.lm.settings import OptimizerSettings


def optimizer(weight: Tensor, **settings: Any) -> Optimizer:
    return Optimizer(OptimizerSettings(**settings), [("w", weight)], last_step=100)


def run(weight: Tensor, gradients: list[Tensor], **settings: Any) -> Tensor:
    some = optimizer(weight, **settings)
    for step, gradient in enumerate(gradients, start=1):
        some.apply([Gradient("w", weight, gradient.clone())], step)
    return weight


def drawn(*shape: int, steps: int = 4) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator), [torch.randn(*shape, generator=generator) for _ in range(steps)]


def test_adagrad_is_pytorch_s_without_epsilon() -> None:
    weight, gradients = drawn(3, 4)
    twin = weight.clone().requires_grad_()
    theirs = torch.optim.Adagrad([twin], lr=0.2, initial_accumulator_value=1.0, eps=0.0)
    for gradient in gradients:
        twin.grad = gradient.clone()
        theirs.step()
    torch.testing.assert_close(run(weight, gradients), twin.detach())


def test_adamw_is_pytorch_s() -> None:
    weight, gradients = drawn(3, 4)
    twin = weight.clone().requires_grad_()
    theirs = torch.optim.AdamW([twin], lr=0.01, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)
    for gradient in gradients:
        twin.grad = gradient.clone()
        theirs.step()
    settings = {"kind": "adamw", "rate": 0.01, "beta2": 0.98, "epsilon": 1e-6, "weight_decay": 0.1}
    torch.testing.assert_close(run(weight, gradients, **settings), twin.detach())


def test_rows_are_as_a_whole_gradient_with_zeros_elsewhere() -> None:
    weight, gradients = drawn(6, 3)
    rows = torch.tensor([1, 4])
    part, whole = weight.clone(), weight.clone()
    by_rows, by_whole = optimizer(part), optimizer(whole)
    for step, gradient in enumerate(gradients, start=1):
        by_rows.apply([Gradient("w", part, gradient[rows], rows)], step)
        by_whole.apply([Gradient("w", whole, torch.zeros(6, 3).index_copy(0, rows, gradient[rows]))], step)
    assert torch.equal(part, whole)
    assert torch.equal(by_rows.state["w.sum"], by_whole.state["w.sum"])
    assert torch.equal(part[[0, 2, 3, 5]], weight[[0, 2, 3, 5]])


def test_adamw_leaves_rows_alone_that_have_no_gradient() -> None:
    weight, gradients = drawn(6, 3)
    before, rows = weight.clone(), torch.tensor([2])
    some = optimizer(weight, kind="adamw", weight_decay=0.5)
    some.apply([Gradient("w", weight, gradients[0][rows], rows)], 1)
    assert (weight != before).any(dim=1).tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("none", {1: 0.1, 5: 0.5, 10: 1.0, 11: 1.0, 100: 1.0}),
        ("linear", {10: 1.0, 55: 0.6, 100: 0.2}),
        ("cosine", {10: 1.0, 55: 0.6, 100: 0.2}),
    ],
)
def test_the_rate_grows_then_falls(decay: Any, rates: dict[int, float]) -> None:
    some = optimizer(torch.zeros(1), rate=1.0, warmup=10, decay=decay, floor=0.2)
    assert {step: some.rate(step) for step in rates} == pytest.approx(rates)


def test_cosine_is_no_line() -> None:
    some = optimizer(torch.zeros(1), rate=1.0, decay="cosine")
    assert some.rate(25) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


@pytest.mark.parametrize(("most", "scale"), [(100.0, 1.0), (6.5, 0.5)])
def test_clip_scales_all_gradients_by_their_one_norm(most: float, scale: float) -> None:
    values = [torch.tensor([3.0, 4.0]), torch.tensor([[12.0]])]
    gradients = [Gradient("a", values[0], values[0].clone()), Gradient("b", values[1], values[1].clone())]
    assert float(clip(gradients, most)) == pytest.approx(13.0)
    for gradient, value in zip(gradients, values, strict=True):
        torch.testing.assert_close(gradient.value, value * scale)
