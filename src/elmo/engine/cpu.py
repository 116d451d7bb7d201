"""The biLM on a CPU: the function of `BiLM.contextualise`, fast.

What makes it fast: weights are packed once for the products (oneDNN's blocked layouts; int8 with a scale a column), the
input products of many steps are one product, rows are sorted by length so that a finished one leaves the batch and
nothing is padding, the gates are one pass where the package was built with a compiler (`gates.py`; what it needs of
constants is packed into the weights), and the two directions run side by side where there are cores for both. Cell
states are float32 in every precision.

Shapes: B rows, N tokens of all rows in the order of time steps, P projection, D cell, G = 4 * D gates.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from elmo.chars import PAD
from elmo.config import LSTMConfig
from elmo.engine.gates import fastest
from elmo.errors import ElmoError
from elmo.lstm import FORGET_BIAS, ProjectedLSTM
from elmo.model import BiLM, BiLMOutput, CharEncoder, Highway, State

Precision = Literal["fp32", "bf16", "int8"]
Product = Callable[[Tensor], Tensor]

_GATE_BUFFER = 2**21  # gate values computed ahead of the loop: large buffers cost page faults
_CONV_BUFFER = 2**22  # outputs of the largest convolution at a time
_ROWS_AT_ONCE = 256  # in a product
_ROWS_FOR_TWO_THREADS = 8  # below, a product is limited by reading its weights, and both directions would wait for it


def supported(precision: Precision) -> bool:
    """Whether this CPU, and PyTorch's build for it, have what a precision needs here."""
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        return False
    if precision == "bf16":
        return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
    return precision == "fp32" or "fbgemm" in torch.backends.quantized.supported_engines


class CpuEngine:
    """A biLM made ready for one precision; its weights are copied, so later changes of the biLM are not seen."""

    def __init__(self, bilm: BiLM, precision: Precision) -> None:
        """Pack the weights."""
        if not supported(precision):
            raise ElmoError(f"precision {precision!r} needs a CPU that has it; this one has not: give 'fp32'")
        self._bilm = bilm
        self._config = bilm.config
        self._encoder = _Encoder(bilm.encoder, precision) if isinstance(bilm.encoder, CharEncoder) else bilm.encoder
        self._stacks = [
            [_LSTM(cast(ProjectedLSTM, lstm), bilm.config.lstm, precision) for lstm in stack]
            for stack in (bilm.forwards, bilm.backwards)
        ]
        self._pool: ThreadPoolExecutor | None = None

    def encode(self, ids: Tensor) -> Tensor:
        """Word vectors without context: `(N, C)` character ids, `(N,)` word ids, to `(N, P)`."""
        if len(ids) == 0:
            return torch.zeros(0, self._config.lstm.projection_dim)
        encoded: Tensor = self._encoder(ids)
        return encoded

    def contextualise(
        self, x_BTP: Tensor, mask_BT: Tensor, state: State | None = None, *, layers: Sequence[int] | None = None
    ) -> BiLMOutput:
        """Do what `BiLM.contextualise` does."""
        wanted, state = self._bilm.checked(len(x_BTP), state, layers)
        steps = _Steps.of(mask_BT)
        top = max(wanted)
        flat = x_BTP.flatten(0, 1).float()
        places = (steps.forward, steps.backward)
        jobs = [(self._stacks[d][:top], flat[places[d]], steps, state, d) for d in range(2)]
        side_by_side = len(x_BTP) >= _ROWS_FOR_TWO_THREADS and torch.get_num_threads() > 1
        run = self._two_threads().map if side_by_side else map
        results = list(run(lambda job: self._direction(*job), jobs))
        out = x_BTP.new_zeros(len(wanted), flat.shape[0], self._config.dim)
        for place, layer in enumerate(wanted):
            for d, half in enumerate(out[place].chunk(2, dim=-1)):
                half[places[d]] = results[d][0][layer]
        ends = [State(m, c) for _, m, c in results]
        return BiLMOutput(
            layers=out.view(len(wanted), *x_BTP.shape[:2], self._config.dim),
            mask=mask_BT,
            state=State(torch.stack([e.m for e in ends], dim=1), torch.stack([e.c for e in ends], dim=1)),
        )

    def _two_threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            threads = torch.get_num_threads()
            pool = ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(max(1, threads // 2),))
            started = threading.Barrier(2)
            list(pool.map(lambda _: started.wait(), range(2)))
            torch.set_num_threads(threads)  # it counts for a thread, but is also what threads to come begin with
            self._pool = pool
        return self._pool

    def _direction(
        self, lstms: list[_LSTM], x_NP: Tensor, steps: _Steps, state: State, direction: int
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Run one direction: each layer's output `(N, P)`, the word layer first, and the state it leaves."""
        with torch.inference_mode():
            outputs = [x_NP]
            m_KBP, c_KBD = state.m[:, direction].float().clone(), state.c[:, direction].float().clone()
            for k, lstm in enumerate(lstms):
                m, c = m_KBP[k, steps.order], c_KBD[k, steps.order]
                y_NP = lstm(outputs[-1], steps.rows, m, c)
                m_KBP[k, steps.order], c_KBD[k, steps.order] = m, c
                skip = k > 0 and self._config.lstm.use_skip_connections
                outputs.append(y_NP + outputs[-1] if skip else y_NP)
            return outputs, m_KBP, c_KBD


@dataclass(frozen=True)
class _Steps:
    """Where the tokens of a batch are, step by step, the longest rows first."""

    order: Tensor
    """`(B,)`, rows by falling length."""
    rows: list[int]
    """How many rows are still there at each step."""
    forward: Tensor
    """`(N,)`, place in the flattened `(B * T)` of each token, step after step."""
    backward: Tensor
    """The same, each row read from its own end."""

    @classmethod
    def of(cls, mask_BT: Tensor) -> _Steps:
        mask = mask_BT.numpy()
        width = mask.shape[1]
        lengths: NDArray[np.int64] = mask.sum(axis=1)
        order = np.argsort(-lengths, kind="stable")
        rows = [int((lengths > t).sum()) for t in range(int(lengths.max(initial=0)))]
        step = np.repeat(np.arange(len(rows)), rows)
        row = order[np.concatenate([np.arange(n) for n in rows])] if rows else np.zeros(0, dtype=np.int64)
        return cls(
            order=torch.from_numpy(order),
            rows=rows,
            forward=torch.from_numpy(row * width + step),
            backward=torch.from_numpy(row * width + lengths[row] - 1 - step),
        )


class _LSTM:
    """One layer in one direction, its weights packed."""

    def __init__(self, lstm: ProjectedLSTM, config: LSTMConfig, precision: Precision) -> None:
        width, cells = config.projection_dim, config.dim
        scale = torch.ones(4 * cells)
        scale[cells : 2 * cells] = 2  # gate j, whose tanh becomes a sigmoid
        shift = torch.zeros(4 * cells)
        shift[2 * cells : 3 * cells] = FORGET_BIAS
        kernel = lstm.kernel.detach().float()
        bias = lstm.bias.detach().float()
        self._inputs = pack(kernel[:width] * scale, (bias + shift) * scale, precision)
        self._recurrent = pack(kernel[width:] * scale, None, precision)
        self._projection = None if lstm.projection is None else pack(lstm.projection.detach().float(), None, precision)
        self._cell_clip, self._proj_clip = lstm.cell_clip, lstm.proj_clip
        self._gates = 4 * cells

    def __call__(self, x_NP: Tensor, rows: list[int], m_BP: Tensor, c_BD: Tensor) -> Tensor:
        """Run over all steps; `m` and `c` are changed in place, each row up to its own end."""
        y_NP = torch.empty_like(x_NP)
        gates = fastest()
        start = step = 0
        m = m_BP  # of the rows that are still there
        while step < len(rows):
            first, end = start, start
            until = step
            while until < len(rows) and (until == step or (end - start + rows[until]) * self._gates <= _GATE_BUFFER):
                end += rows[until]
                until += 1
            gates_NG = self._inputs(x_NP[start:end])
            for n in rows[step:until]:
                if n < len(m):
                    m_BP[n : len(m)] = m[n:]  # rows that have ended
                    m = m[:n]
                x_BG = gates_NG[start - first : start - first + n]
                m = self._project(gates(self._recurrent(m), x_BG, c_BD[:n], self._cell_clip))
                y_NP[start : start + n] = m
                start += n
            step = until
        m_BP[: len(m)] = m
        return y_NP

    def _project(self, h_BD: Tensor) -> Tensor:
        if self._projection is None:
            return h_BD
        m_BP = self._projection(h_BD)
        return m_BP if self._proj_clip is None else m_BP.clamp_(-self._proj_clip, self._proj_clip)


class _Encoder:
    """The character encoder, its products packed; most windows of a word are padding, and are left out."""

    def __init__(self, encoder: CharEncoder, precision: Precision) -> None:
        self._characters = encoder.characters.weight.detach().float()
        self._activation = encoder.activation
        self._convolutions = []
        for conv in cast(list[torch.nn.Conv1d], list(encoder.convolutions)):
            assert conv.bias is not None
            weight_IO = conv.weight.detach().float().permute(2, 1, 0).flatten(0, 1)  # (width * E, number)
            product = pack(weight_IO, conv.bias.detach().float(), "fp32" if precision == "int8" else precision)
            self._convolutions.append((conv.kernel_size[0], product))
        self._widest = max(conv.out_channels for conv in cast(list[torch.nn.Conv1d], list(encoder.convolutions)))
        self._highways = [
            (_linear(highway.carry, precision), _linear(highway.transform, precision))
            for highway in cast(list[Highway], list(encoder.highways))
        ]
        self._projection = None if encoder.projection is None else _linear(encoder.projection, precision)

    def __call__(self, ids_NC: Tensor) -> Tensor:
        x_NF = self._convolved(ids_NC)
        for carry, transform in self._highways:
            x_NF = torch.lerp(x_NF, transform(x_NF).relu_().float(), carry(x_NF).sigmoid_().float())
        return x_NF if self._projection is None else self._projection(x_NF).float()

    def _convolved(self, ids_NC: Tensor) -> Tensor:
        """The largest of each filter over a word: `(N, C)` ids to `(N, F)`, words of like length together."""
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
        width_C = ids_NC.shape[1]
        largest = []
        for width, product in self._convolutions:
            # One window of nothing but padding stands for all of them.
            end = min(width_C, longest + width)
            characters = F.embedding(ids_NC[:, :end], self._characters)  # (N, end, E)
            windows = characters.unfold(1, width, 1).transpose(2, 3).flatten(2)  # (N, places, width * E)
            places = product(windows.flatten(0, 1)).view(len(ids_NC), end - width + 1, -1)
            largest.append(self._activation(places.amax(dim=1).float()))
        return torch.cat(largest, dim=1)


def pack(weight_IO: Tensor, bias_O: Tensor | None, precision: Precision) -> Product:
    """Get a product ready: `x (N, I)` to `x weight + bias (N, O)`, which is bfloat16 where the precision is."""
    weight_OI = weight_IO.t().contiguous()
    if precision == "int8":
        return _pack_int8(weight_OI, bias_O)
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


def _pack_int8(weight_OI: Tensor, bias_O: Tensor | None) -> Product:
    scales = weight_OI.abs().amax(dim=1).clamp_min(1e-12) / 127
    engine = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch announces that these tensors will move to another package
            zeros = torch.zeros(len(scales), dtype=torch.long)
            quantised = torch.quantize_per_channel(weight_OI, scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(quantised, bias_O)
    finally:
        torch.backends.quantized.engine = engine
    run: Any = torch.ops.quantized.linear_dynamic
    # Without VNNI, pairs of products are summed in 16 bits: inputs of 7 bits then keep them from overflowing.
    reduce_range = not getattr(torch.cpu, "_is_vnni_supported", lambda: False)()
    return lambda x_NI: cast(Tensor, run(x_NI, packed, reduce_range))


def _linear(linear: torch.nn.Linear, precision: Precision) -> Product:
    return pack(linear.weight.detach().float().t(), linear.bias.detach().float(), precision)
