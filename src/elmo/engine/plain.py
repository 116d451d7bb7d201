"""The plain half of the CPU engine, in PyTorch: for a package that was built without a compiler, and other CPUs.

Weights are packed once for the products (oneDNN's blocked layouts; FBGEMM's int8 with a scale a column and a
row). It is also what the compiled half is tested against.

Shapes: those of `cpu.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from elmo.chars import PAD
from elmo.config import Activation
from elmo.engine.precision import Floats, LSTMWeights, Precision, Tokens

_GATE_BUFFER = 2**21  # gate values computed ahead of the loop: large buffers cost page faults
_CONV_BUFFER = 2**22  # outputs of the largest convolution at a time
_ROWS_AT_ONCE = 256  # in a product


def supported(precision: Precision) -> bool:
    """Whether this CPU, and PyTorch's build for it, have what a precision needs here."""
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return False
    if precision == "bf16":
        return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
    return precision == "fp32" or "fbgemm" in torch.backends.quantized.supported_engines


class Linear:
    """`x weight + bias`, `(N, I)` to `(N, O)`; the result is bfloat16 where the precision is."""

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None, precision: Precision) -> None:
        """Pack the weight."""
        weight_OI = weight_IO.t().contiguous()
        self._product = _int8(weight_OI, bias_O) if precision == "int8" else _onednn(weight_OI, bias_O, precision)

    def __call__(self, x_NI: Tensor) -> Tensor:
        """Multiply."""
        return self._product(x_NI)


def _onednn(weight_OI: Tensor, bias_O: Tensor | None, precision: Precision) -> Callable[[Tensor], Tensor]:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.to(dtype), 64)
    bias = None if bias_O is None else bias_O.to(dtype)
    run: Any = torch.ops.mkldnn._linear_pointwise

    def product(x_NI: Tensor) -> Tensor:
        rows = len(x_NI)
        if rows > _ROWS_AT_ONCE:
            return torch.cat([product(block) for block in torch.split(x_NI, _ROWS_AT_ONCE)])
        padded = F.pad(x_NI.to(dtype), (0, 0, 0, _bucket(rows) - rows))
        return cast(Tensor, run(padded, packed, bias, "none", [], ""))[:rows]

    return product


def _bucket(rows: int) -> int:
    """Rows rounded up, by an eighth at most: oneDNN keeps a kernel for each number of rows that it has met."""
    unit = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // unit) * unit


def _int8(weight_OI: Tensor, bias_O: Tensor | None) -> Callable[[Tensor], Tensor]:
    scales = weight_OI.abs().amax(dim=1).clamp_min(1e-12) / 127
    engine = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch announces that these tensors will move to another package
            zeros = torch.zeros(len(scales), dtype=torch.long)
            quantised = torch.quantize_per_channel(weight_OI, scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(quantised, None)
    finally:
        torch.backends.quantized.engine = engine
    # Not linear_dynamic, which has one scale for all rows: each would depend on its company.
    run: Any = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    # Without VNNI, pairs of products are summed in 16 bits: inputs of 7 bits then keep them from overflowing.
    largest = 127 if getattr(torch.cpu, "_is_vnni_supported", lambda: False)() else 63

    def product(x_NI: Tensor) -> Tensor:
        scales_N1 = x_NI.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / largest
        y_NO = cast(Tensor, run(x_NI / scales_N1, 1.0, largest + 1, packed)).mul_(scales_N1)
        return y_NO if bias_O is None else y_NO.add_(bias_O)

    return product


class Convolutions:
    """The largest value of each filter over a word's characters, activated: `(N, C)` ids to `(N, F)`."""

    def __init__(
        self,
        table_VE: Tensor,
        filters: Sequence[tuple[Tensor, Tensor]],
        activation: Activation,
        precision: Precision,
    ) -> None:
        """Pack the filters, each `(number, E, width)` with its bias."""
        self._activation = torch.relu if activation == "relu" else torch.tanh
        kind: Precision = "fp32" if precision == "int8" else precision
        self._table = table_VE.clone()
        self._widest = max(len(bias) for _, bias in filters)
        self._filters = [
            (weight.shape[2], Linear(weight.permute(2, 1, 0).flatten(0, 1), bias, kind)) for weight, bias in filters
        ]

    def __call__(self, ids_NC: Tensor) -> Tensor:
        """Convolve and take the largest, words of like length together."""
        lengths_N = (ids_NC != PAD).sum(dim=1)
        order = torch.argsort(lengths_N)
        pieces = []
        start = 0
        while start < len(order):
            rows = max(1, _CONV_BUFFER // (self._widest * (int(lengths_N[order[start]]) + 1)))
            chosen = order[start : start + rows]
            pieces.append(self._convolve(ids_NC[chosen], int(lengths_N[chosen[-1]])))
            start += rows
        x_NF = torch.cat(pieces)
        return torch.empty_like(x_NF).index_copy_(0, order, x_NF)

    def _convolve(self, ids_NC: Tensor, longest: int) -> Tensor:
        largest = []
        for width, product in self._filters:
            # One window of nothing but padding stands for all of them.
            end = min(ids_NC.shape[1], longest + width)
            characters = F.embedding(ids_NC[:, :end], self._table)  # (N, end, E)
            windows = characters.unfold(1, width, 1).transpose(2, 3).flatten(2)  # (N, places, width * E)
            places = product(windows.flatten(0, 1)).view(len(ids_NC), end - width + 1, -1)
            largest.append(self._activation(places.amax(dim=1).float()))
        return torch.cat(largest, dim=1)


def highway(x_NF: Tensor, carry_NF: Tensor, transform_NF: Tensor) -> Tensor:
    """`g relu(transform) + (1 - g) x` with `g = sigmoid(carry)`."""
    return torch.lerp(x_NF, transform_NF.float().relu_(), carry_NF.float().sigmoid_())


class LSTM:
    """One layer in one direction."""

    def __init__(self, weights: LSTMWeights, precision: Precision) -> None:
        """Pack the weights."""
        self._inputs = Linear(weights.inputs(), weights.bias(), precision)
        self._recurrent = Linear(weights.recurrent(), None, precision)
        projection = weights.projection()
        # What the cells give is heavy-tailed: with one scale a row, a large value leaves the rest a few steps. A ninth
        # of the products are here, and float32 takes less time than int8 in spans, which is how `compiled.py` does it.
        kind: Precision = "fp32" if precision == "int8" else precision
        self._projection = None if projection is None else Linear(projection, None, kind)
        self._cell_clip, self._proj_clip = weights.cell_clip, weights.proj_clip
        self._gates = 4 * weights.cells

    def __call__(self, x: Floats, tokens: Tokens, m_BP: Floats, c_BD: Floats, y: Floats) -> None:
        """Run over all steps into `y (tokens, P)`; `m` and `c` are changed in place, each row up to its own end."""
        x_NP, inputs, m, c, y_NP = (torch.from_numpy(array) for array in (x, tokens.inputs, m_BP, c_BD, y))
        rows = tokens.rows.tolist()
        start = step = 0
        while step < len(rows):
            first, end = start, start
            until = step
            while until < len(rows) and (until == step or (end - start + rows[until]) * self._gates <= _GATE_BUFFER):
                end += rows[until]
                until += 1
            words, places = torch.unique(inputs[start:end], return_inverse=True)
            gates_NG = self._inputs(x_NP[words])
            for n in rows[step:until]:
                x_BG = gates_NG[places[start - first : start - first + n]]
                m = self._project(_step(self._recurrent(m[:n]).add_(x_BG), c[:n], self._cell_clip))
                y_NP[start : start + n] = m
                start += n
            step = until
        m_BP[: len(tokens.last)] = y[tokens.last]

    def _project(self, h_BD: Tensor) -> Tensor:
        if self._projection is None:
            return h_BD
        m_BP = self._projection(h_BD)
        return m_BP if self._proj_clip is None else m_BP.clamp_(-self._proj_clip, self._proj_clip)


def _step(z_BG: Tensor, c_BD: Tensor, clip: float | None) -> Tensor:
    """The gates: the cells are changed in place, the output `(B, D)` returned."""
    i, j, f, o = z_BG.float().chunk(4, dim=1)
    c_BD.mul_(torch.sigmoid(f)).addcmul_(torch.sigmoid(i), torch.tanh(j))
    if clip is not None:
        c_BD.clamp_(-clip, clip)
    return torch.tanh(c_BD).mul_(torch.sigmoid(o)).to(z_BG.dtype)
