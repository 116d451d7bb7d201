"""The biLM on a GPU: the function of `BiLM.contextualise`, fast, on the current stream and without waiting for it.

Both directions run at once. Tokens are packed step after step, the longest rows first, so that nothing is padding and a
row that is at its end leaves the batch. Many rows take their steps in waves (`triton_lstm.py`), in which
each layer is a step behind the layer below, some waves to a captured graph, so that the host is not what is waited for.
Few rows, where it is the weights' way to the chip that is waited for, take all steps of a layer in one launch, with the
weights on the chip (`resident.py`).

Products are in bfloat16 or in float32; cells and gates are float32.

Shapes: B rows, N tokens of all rows in the order of time steps, P projection, D cell, W distinct words, 2 directions.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.config import LSTMConfig, ModelConfig
from elmo.engine import resident, triton_lstm
from elmo.engine.precision import Int64s, LSTMWeights, Read, Steps, network_encoder
from elmo.model import BiLMOutput, CharEncoder, State, checked
from elmo.transfer import to_device

Way = Literal["waves", "resident"]
Key = tuple[Way, int, int, int]
"""What a graph does: a way, how many layers, at most how many rows, how many steps (resident: tokens)."""

_AHEAD_TOKENS = 4096  # whose input's products are computed ahead: 64 KB each, at the published size
_STEPS = (16, 8, 4, 1)  # of a graph
_SPARE = 32  # steps without rows behind the last: layers are steps apart, and a capture's dry run stands there
_GRAPHS_KEPT = 64
_TOKENS_KEPT = 2**16  # room for so many stays, 16 KB each at the published size
_LEAST_ROWS, _LEAST_TOKENS = 16, 32  # of a graph
_LEAST_RESIDENT = 3  # steps; fewer do not pay for bringing the weights
_WORDS_AT_ONCE = 1024  # through the character encoder: 200 MB


class CudaEngine:
    """A biLM made ready for one precision; its weights are copied, so later changes of the biLM are not seen."""

    def __init__(
        self, config: ModelConfig, read: Read, precision: Literal["fp32", "bf16"], device: torch.device
    ) -> None:
        """Put the weights into the kernels' order.

        Args:
            config: what the biLM is made of.
            read: gives some rows of a weight.
            precision: of the products.
            device: where it runs.
        """
        self._config, self._device = config, device
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._weights = _Weights.of(config.lstm, read, self._dtype, device)
        self._resident = _resident(self._weights, device) if precision == "bf16" else None
        self._encoder: CharEncoder | Tensor
        if config.char_cnn is None:
            self._encoder = read("encoder.weight", slice(None)).to(device, torch.float32)
        else:
            self._encoder = network_encoder(config, read, device)
        self._room = self._new_room()
        self._graphs: OrderedDict[Key, torch.cuda.CUDAGraph] = OrderedDict()
        self._lock = threading.Lock()
        self._gpu = device.type == "cuda"  # else a CPU plays one, to test with
        self._done = torch.cuda.Event() if self._gpu else None  # type: ignore[no-untyped-call]  # of PyTorch
        self._aside = torch.cuda.Stream(device) if self._gpu else None  # type: ignore[no-untyped-call]

    def encode(self, ids: Tensor) -> Tensor:
        """Word vectors without context: `(N, C)` character ids, `(N,)` word ids, to `(N, P)`."""
        ids = ids.to(self._device, torch.int32, non_blocking=True)
        low = self._dtype == torch.bfloat16
        with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=low):
            vectors = [_encoded(self._encoder, piece).float() for piece in torch.split(ids, _WORDS_AT_ONCE)]
        return torch.cat(vectors) if vectors else torch.zeros(0, self._config.lstm.projection_dim, device=self._device)

    def contextualise(
        self, words_WP: Tensor, places_BT: Tensor, state: State | None = None, *, layers: Sequence[int] | None = None
    ) -> BiLMOutput:
        """Do what `Engine.contextualise` says; nothing is waited for."""
        wanted, state = checked(self._config, len(places_BT), state, layers)
        places_BT = places_BT.cpu()
        rows, top, lstm = len(places_BT), max(wanted), self._config.lstm
        steps = Steps.of(places_BT)
        n = len(steps.forward)
        flat = places_BT.numpy().reshape(-1)
        where = np.stack([steps.forward, steps.backward])
        where_2N, inputs_2N = to_device(np.stack([where, flat[where]]), self._device)
        order_B = to_device(steps.order, self._device)
        with self._lock, torch.inference_mode(), self._current():
            if self._done is not None:  # the room is used again, perhaps from another stream
                torch.cuda.current_stream(self._device).wait_event(self._done)
            words = words_WP.to(self._device, torch.float32)
            out = torch.zeros(len(wanted), rows * places_BT.shape[1], 2, lstm.projection_dim, device=self._device)
            start = state.to(words).expand(rows) if state.rows == 1 else state.to(words)
            m, c = start.m.clone(), start.c.clone()
            if n and top:
                room = self._room_for(rows, n)
                for d in range(2):
                    room.a[0, d, :n, : lstm.projection_dim] = words.index_select(0, inputs_2N[d])
                room.m[:, :, :rows] = m.index_select(2, order_B)
                room.c[:, :, :rows] = c.index_select(2, order_B)
                self._run(steps, top)
                m[:top, :, order_B] = room.m[:top, :, :rows].float()
                c[:top, :, order_B] = room.c[:top, :, :rows]
            for place, layer in enumerate(wanted):
                for d in range(2):
                    y = words.index_select(0, inputs_2N[d]) if layer == 0 else self._room.y[layer - 1, d, :n]
                    out[place, :, d].index_copy_(0, where_2N[d], y)
            if self._done is not None:
                self._done.record(torch.cuda.current_stream(self._device))
        return BiLMOutput(
            layers=out.view(len(wanted), *places_BT.shape, self._config.dim),
            mask=to_device(places_BT, self._device) >= 0,
            state=State(m, c),
        )

    def _current(self) -> AbstractContextManager[object]:
        """Make the device the one that kernels are launched on."""
        return torch.cuda.device(self._device) if self._gpu else nullcontext()

    def _room_for(self, rows: int, tokens: int) -> _Room:
        room = self._room
        large = room.tokens > _TOKENS_KEPT >= tokens  # what a batch like no other needed is not kept for the next
        if rows > room.rows or tokens > room.tokens or large:
            rows = max(room.rows, _power(rows))
            tokens = _power(tokens) if large else max(room.tokens, _power(tokens))
            del room
            self._graphs.clear()
            self._room = self._new_room()  # so that there is one, should there be no memory for the next
            self._room = self._new_room(rows, tokens)
        return self._room

    def _new_room(self, rows: int = resident.ROWS, tokens: int = _AHEAD_TOKENS) -> _Room:
        return _Room.of(self._config.lstm, rows, tokens, self._dtype, self._device)

    def _run(self, steps: Steps, top: int) -> None:
        """Run the layers up to `top` over a batch that is in the room."""
        ends = np.concatenate([[0], np.cumsum(steps.rows)])
        for way, first, last in _segments(steps.rows, ends, resident_too=self._resident is not None):
            self._take_places(steps.rows[first:last], ends[first : last + 1])
            start, end, rows = int(ends[first]), int(ends[last]), int(steps.rows[first])
            if way == "resident" and start == 0:
                self._replay(("resident", top, _power(rows), max(_LEAST_TOKENS, _power(end))))
            elif way == "resident":
                self._stay(top, rows, start, end)
            else:
                room = self._room
                room.a[:, :, start : start + rows, room.m.shape[3] :] = room.m[:, :, :rows]
                for wave in _counted(last - first + top - 1):
                    rows = int(steps.rows[first + max(0, wave.start - top + 1)])
                    self._replay(("waves", top, max(_LEAST_ROWS, _power(rows)), len(wave)))

    def _take_places(self, rows: Int64s, ends: Int64s) -> None:
        table = np.zeros((3, len(rows) + _SPARE), dtype=np.int32)
        table[1, 0] = len(rows)
        table[0, 1 : len(ends) + 1] = ends
        table[1, 1 : len(rows) + 1] = ends[:-1] - ends[0]
        table[2, 1 : len(rows) + 1] = rows
        self._room.table[:, : table.shape[1]] = to_device(table, self._device)

    def _stay(self, top: int, rows: int, start: int, end: int) -> None:
        """Take all steps of a segment, layer after layer, with the weights on the chip."""
        room, lstm = self._room, self._config.lstm
        assert self._resident is not None
        for k in range(top):
            inputs = room.a[k, :, start:end, : lstm.projection_dim]
            torch.bmm(inputs, self._weights.w[k, :, : lstm.projection_dim], out=room.z[:, : end - start])
            room.arrivals.zero_()
            self._resident[k](
                self._weights.bias[k],
                room.z,
                room.h,
                room.m[k],
                room.c[k],
                room.y[k],
                room.a[k + 1] if k + 1 < top else None,
                room.y[k - 1] if k > 0 and lstm.use_skip_connections else None,
                room.table[0, 1:],
                room.table[1, 1:],
                room.table[2, 1:],
                room.time,
                room.count,
                room.arrivals,
                rows=rows,
                cell_clip=lstm.cell_clip,
                proj_clip=lstm.proj_clip,
            )

    def _replay(self, key: Key) -> None:
        """Do the work that a key stands for, captured when it is met first."""
        if not self._gpu:
            self._work(key)
            return
        graph = self._graphs.pop(key, None)
        if graph is None:
            while len(self._graphs) >= _GRAPHS_KEPT:
                self._graphs.popitem(last=False)
            graph = self._captured(key)
        self._graphs[key] = graph
        graph.replay()

    def _captured(self, key: Key) -> torch.cuda.CUDAGraph:
        room = self._room
        now = room.table[:2, 0].clone()
        # Nothing to do: what is compiled and loaded must be so before a capture.
        room.time.fill_(room.tokens + _SPARE)
        room.count.fill_(0)
        self._work(key)
        graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), self._aside
        assert aside is not None
        aside.wait_stream(here)
        with torch.cuda.stream(aside):  # not torch.cuda.graph, which gives memory back first, at some cost
            graph.capture_begin(capture_error_mode="thread_local")  # other threads may use the GPU meanwhile
            try:
                self._work(key)
            finally:
                graph.capture_end()
        here.wait_stream(aside)
        room.table[:2, 0] = now
        return graph

    def _work(self, key: Key) -> None:
        way, top, rows, count = key
        if way == "resident":
            self._stay(top, rows, 0, count)
            return
        weights, room, lstm = self._weights, self._room, self._config.lstm
        places = triton_lstm.Places(room.table[0, 1:], room.table[2, 1:], room.time)
        for step in range(count):
            triton_lstm.gates(
                room.a,
                weights.w,
                weights.bias,
                None,
                room.c,
                room.c,
                room.h,
                places,
                step,
                rows,
                top,
                clip=lstm.cell_clip,
            )
            triton_lstm.project(
                room.h,
                weights.projection,
                room.partial,
                room.counters,
                room.m,
                room.y,
                room.a,
                places,
                step,
                rows,
                top,
                clip=lstm.proj_clip,
                skip=lstm.use_skip_connections,
            )
        room.time.add_(count)


@dataclass(frozen=True)
class _Weights:
    """Those of all layers, both directions."""

    w: Tensor
    """`(K, 2, 2 * P, G)`, gates in the kernels' order."""
    bias: Tensor
    """`(K, 2, G)`, float32, the forget gate's own included."""
    projection: Tensor
    """`(K, 2, D, P)`"""

    @classmethod
    def of(cls, config: LSTMConfig, read: Read, dtype: torch.dtype, device: torch.device) -> _Weights:
        both = [
            [LSTMWeights(read, f"{stack}.{k}", config) for stack in ("forwards", "backwards")]
            for k in range(config.n_layers)
        ]

        def all_of(get: Callable[[LSTMWeights], Tensor], dtype: torch.dtype) -> Tensor:
            return torch.stack([torch.stack([get(one).to(device, dtype) for one in layer]) for layer in both])

        def kernel(weights: LSTMWeights) -> Tensor:
            return torch.cat(
                [triton_lstm.pack(part().to(device, dtype)) for part in (weights.inputs, weights.recurrent)]
            )

        def projection(weights: LSTMWeights) -> Tensor:
            found = weights.projection()
            assert found is not None  # see `supported`
            return found

        return cls(
            w=all_of(kernel, dtype),
            bias=triton_lstm.pack(all_of(LSTMWeights.bias, torch.float32)),
            projection=all_of(projection, dtype),
        )


@dataclass(frozen=True)
class _Room:
    """What graphs read and write: tensors that stay where they are."""

    rows: int
    tokens: int
    m: Tensor
    """`(K, 2, rows, P)`: a layer's output at the step before."""
    c: Tensor
    """`(K, 2, rows, D)`, float32."""
    h: Tensor
    """`(K, 2, rows, D)`"""
    y: Tensor
    """`(K, 2, tokens, P)`, float32: the layers' outputs, the one below added."""
    a: Tensor
    """`(K, 2, tokens, 2 * P)`: a token's input and, beside it, its row's output at the step before."""
    z: Tensor
    """`(2, _AHEAD_TOKENS, G)`: products of inputs, computed ahead."""
    partial: Tensor
    """What the programs that share a sum have of it."""
    counters: Tensor
    """How many of them are ready."""
    arrivals: Tensor
    """The same for the blocks of `resident.cu`."""
    table: Tensor
    """`(3, 1 + steps)`, int32: a number each, then where steps' tokens are, where in `z`, how many they are."""

    @property
    def time(self) -> Tensor:
        """The step that is taken next."""
        return self.table[0, :1]

    @property
    def count(self) -> Tensor:
        """How many `resident.cu` takes."""
        return self.table[1, :1]

    @classmethod
    def of(cls, config: LSTMConfig, rows: int, tokens: int, dtype: torch.dtype, device: torch.device) -> _Room:
        width, cells, n_layers = config.projection_dim, config.dim, config.n_layers

        def ints(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        def low(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def high(*shape: int) -> Tensor:
            return torch.zeros(shape, device=device)

        return cls(
            rows=rows,
            tokens=tokens,
            m=low(n_layers, 2, rows, width),
            c=high(n_layers, 2, rows, cells),
            h=low(n_layers, 2, rows, cells),
            y=high(n_layers, 2, tokens, width),
            a=low(n_layers, 2, tokens, 2 * width),
            z=low(2, _AHEAD_TOKENS, 4 * cells),
            partial=high(triton_lstm.SPLITS, n_layers, 2, rows, width),
            counters=ints(triton_lstm.n_counters(rows, width, n_layers)),
            arrivals=ints(2 * 64),
            table=torch.zeros(3, tokens + 2 * _SPARE, dtype=torch.int32, device=device),
        )


def _segments(rows: Int64s, ends: Int64s, *, resident_too: bool) -> Iterator[tuple[Way, int, int]]:
    """How a batch's steps are taken: the way, the first of the steps and the one behind the last."""
    few = int(np.searchsorted(-rows, -resident.ROWS)) if resident_too else len(rows)  # rows fall
    few = few if len(rows) - few >= _LEAST_RESIDENT else len(rows)
    if few:
        yield "waves", 0, few
    while few < len(rows):
        last = max(few + 1, int(np.searchsorted(ends, ends[few] + _AHEAD_TOKENS, side="right")) - 1)
        yield "resident", few, min(last, len(rows))
        few = min(last, len(rows))


def _counted(waves: int) -> Iterator[range]:
    """Cut waves into the numbers that there are graphs for."""
    done = 0
    while done < waves:
        count = next(count for count in _STEPS if count <= waves - done)
        yield range(done, done + count)
        done += count


def _resident(weights: _Weights, device: torch.device) -> list[resident.ResidentLSTM] | None:
    cells, width = weights.projection.shape[2:]
    if not resident.fits(width, cells, device):
        return None
    try:
        return [
            resident.ResidentLSTM(triton_lstm.unpack(w[:, width:]), projection)
            for w, projection in zip(weights.w, weights.projection, strict=True)
        ]
    except (AttributeError, OSError, RuntimeError) as error:  # what it asks of PyTorch and CUDA is not promised
        warnings.warn(f"few sentences at a time will be slower than they could be: {error}", stacklevel=2)
        return None


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _encoded(encoder: CharEncoder | Tensor, ids: Tensor) -> Tensor:
    """The encoder's function; convolutions as products, which are faster than cuDNN's for so few channels."""
    if isinstance(encoder, Tensor):
        return F.embedding(ids, encoder)
    characters_NCE = encoder.characters(ids[:, : encoder.n_characters])
    best = []
    for conv in encoder.convolutions:
        assert isinstance(conv, nn.Conv1d)
        assert conv.bias is not None
        windows = characters_NCE.unfold(1, conv.kernel_size[0], 1).flatten(2)  # (N, positions, E * width)
        best.append(F.linear(windows, conv.weight.flatten(1)).amax(dim=1).float() + conv.bias)
    x_NF: Tensor = encoder.activation(torch.cat(best, dim=1))
    return encoder.finish(x_NF, ids)
