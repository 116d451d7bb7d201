"""The projected, clipped LSTM of the paper: the readable reference, state in and state out.

Shapes: B rows, T time steps, I input, P output (projection), D cell, G = 4 * D gates in the order i, j, f, o.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmo.config import LSTMConfig

FORGET_BIAS = 1.0
"""Added to the forget gate at run time; TensorFlow does not store it in the bias."""

_GATE_BUFFER = 2**23  # gate values computed ahead of the loop: 32 MB in float32, whatever the length of a sentence


class ProjectedLSTM(nn.Module):
    """One LSTM layer in one direction.

    `z = [x, m] kernel + bias`; `c = sigmoid(f + 1) * c + sigmoid(i) * tanh(j)`, clipped; `m = (sigmoid(o) * tanh(c))
    projection`, clipped. Without a projection `m` is as wide as the cell and is not clipped.
    """

    def __init__(self, config: LSTMConfig) -> None:
        """Start as bilm-tf does: kernels glorot-uniform, biases zero."""
        super().__init__()
        self.cell_clip = config.cell_clip
        self.proj_clip = config.proj_clip
        inputs, outputs, cell = config.projection_dim, config.projection_dim, config.dim
        self.kernel = nn.Parameter(torch.empty(inputs + outputs, 4 * cell))  # (I + P, G), TensorFlow's layout
        self.bias = nn.Parameter(torch.zeros(4 * cell))  # (G,)
        self.projection = nn.Parameter(torch.empty(cell, outputs)) if config.has_projection else None  # (D, P)
        for weight in (self.kernel, self.projection):
            if weight is not None:
                nn.init.xavier_uniform_(weight)

    def forward(self, x_BTI: Tensor, lengths_B: Tensor, m_BP: Tensor, c_BD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over the time steps from the state `(m, c)`: `(y_BTP, m_BP, c_BD)`.

        Past a row's length its state stays as it was at its end, and `y` is zero.
        """
        if x_BTI.shape[1] == 0:
            return x_BTI.new_zeros(*x_BTI.shape[:2], m_BP.shape[1]), m_BP, c_BD
        kernel_IG, kernel_PG = torch.split(self.kernel, [x_BTI.shape[2], m_BP.shape[1]])
        active_BT = torch.arange(x_BTI.shape[1], device=x_BTI.device) < lengths_B[:, None]
        outputs = []
        for start in range(0, x_BTI.shape[1], steps := self._steps_ahead(len(x_BTI))):
            gates_BTG = x_BTI[:, start : start + steps] @ kernel_IG + self.bias
            for t in range(gates_BTG.shape[1]):
                new_m, new_c = self._step(gates_BTG[:, t] + m_BP @ kernel_PG, c_BD)
                active_B1 = active_BT[:, start + t, None]
                m_BP = torch.where(active_B1, new_m, m_BP)
                c_BD = torch.where(active_B1, new_c, c_BD)
                outputs.append(new_m * active_B1)
        return torch.stack(outputs, dim=1), m_BP, c_BD

    def _step(self, z_BG: Tensor, c_BD: Tensor) -> tuple[Tensor, Tensor]:
        i, j, f, o = z_BG.chunk(4, dim=1)
        c = torch.sigmoid(f + FORGET_BIAS) * c_BD + torch.sigmoid(i) * torch.tanh(j)
        if self.cell_clip is not None:
            c = c.clamp(-self.cell_clip, self.cell_clip)
        m = torch.sigmoid(o) * torch.tanh(c)
        if self.projection is not None:
            m = m @ self.projection
            if self.proj_clip is not None:
                m = m.clamp(-self.proj_clip, self.proj_clip)
        return m, c

    def _steps_ahead(self, rows: int) -> int:
        return max(1, _GATE_BUFFER // (max(rows, 1) * len(self.bias)))


def reverse(x_BTI: Tensor, lengths_B: Tensor) -> Tensor:
    """Reverse each row within its own length; what lies behind it stays where it is. Its own inverse."""
    t = torch.arange(x_BTI.shape[1], device=x_BTI.device)
    index_BT = torch.where(t < lengths_B[:, None], lengths_B[:, None] - 1 - t, t)
    return x_BTI.gather(1, index_BT[:, :, None].expand_as(x_BTI))
