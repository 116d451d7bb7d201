"""Adagrad as published, and AdamW with warm-up and decay; both for whole weights and for rows of a table.

A step of the sampled softmax has a gradient for few of the head's rows. Those rows, and their share of the optimizer's
state, are taken out, updated as a weight of their own, and put back: what is not touched costs nothing. Adagrad is then
exactly what it would be with a gradient of zeros for the others; AdamW is "lazy" (untouched rows neither decay nor
move), as TensorFlow's sparse Adam.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elmo.lm.settings import OptimizerSettings


@dataclass(frozen=True)
class Gradient:
    """The gradient of a weight, or of some of its rows."""

    name: str
    weight: Tensor
    value: Tensor
    """In the weight's shape, or `(R, ...)` for its rows."""
    rows: Tensor | None = None
    """Which rows, `(R,)`, each once; None for the whole weight."""
    count: Tensor | None = None
    """How many of the rows there are, `(1,)`, where padding follows them."""


class Optimizer:
    """Weights follow gradients; what it remembers is in `state`, tensors by name."""

    def __init__(self, settings: OptimizerSettings, weights: Iterable[tuple[str, Tensor]], *, last_step: int) -> None:
        """Remember nothing yet; the rate's decay ends at `last_step`."""
        self._settings = settings
        self._last_step = last_step
        self.state: dict[str, Tensor] = {}
        for name, weight in weights:
            if settings.kind == "adagrad":
                self.state[f"{name}.sum"] = torch.full_like(weight, settings.accumulator, requires_grad=False)
            else:
                self.state[f"{name}.mean"] = torch.zeros_like(weight, requires_grad=False)
                self.state[f"{name}.square"] = torch.zeros_like(weight, requires_grad=False)

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first being 1."""
        settings = self._settings
        if step <= settings.warmup:
            return settings.rate * step / settings.warmup
        if settings.decay == "none":
            return settings.rate
        done = min(1.0, (step - settings.warmup) / max(1, self._last_step - settings.warmup))
        left = 1 - done if settings.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return settings.rate * (settings.floor + (1 - settings.floor) * left)

    def rates(self, step: int) -> tuple[float, float, float]:
        """What `apply_planned` needs to know of a step: the rate, and AdamW's corrections of mean and root."""
        settings = self._settings
        return self.rate(step), 1 - settings.beta1**step, math.sqrt(1 - settings.beta2**step)

    @torch.no_grad()
    def apply_planned(self, gradients: Iterable[Gradient], scale: Tensor, rates: Tensor) -> None:
        """Change the weights by Triton kernels, asking the host nothing.

        Args:
            gradients: not clipped yet; those of rows say how many are no padding.
            scale: `()`, what the gradients are multiplied with; where it is 0, nothing changes.
            rates: `(3,)`, of the step.
        """
        from elmo.lm.kernels import update_

        settings = self._settings
        for gradient in gradients:
            rows = None
            if gradient.rows is not None:
                assert gradient.count is not None
                rows = (gradient.rows, gradient.count)
            update_(
                gradient.weight.detach(),
                list(self._memories(gradient.name)),
                gradient.value.contiguous(),
                scale,
                rates,
                rows=rows,
                betas=(settings.beta1, settings.beta2),
                epsilon=settings.epsilon,
                decay=settings.weight_decay,
            )

    @torch.no_grad()
    def apply(self, gradients: Sequence[Gradient], step: int) -> None:
        """Change the weights; the gradients are used up."""
        whole = [gradient for gradient in gradients if gradient.rows is None]
        self._update(step, [one.value for one in whole], [[one.weight, *self._memories(one.name)] for one in whole])
        for gradient in gradients:
            if gradient.rows is None:
                continue
            tables = [gradient.weight, *self._memories(gradient.name)]
            taken = [tensor.index_select(0, gradient.rows) for tensor in tables]
            self._update(step, [gradient.value], [taken])
            for tensor, changed in zip(tables, taken, strict=True):
                tensor.index_copy_(0, gradient.rows, changed)

    def _memories(self, name: str) -> Iterator[Tensor]:
        for kind in ("sum",) if self._settings.kind == "adagrad" else ("mean", "square"):
            yield self.state[f"{name}.{kind}"]

    def _update(self, step: int, gradients: list[Tensor], changed: list[list[Tensor]]) -> None:
        """Change weights and their memories, all by each operation: on a GPU, few launches for all of them."""
        if not gradients:
            return
        settings, rate = self._settings, self.rate(step)
        weights, *memories = map(list, zip(*changed, strict=True))
        if settings.kind == "adagrad":
            (totals,) = memories
            torch._foreach_addcmul_(totals, gradients, gradients)
            torch._foreach_addcdiv_(weights, gradients, torch._foreach_sqrt(totals), value=-rate)
            return
        means, squares = memories
        torch._foreach_lerp_(means, gradients, 1 - settings.beta1)
        torch._foreach_mul_(squares, settings.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - settings.beta2)
        torch._foreach_mul_(weights, 1 - rate * settings.weight_decay)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, math.sqrt(1 - settings.beta2**step))
        torch._foreach_add_(roots, settings.epsilon)
        torch._foreach_addcdiv_(weights, means, roots, value=-rate / (1 - settings.beta1**step))


@torch.no_grad()
def clip(gradients: Sequence[Gradient], most: float) -> Tensor:
    """Scale gradients in place so that their norm, all together, is at most `most`; the norm that they had, `()`."""
    values = [gradient.value for gradient in gradients]
    size = norm(values)
    torch._foreach_mul_(values, most / size.clamp(min=most))
    return size


def norm(values: Sequence[Tensor]) -> Tensor:
    """The norm of tensors, all together, `()`."""
    size: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(values))))
    return size
