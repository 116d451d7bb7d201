"""Both directions' LSTM over a window of a stream, with its gradient written out: `ProjectedLSTM`, for training.

A window has no padding, so nothing is masked. Against autograd over the reference's loop, the gradients of the weights
are one product over all time steps instead of one a step, and what does not depend on the recurrence is computed for
all steps at once. A test holds the two together.

Shapes: 2 directions, T time steps, B rows, I input, P output, D cell, G = 4 * D gates in the order i, j, f, o.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elmo.lstm import FORGET_BIAS


@dataclass(frozen=True)
class Clips:
    """What the recurrence needs to know beside its tensors."""

    cell: float | None
    """The cell is kept within plus and minus this value."""
    projection: float | None
    """So is the projected output."""
    dtype: torch.dtype
    """In which the products are computed; sums, gates and cells keep the precision of the weights."""


class Recurrence(Function):
    """A layer of both directions, by PyTorch's own operations."""

    @staticmethod
    def forward(
        ctx: Any,
        x_2TBI: Tensor,
        kernel_2KG: Tensor,
        bias_2G: Tensor,
        projection_2DP: Tensor | None,
        m_2BP: Tensor,
        c_2BD: Tensor,
        clips: Clips,
    ) -> tuple[Tensor, Tensor]:
        """Run over the window from a state: `(y_2TBP, c_2BD)`; without a projection the cell's output is y."""
        _, T, B, inputs = x_2TBI.shape
        cell = c_2BD.shape[-1]
        kernel = kernel_2KG.to(clips.dtype)
        kernel_2IG, kernel_2PG = kernel[:, :inputs], kernel[:, inputs:]
        projection = None if projection_2DP is None else projection_2DP.to(clips.dtype)
        bias_2G = bias_2G.clone()
        bias_2G[:, 2 * cell : 3 * cell] += FORGET_BIAS
        x_2NI = x_2TBI.reshape(2, T * B, inputs).to(clips.dtype)
        gates = torch.bmm(x_2NI, kernel_2IG).to(bias_2G.dtype).add_(bias_2G[:, None]).view(2, T, B, 4 * cell)
        ms = gates.new_empty(2, T + 1, B, m_2BP.shape[-1])
        cs = gates.new_empty(2, T + 1, B, cell)
        squashed = gates.new_empty(2, T, B, cell)  # tanh(c)
        outputs = gates.new_empty(2, T, B, cell) if projection is not None else ms[:, 1:]
        ms[:, 0], cs[:, 0] = m_2BP, c_2BD
        for t in range(T):
            z = gates[:, t].add_(torch.bmm(ms[:, t].to(clips.dtype), kernel_2PG))
            i, j = z[..., :cell].sigmoid_(), z[..., cell : 2 * cell].tanh_()
            f, o = z[..., 2 * cell :].sigmoid_().chunk(2, dim=-1)
            c = torch.mul(f, cs[:, t], out=cs[:, t + 1]).addcmul_(i, j)
            if clips.cell is not None:
                c.clamp_(-clips.cell, clips.cell)
            torch.tanh(c, out=squashed[:, t])
            torch.mul(o, squashed[:, t], out=outputs[:, t])
            if projection is not None:
                ms[:, t + 1] = torch.bmm(outputs[:, t].to(clips.dtype), projection)
                if clips.projection is not None:
                    ms[:, t + 1].clamp_(-clips.projection, clips.projection)
        ctx.clips = clips
        ctx.save_for_backward(x_2NI, kernel, projection, gates, ms, cs, squashed, outputs)
        y, last = ms[:, 1:], cs[:, -1].clone()
        ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy_2TBP: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of input, kernel, bias and projection."""
        clips: Clips = ctx.clips
        x_2NI, kernel, projection, gates, ms, cs, squashed, outputs = ctx.saved_tensors
        _, T, B, cell = squashed.shape
        N, inputs = x_2NI.shape[1:]
        # Turned round once: in bfloat16 a product copies an operand that is not laid out as it likes.
        kernel_2GI, kernel_2GP = kernel[:, :inputs].mT.contiguous(), kernel[:, inputs:].mT.contiguous()
        projection_2PD = None if projection is None else projection.mT.contiguous()
        # What each gate's input and the cell get for one unit of the cell's (or output's) gradient, all steps at once.
        i, j, f, o = gates.view(2, T, B, 4, cell).unbind(dim=-2)
        slope = torch.empty_like(gates)
        slope_i, slope_j, slope_f, slope_o = slope.view(2, T, B, 4, cell).unbind(dim=-2)
        torch.mul(i, j, out=slope_i).addcmul_(slope_i, i, value=-1)  # j i (1 - i)
        torch.mul(j, j, out=slope_j).neg_().add_(1).mul_(i)  # i (1 - j^2)
        torch.mul(f, f, out=slope_f).neg_().add_(f).mul_(cs[:, :-1])  # c f (1 - f)
        torch.mul(o, o, out=slope_o).neg_().add_(o).mul_(squashed)  # tanh(c) o (1 - o)
        to_cell = torch.mul(squashed, squashed).neg_().add_(1).mul_(o)  # o (1 - tanh(c)^2)
        inside_c = None if clips.cell is None else cs[:, 1:].abs() < clips.cell
        inside_m = None if clips.projection is None else ms[:, 1:].abs() < clips.projection
        dms = torch.empty_like(ms[:, 1:])
        dm, dc = torch.zeros_like(ms[:, 0]), torch.zeros_like(cs[:, 0])
        for t in reversed(range(T)):
            torch.add(dy_2TBP[:, t], dm, out=dms[:, t])
            if inside_m is not None:
                dms[:, t] *= inside_m[:, t]
            dh = dms[:, t] if projection_2PD is None else _product(dms[:, t], projection_2PD, clips.dtype, dm)
            dc.addcmul_(dh, to_cell[:, t])
            if inside_c is not None:
                dc *= inside_c[:, t]
            dz = slope[:, t].view(2, B, 4, cell)
            dz[:, :, :3] *= dc[:, :, None]
            dz[:, :, 3] *= dh
            dc *= gates[:, t, :, 2 * cell : 3 * cell]
            dm = _product(slope[:, t], kernel_2GP, clips.dtype, dm)
        dz_2NG = slope.view(2, N, 4 * cell)
        dz_low = dz_2NG.to(clips.dtype)
        m_2NP = ms[:, :-1].reshape(2, N, -1).to(clips.dtype)
        dkernel = torch.cat([torch.bmm(x_2NI.mT, dz_low), torch.bmm(m_2NP.mT, dz_low)], dim=1).to(gates.dtype)
        dx = torch.bmm(dz_low, kernel_2GI).to(gates.dtype).view(2, T, B, inputs) if ctx.needs_input_grad[0] else None
        dprojection = None
        if projection is not None:
            h_2ND = outputs.view(2, N, cell).to(clips.dtype)
            dprojection = torch.bmm(h_2ND.mT, dms.view(2, N, -1).to(clips.dtype)).to(gates.dtype)
        return dx, dkernel, dz_2NG.sum(dim=1), dprojection, None, None, None


def _product(a: Tensor, b: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.bmm(a.to(dtype), b).to(like.dtype)
