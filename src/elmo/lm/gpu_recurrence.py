"""`recurrence.py` on a GPU: the same function and gradient by the kernels of `elmo.engine.triton_lstm`.

Two launches a time step on the way forth and two back, none of which waits for the host, so that a whole training step
can be captured in a graph. What is kept for the way back: a step's gates before their functions, in the products'
precision (their gradient takes their place), cells, and outputs before and behind the projection.

Shapes: 2 directions, T time steps, B rows, N = T * B, P input and output, D cell, G = 4 * D gates.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elmo.engine import triton_lstm as kernels
from elmo.lm.recurrence import Clips
from elmo.lstm import FORGET_BIAS


class GpuRecurrence(Function):
    """The arguments and results of `recurrence.Recurrence`, for layers with a projection."""

    @staticmethod
    def forward(
        ctx: Any,
        x_2TBP: Tensor,
        kernel_2KG: Tensor,
        bias_2G: Tensor,
        projection_2DP: Tensor,
        m_2BP: Tensor,
        c_2BD: Tensor,
        clips: Clips,
    ) -> tuple[Tensor, Tensor]:
        """Run over the window from a state: `(y_2TBP, c_2BD)`."""
        _, T, B, P = x_2TBP.shape
        D, N, low = c_2BD.shape[2], T * B, clips.dtype
        bias_2G = bias_2G.clone()
        bias_2G[:, 2 * D : 3 * D] += FORGET_BIAS
        w, bias, projection = kernels.pack(kernel_2KG.to(low)), kernels.pack(bias_2G), projection_2DP.to(low)
        a = torch.empty(2, N, 2 * P, dtype=low, device=x_2TBP.device)
        a[:, :, :P] = x_2TBP.reshape(2, N, P)
        a[:, :B, P:] = m_2BP
        z = a.new_empty(2, N, 4 * D)
        hs = a.new_empty(T, 2, B, D)
        cs = c_2BD.new_empty(T + 1, 2, B, D)
        cs[0] = c_2BD
        y = c_2BD.new_empty(2, N, P)
        m = a.new_empty(2, B, P)
        places, partial, counters = _tables(T, B, P, x_2TBP.device)
        for t in range(T):
            kernels.gates(a, w, bias, z, cs[t], cs[t + 1], hs[t], places, t, B, 1, clip=clips.cell)
            kernels.project(hs[t], projection, partial, counters, m, y, a, places, t, B, 1, clip=clips.projection)
        ctx.clips = clips
        y_2TBP, last = y.view(2, T, B, P), cs[T].clone()
        ctx.save_for_backward(w, projection, a, z, hs, cs, y_2TBP)
        ctx.mark_non_differentiable(last)
        return y_2TBP, last

    @staticmethod
    def backward(ctx: Any, dy_2TBP: Tensor, _dc: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of input, kernel, bias and projection."""
        clips: Clips = ctx.clips
        w, projection, a, z, hs, cs, y = ctx.saved_tensors
        _, T, B, P = y.shape
        D, N = hs.shape[3], T * B
        _, partial, counters = _tables(T, B, P, y.device)
        dy = dy_2TBP.contiguous()
        dm = a.new_empty(2, T, B, P)
        inside = 1 if clips.projection is None else y[:, -1].abs() < clips.projection
        dm[:, -1] = dy[:, -1] * inside
        dc = torch.zeros_like(cs[0])
        dz = z.view(2, T, B, 4 * D)
        for t in reversed(range(T)):
            kernels.gates_backward(dm, projection, dz, cs, dc, t, clip=clips.cell)
            if t > 0:
                kernels.project_backward(dz, w, partial, counters, dy, y, dm, t, clip=clips.projection)
        dkernel = kernels.unpack(torch.bmm(a.mT, z)).to(dy.dtype)
        dbias = kernels.unpack(z.sum(dim=1, dtype=torch.float32)).to(dy.dtype)
        dx = torch.bmm(z, w[:, :P].mT).to(dy.dtype).view(2, T, B, P) if ctx.needs_input_grad[0] else None
        h_2ND = hs.transpose(0, 1).reshape(2, N, D)
        dprojection = torch.bmm(h_2ND.mT, dm.view(2, N, P)).to(dy.dtype)
        return dx, dkernel, dbias, dprojection, None, None, None


@cache
def _tables(T: int, B: int, P: int, device: torch.device) -> tuple[kernels.Places, Tensor, Tensor]:
    """Where a window's tokens are, and room for split sums: the same for every call, all on one stream.

    Kept for good: graphs have captured where they are.
    """
    ends = torch.arange(T + 1, dtype=torch.int32, device=device) * B
    rows = torch.full((T + 1,), B, dtype=torch.int32, device=device)
    rows[T] = 0
    places = kernels.Places(ends, rows, torch.zeros(1, dtype=torch.int32, device=device))
    partial = torch.empty(kernels.SPLITS_BACK, 2, B, P, device=device)
    return places, partial, torch.zeros(kernels.n_counters(B, P, 1), dtype=torch.int32, device=device)
