"""One layer of both directions over a window, by the way that suits where it is.

Shapes: 2 directions, T time steps, B rows, I input, P output, D cell.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function

from elmo.engine.available import has_lstm_kernels
from elmo.lm.recurrence import Clips, Recurrence
from elmo.lstm import ProjectedLSTM


def run_layer(
    forward: ProjectedLSTM, backward: ProjectedLSTM, x_2TBI: Tensor, m_2BP: Tensor, c_2BD: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer of each direction over its own stream from a state: `(y_2TBP, m_2BP, c_2BD)`.

    The state that comes out carries no gradient.
    """
    kernel_2KG = torch.stack([forward.kernel, backward.kernel])
    bias_2G = torch.stack([forward.bias, backward.bias])
    projection_2DP = None
    if forward.projection is not None and backward.projection is not None:
        projection_2DP = torch.stack([forward.projection, backward.projection])
    clips = Clips(forward.cell_clip, forward.proj_clip if projection_2DP is not None else None, dtype)
    run: Callable[..., tuple[Tensor, Tensor]] = _function(x_2TBI, projection_2DP).apply  # untyped
    y_2TBP, c_2BD = run(x_2TBI, kernel_2KG, bias_2G, projection_2DP, m_2BP, c_2BD, clips)
    return y_2TBP, y_2TBP[:, -1].detach(), c_2BD


def _function(x_2TBI: Tensor, projection_2DP: Tensor | None) -> type[Function]:
    """The way to run a layer where it is: kernels of its own where there are some for its size."""
    if x_2TBI.dtype != torch.float32 or projection_2DP is None:
        return Recurrence
    if has_lstm_kernels(x_2TBI.device, *projection_2DP.shape[1:]):
        from elmo.lm.gpu_recurrence import GpuRecurrence

        return GpuRecurrence
    return Recurrence
