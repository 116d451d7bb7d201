"""Triton kernels of a training step on a GPU: the encoder's maxima and gates, the softmax's rows, the optimizers.

Imported only where they are used, since a plain installation has no Triton. With `TRITON_INTERPRET=1` they run on a
CPU, slowly: that is how they are tested.

Shapes: N positions or words, W windows of a word, F filters, S samples, R rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
import triton
import triton.language as tl
from torch import Tensor

_SAMPLES_AT_ONCE = 4096
_FILTERS_AT_ONCE = 512
_VALUES_AT_ONCE = 1024
_LOWEST = tl.constexpr(-1e30)  # a logit that adds nothing, and unlike -inf no NaN when it is subtracted from itself


def _on(tensor: Tensor) -> AbstractContextManager[None]:
    """Make a tensor's GPU the current one: it is there that Triton launches."""
    there: AbstractContextManager[None] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return there


@triton.jit
def _maximum(y, counts, best, places, W: tl.constexpr, F: tl.constexpr, BLOCK: tl.constexpr):
    word = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(counts + at, mask=at < F, other=0)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.zeros([BLOCK], tl.int32)
    for window in range(W):
        x = tl.load(y + (word * W + window) * F + at, mask=at < F, other=0.0).to(tl.float32)
        x = tl.where(window < count, x, float("-inf"))
        place = tl.where(x <= most, place, window)
        # What is no number stays, so that the loss tells of it.
        most = tl.where(most != most, most, tl.where(x <= most, most, x))
    tl.store(best + word * F + at, most.to(best.dtype.element_ty), mask=at < F)
    tl.store(places + word * F + at, place.to(places.dtype.element_ty), mask=at < F)


@triton.jit
def _spread(slopes, places, out, W: tl.constexpr, F: tl.constexpr, BLOCK: tl.constexpr):
    word = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slope = tl.load(slopes + word * F + at, mask=at < F, other=0.0)
    place = tl.load(places + word * F + at, mask=at < F, other=0).to(tl.int32)
    for window in range(W):
        tl.store(out + (word * W + window) * F + at, tl.where(place == window, slope, 0.0), mask=at < F)


def maximum(y_NWF: Tensor, count_F: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each filter's first `count_F` windows, `(N, F)`, and which it is, int16; `y` contiguous."""
    N, W, F = y_NWF.shape
    best_NF, place_NF = y_NWF.new_empty(N, F), y_NWF.new_empty(N, F, dtype=torch.int16)
    block = min(_FILTERS_AT_ONCE, triton.next_power_of_2(F))
    with _on(y_NWF):
        _maximum[(N, triton.cdiv(F, block))](y_NWF, count_F, best_NF, place_NF, W=W, F=F, BLOCK=block)
    return best_NF, place_NF


def spread(slopes_NF: Tensor, place_NF: Tensor, windows: int) -> Tensor:
    """The gradient of `maximum`, `(N, W, F)`: a slope in its place, 0 elsewhere."""
    N, F = slopes_NF.shape
    out_NWF = slopes_NF.new_empty(N, windows, F)
    block = min(_FILTERS_AT_ONCE, triton.next_power_of_2(F))
    with _on(slopes_NF):
        _spread[(N, triton.cdiv(F, block))](slopes_NF, place_NF, out_NWF, W=windows, F=F, BLOCK=block)
    return out_NWF


@triton.jit
def _gate(carry, transform, x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.sigmoid(tl.load(carry + at, mask=at < n, other=0.0).to(tl.float32))
    t = tl.load(transform + at, mask=at < n, other=0.0).to(tl.float32)
    t = tl.where(t <= 0.0, 0.0, t)
    value = g * t + (1.0 - g) * tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=at < n)


@triton.jit
def _gate_slopes(carry, transform, x, dy, dcarry, dtransform, dx, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.sigmoid(tl.load(carry + at, mask=at < n, other=0.0).to(tl.float32))
    t = tl.load(transform + at, mask=at < n, other=0.0).to(tl.float32)
    d = tl.load(dy + at, mask=at < n, other=0.0).to(tl.float32)
    gap = tl.where(t <= 0.0, 0.0, t) - tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(dcarry + at, (d * gap * g * (1.0 - g)).to(dcarry.dtype.element_ty), mask=at < n)
    tl.store(dtransform + at, tl.where(t <= 0.0, 0.0, d * g).to(dtransform.dtype.element_ty), mask=at < n)
    tl.store(dx + at, (d * (1.0 - g)).to(dx.dtype.element_ty), mask=at < n)


def gate(carry: Tensor, transform: Tensor, x: Tensor) -> Tensor:
    """`g * relu(transform) + (1 - g) * x` with `g = sigmoid(carry)`; all contiguous, of one shape and type."""
    y = torch.empty_like(x)
    with _on(x):
        _gate[(triton.cdiv(x.numel(), _VALUES_AT_ONCE),)](carry, transform, x, y, x.numel(), BLOCK=_VALUES_AT_ONCE)
    return y


def gate_slopes(carry: Tensor, transform: Tensor, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `gate`'s arguments."""
    slopes = torch.empty_like(carry), torch.empty_like(transform), torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), _VALUES_AT_ONCE),)
    with _on(x):
        _gate_slopes[grid](carry, transform, x, dy, *slopes, x.numel(), BLOCK=_VALUES_AT_ONCE)
    return slopes


@triton.jit
def _softmax_rows(logits, bias, true, hits, lse, losses, S: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    hit = tl.load(hits + row)
    most = tl.full([BLOCK], _LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, S, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row.to(tl.int64) * S + at, mask=at < S, other=0.0).to(tl.float32)
        x += tl.load(bias + at, mask=at < S, other=0.0)
        x = tl.where((at < S) & (at != hit), x, _LOWEST)
        higher = tl.maximum(most, x)
        total = total * tl.exp(most - higher) + tl.exp(x - higher)
        most = higher
    top = tl.max(most, axis=0)
    value = top + tl.log(tl.sum(total * tl.exp(most - top), axis=0))
    gap = value - tl.load(true + row)
    tl.store(lse + row, value)
    # softplus(gap), without overflow
    tl.store(losses + row, tl.maximum(gap, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(gap))))


@triton.jit
def _softmax_slopes(logits, bias, hits, lse, slopes, S: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = logits + row.to(tl.int64) * S + at
    x = tl.load(place, mask=at < S, other=0.0).to(tl.float32) + tl.load(bias + at, mask=at < S, other=0.0)
    x = tl.where(at == tl.load(hits + row), _LOWEST, x)
    slope = tl.load(slopes + row) * tl.exp(x - tl.load(lse + row))
    tl.store(place, slope.to(logits.dtype.element_ty), mask=at < S)


def softmax_rows(logits_NS: Tensor, bias_S: Tensor, true_N: Tensor, hits_N: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and log-sum-exps of the samples, `(N,)` float32 both, of logits without their bias.

    Args:
        logits_NS: products of positions and samples, float32 or bfloat16, contiguous.
        bias_S: added to them, float32.
        true_N: logits of the targets, float32.
        hits_N: the sample that is the target and does not count, -1 if none; int32.
    """
    N, S = logits_NS.shape
    lse_N, losses_N = torch.empty_like(true_N), torch.empty_like(true_N)
    block = min(_SAMPLES_AT_ONCE, triton.next_power_of_2(S))
    with _on(logits_NS):
        _softmax_rows[(N,)](logits_NS, bias_S, true_N, hits_N, lse_N, losses_N, S=S, BLOCK=block, num_warps=8)
    return losses_N, lse_N


def softmax_slopes_(logits_NS: Tensor, bias_S: Tensor, hits_N: Tensor, lse_N: Tensor, slopes_N: Tensor) -> None:
    """Turn logits into their gradient, in place: `slope * softmax`, 0 where a sample does not count.

    Args:
        logits_NS: as `softmax_rows` read them.
        bias_S: the same.
        hits_N: the same.
        lse_N: what it gave.
        slopes_N: gradient of each position's log-sum-exp, float32.
    """
    N, S = logits_NS.shape
    block = min(_SAMPLES_AT_ONCE, triton.next_power_of_2(S))
    grid = (N, triton.cdiv(S, block))
    with _on(logits_NS):
        _softmax_slopes[grid](logits_NS, bias_S, hits_N, lse_N, slopes_N, S=S, BLOCK=block, num_warps=8)


@triton.jit
def _update(
    weight,
    first,  # Adagrad's sums of squares, AdamW's means
    second,  # AdamW's squares
    gradient,
    ids,
    count,
    scale,
    rates,
    columns,
    new_mean,
    keep_square,
    new_square,
    epsilon,
    decay,
    ADAGRAD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks = tl.cdiv(columns, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    scaled = tl.load(scale)
    if scaled == 0.0:
        return
    here = at < columns
    target = row
    if ROWS:
        here = here & (row < tl.load(count))
        target = tl.load(ids + row).to(tl.int64)
    g = tl.load(gradient + row * columns + at, mask=here, other=0.0) * scaled
    place = target * columns + at
    w = tl.load(weight + place, mask=here, other=0.0)
    rate = tl.load(rates)
    if ADAGRAD:
        total = tl.load(first + place, mask=here, other=1.0) + g * g
        w -= rate * tl.div_rn(g, tl.sqrt_rn(total))
        tl.store(first + place, total, mask=here)
    else:
        mean = tl.load(first + place, mask=here, other=0.0)
        mean += (g - mean) * new_mean
        square = tl.load(second + place, mask=here, other=1.0) * keep_square + g * g * new_square
        root = tl.div_rn(tl.sqrt_rn(square), tl.load(rates + 2)) + epsilon
        w = w * (1.0 - rate * decay) - rate * tl.div_rn(tl.div_rn(mean, root), tl.load(rates + 1))
        tl.store(first + place, mean, mask=here)
        tl.store(second + place, square, mask=here)
    tl.store(weight + place, w, mask=here)


def update_(
    weight: Tensor,
    memories: Sequence[Tensor],
    gradient: Tensor,
    scale: Tensor,
    rates: Tensor,
    *,
    rows: tuple[Tensor, Tensor] | None = None,
    betas: tuple[float, float] = (0.0, 0.0),
    epsilon: float = 0.0,
    decay: float = 0.0,
) -> None:
    """Adagrad (with one memory) or AdamW (with two), in place and in one pass; all tensors contiguous float32.

    Args:
        weight: what is updated, or the table of which some rows are.
        memories: what the optimizer remembers of it, in its shape.
        gradient: in the weight's shape, or `(R, ...)` for its rows.
        scale: `()`: what the gradient is multiplied with; where it is 0, nothing changes.
        rates: `(3,)`: see `Optimizer.rates`.
        rows: which rows the gradient is of, `(R,)`, each once, and how many of them, `(1,)`; the others are padding.
        betas: AdamW's memory of the mean and of the square.
        epsilon: AdamW's.
        decay: AdamW's share of a weight that goes, at a rate of 1.
    """
    assert all(tensor.is_contiguous() for tensor in (weight, *memories)), (
        "strides would give a weight another's gradient"
    )
    number = len(gradient) if rows is not None else 1
    columns = gradient.numel() // number
    ids, count = rows if rows is not None else (rates, rates)  # not read
    block = min(_VALUES_AT_ONCE, triton.next_power_of_2(columns))
    with _on(weight):
        _update[(number * triton.cdiv(columns, block),)](
            weight,
            memories[0],
            memories[-1],
            gradient,
            ids,
            count,
            scale,
            rates,
            columns,
            1 - betas[0],
            betas[1],
            1 - betas[1],
            epsilon,
            decay,
            ADAGRAD=len(memories) == 1,
            ROWS=rows is not None,
            BLOCK=block,
        )
