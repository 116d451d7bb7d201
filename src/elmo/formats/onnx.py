"""A biLM as an ONNX graph, for programs without PyTorch or Python: the function that `BiLM.forward` is.

Inputs and outputs have the names and shapes of `BiLM.forward`:

    char_ids  (B, T, C) int64       0 where a shorter sentence has no token; (B, T) for a model that reads words
    m, c      (K, 2, B, P), (K, 2, B, cell)  the state to start from; zeros for none; one row is every row's
    layers    (L, B, T, D)          zero where there is no token
    mask      (B, T) bool           where there is one
    next_m, next_c                  the state that each row leaves at its own end

Sentence boundaries are the caller's. B and T are free, and nothing is unrolled: an LSTM is a `Scan` over time. A file
can only be written, for other programs: `elmo` reads the model that it was made from.

Shapes: as in `model.py`; I input and G = 4 * cell gates of an LSTM, W distinct words.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from elmo.config import CharCNNConfig, ModelConfig
from elmo.errors import ElmoError
from elmo.files import check_new_file, new_file
from elmo.formats.bundle import Bundle, Network
from elmo.formats.onnx_graph import IR_VERSION, OPSET, Graph, Shape, import_onnx
from elmo.lstm import FORGET_BIAS
from elmo.model import weight_shapes

CONFIG = "elmo.config"
"""The file's metadata has the model's configuration, as in `options.json`, under this name."""

_MOST_BYTES = 2**31 - 2**20  # a protocol buffer ends at 2 GiB; the graph itself takes some 100 KB


def export(bundle: Bundle, path: Path, *, int8: bool = False, overwrite: bool = False) -> None:
    """Write a model's biLM as an ONNX file, which appears whole or not at all.

    Args:
        bundle: the model, such as what `elmo.load` returns.
        path: the file.
        int8: store the large weights as integers with a scale a column, and multiply integers; a quarter of the size.
        overwrite: replace a file that is there.
    """
    onnx = import_onnx()
    check_new_file(path, overwrite=overwrite)
    _check_size(bundle.config, int8)
    graph = _Network(bundle.network, int8=int8).build()
    model = onnx.helper.make_model(
        graph, ir_version=IR_VERSION, opset_imports=[onnx.helper.make_opsetid("", OPSET)], producer_name="elmo"
    )
    onnx.helper.set_model_props(model, {CONFIG: json.dumps(bundle.config.to_options())})
    with new_file(path) as beside:
        beside.write_bytes(model.SerializeToString(deterministic=True))


def _check_size(config: ModelConfig, int8: bool) -> None:
    numbers = sum(map(math.prod, weight_shapes(config).values()))
    size = numbers * (1 if int8 else 4)
    if size > _MOST_BYTES:
        advice = "" if int8 else "; int8 (--int8) takes a quarter of it"
        raise ElmoError(f"the weights take {size / 2**30:.1f} GiB, and an ONNX file ends at 2 GiB{advice}")


class _Network:
    """The graph of one biLM, in the order of `model.py`."""

    def __init__(self, network: Network, *, int8: bool) -> None:
        self._network = network
        self._config = network.config
        self._graph = Graph(int8=int8)

    def build(self) -> Any:
        """All of it."""
        graph, config = self._graph, self._config
        mask_BT = self._mask()
        active_TB1 = graph.add("Unsqueeze", graph.add("Transpose", mask_BT, perm=[1, 0]), graph.constant([2]))
        lengths_B = graph.add("ReduceSum", graph.cast(mask_BT, np.int64), graph.constant([1]), keepdims=0)
        encoded_TBP = graph.add("Transpose", self._encode(), perm=[1, 0, 2])
        x_TBP = graph.add("Mul", encoded_TBP, graph.cast(active_TB1, np.float32))
        reversed_TBP = self._reverse(x_TBP, lengths_B)
        forward, forward_ends = self._direction("forwards", 0, x_TBP, active_TB1)
        backward, backward_ends = self._direction("backwards", 1, reversed_TBP, active_TB1)
        layers = [(x_TBP, x_TBP)]
        layers += [(ahead, self._reverse(back, lengths_B)) for ahead, back in zip(forward, backward, strict=True)]
        both_LTBD = graph.stack([graph.add("Concat", *pair, axis=-1) for pair in layers])
        graph.rename(graph.add("Transpose", both_LTBD, perm=[0, 2, 1, 3]), "layers")
        graph.rename(mask_BT, "mask")
        ends = [end for pair in zip(forward_ends, backward_ends, strict=True) for end in pair]
        for name, width, which in (("next_m", config.lstm.projection_dim, 0), ("next_c", config.lstm.dim, 1)):
            stacked = graph.stack([end[which] for end in ends])  # (2 * K, B, width)
            shape = graph.constant([config.lstm.n_layers, 2, -1, width])
            graph.rename(graph.add("Reshape", stacked, shape), name)
        return graph.finish("bilm", self._inputs(), self._outputs())

    def _inputs(self) -> list[Any]:
        # No zeros as the state's default: onnxruntime prints a warning for each input that has one.
        graph, config = self._graph, self._config
        ids: Shape = ["B", "T"] if config.char_cnn is None else ["B", "T", _columns(config.char_cnn)]
        inputs = [graph.described("char_ids", np.int64, ids, "ids raised by 1; 0 means no token")]
        for name, width in (("m", config.lstm.projection_dim), ("c", config.lstm.dim)):
            shape: Shape = [config.lstm.n_layers, 2, "R", width]
            inputs.append(graph.described(name, np.float32, shape, "state: B rows, or one for all"))
        return inputs

    def _outputs(self) -> list[Any]:
        graph, config = self._graph, self._config
        state: Shape = [config.lstm.n_layers, 2, "B"]
        return [
            graph.described("layers", np.float32, [config.n_layers, "B", "T", config.dim]),
            graph.described("mask", np.bool_, ["B", "T"]),
            graph.described("next_m", np.float32, [*state, config.lstm.projection_dim]),
            graph.described("next_c", np.float32, [*state, config.lstm.dim]),
        ]

    def _mask(self) -> str:
        """Where there is a token, `(B, T)`."""
        graph = self._graph
        there = graph.add("Not", graph.add("Equal", "char_ids", graph.constant(0)))
        if self._config.char_cnn is None:
            return there
        any_of_them = graph.add("ReduceMax", graph.cast(there, np.float32), graph.constant([-1]), keepdims=0)
        return graph.cast(any_of_them, np.bool_)

    def _encode(self) -> str:
        """Word vectors without context, `(B, T, P)`; each distinct word goes through the encoder once."""
        graph, cnn = self._graph, self._config.char_cnn
        if cnn is None:
            return graph.rows_of("encoder.weight", self._read("encoder.weight"), "char_ids")
        rows_NC = graph.add("Reshape", "char_ids", graph.constant([-1, _columns(cnn)]))
        words_WC, _, places_N = graph.add_many("Unique", rows_NC, outputs=3, axis=0)
        encoded_WP = self._encode_words(words_WC, cnn)
        shape = graph.add("Shape", "char_ids", start=0, end=2)
        return graph.add("Gather", encoded_WP, graph.add("Reshape", places_N, shape))

    def _encode_words(self, ids_WC: str, cnn: CharCNNConfig) -> str:
        """`(W, C)` character ids, `(W, C + 1)` with a table of words, to `(W, P)`."""
        graph = self._graph
        characters, word = ids_WC, None
        if cnn.word_dim:
            sizes = graph.constant([cnn.max_characters_per_token, 1])
            characters, column = graph.add_many("Split", ids_WC, sizes, outputs=2, axis=1)
            word = graph.add("Squeeze", column, graph.constant([1]))
        x_WF = self._convolve(characters, cnn)
        for number in range(cnn.n_highway):
            x_WF = self._highway(f"encoder.highways.{number}", x_WF)
        if word is not None:
            vectors = graph.rows_of("encoder.words.weight", self._read("encoder.words.weight"), word)
            x_WF = graph.add("Concat", vectors, x_WF, axis=1)
        return self._linear("encoder.projection", x_WF) if self._has("encoder.projection.weight") else x_WF

    def _convolve(self, ids_WC: str, cnn: CharCNNConfig) -> str:
        """Convolutions, maximum over positions, activation: `(W, C)` to `(W, F)`. So small that they stay float32."""
        graph = self._graph
        table = graph.weight("encoder.characters.weight", self._read("encoder.characters.weight"))
        vectors_WEC = graph.add("Transpose", graph.add("Gather", table, ids_WC), perm=[0, 2, 1])
        filters = []
        for number, (width, _) in enumerate(cnn.filters):
            name = f"encoder.convolutions.{number}"
            weights = (graph.weight(part, self._read(part)) for part in (f"{name}.weight", f"{name}.bias"))
            windows = graph.add("Conv", vectors_WEC, *weights, kernel_shape=[width])
            filters.append(graph.add("ReduceMax", windows, graph.constant([-1]), keepdims=0))
        return graph.add("Relu" if cnn.activation == "relu" else "Tanh", graph.add("Concat", *filters, axis=1))

    def _highway(self, name: str, x_WF: str) -> str:
        graph = self._graph
        gate = graph.add("Sigmoid", self._linear(f"{name}.carry", x_WF))
        transformed = graph.add("Relu", self._linear(f"{name}.transform", x_WF))
        rest = graph.add("Sub", graph.constant(1, np.float32), gate)
        return graph.add("Add", graph.add("Mul", gate, transformed), graph.add("Mul", rest, x_WF))

    def _linear(self, name: str, x: str) -> str:
        return self._graph.linear(name, x, self._read(f"{name}.weight"), self._read(f"{name}.bias"))

    def _direction(self, stack: str, place: int, x_TBP: str, active_TB1: str) -> tuple[list[str], list[list[str]]]:
        """A stack of LSTMs: the outputs of its layers, `(T, B, P)`, and the states `[m, c]` that they end with."""
        graph = self._graph
        outputs, ends = [], []
        for k in range(self._config.lstm.n_layers):
            state = [self._start(name, k, place) for name in ("m", "c")]
            y_TBP, end = self._lstm(f"{stack}.{k}", x_TBP, active_TB1, state)
            # The state is the LSTM's own output: the residual is added outside the recurrence.
            residual = k > 0 and self._config.lstm.use_skip_connections
            x_TBP = graph.add("Add", x_TBP, y_TBP) if residual else y_TBP
            outputs.append(x_TBP)
            ends.append(end)
        return outputs, ends

    def _start(self, name: str, k: int, place: int) -> str:
        """What a layer of a direction starts from, `(B, width)`."""
        graph = self._graph
        layer = graph.add("Gather", name, graph.constant(k))  # (2, B or 1, width)
        rows = graph.add("Gather", layer, graph.constant(place))
        batch = graph.add("Shape", "char_ids", start=0, end=1)
        return graph.add("Expand", rows, graph.add("Concat", batch, graph.constant([1]), axis=0))

    def _lstm(self, name: str, x_TBI: str, active_TB1: str, state: list[str]) -> tuple[str, list[str]]:
        """One layer: the input's share of the gates ahead of the loop, then a step at a time."""
        graph, width = self._graph, self._config.lstm.projection_dim
        kernel = self._read(f"{name}.kernel")
        gates_TBG = graph.product(f"{name}.kernel.input", x_TBI, kernel[:width])
        gates_TBG = graph.add("Add", gates_TBG, graph.weight(f"{name}.bias", self._read(f"{name}.bias")))
        body = self._step(name, kernel[width:])
        m, c, y_TBP = graph.add_many("Scan", *state, gates_TBG, active_TB1, outputs=3, body=body, num_scan_inputs=2)
        return y_TBP, [m, c]

    def _step(self, name: str, kernel_PG: Tensor) -> Any:
        """The body of the loop: `(m, c, gates, active)` to `(m, c, y)`, where rows that have ended stay as they are."""
        lstm, body = self._config.lstm, Graph(around=self._graph)
        m, c, gates, active = (f"{name}.{part}" for part in ("m", "c", "gates", "active"))
        z_BG = body.add("Add", gates, body.product(f"{name}.kernel.recurrent", m, kernel_PG))
        i, j, f, o = body.add_many("Split", z_BG, outputs=4, axis=1, num_outputs=4)
        forget = body.add("Sigmoid", body.add("Add", f, body.constant(FORGET_BIAS, np.float32)))
        new = body.add("Mul", body.add("Sigmoid", i), body.add("Tanh", j))
        new_c = body.clip(body.add("Add", body.add("Mul", forget, c), new), lstm.cell_clip)
        new_m = body.add("Mul", body.add("Sigmoid", o), body.add("Tanh", new_c))
        if lstm.has_projection:
            projection = self._read(f"{name}.projection")
            new_m = body.product(f"{name}.projection", new_m, projection, in_spans=True)
            new_m = body.clip(new_m, lstm.proj_clip)
        nothing = body.constant(0, np.float32)
        body.rename(body.add("Where", active, new_m, m), f"{name}.next_m")
        body.rename(body.add("Where", active, new_c, c), f"{name}.next_c")
        body.rename(body.add("Where", active, new_m, nothing), f"{name}.y")
        wide: Shape = ["B", lstm.dim]
        narrow: Shape = ["B", lstm.projection_dim]
        inputs: list[tuple[str, Shape]] = [(m, narrow), (c, wide), (gates, ["B", 4 * lstm.dim])]
        outputs = [(f"{name}.next_m", narrow), (f"{name}.next_c", wide), (f"{name}.y", narrow)]
        return body.finish(
            name,
            [
                *(body.described(part, np.float32, shape) for part, shape in inputs),
                body.described(active, np.bool_, ["B", 1]),
            ],
            [body.described(part, np.float32, shape) for part, shape in outputs],
        )

    def _reverse(self, x_TBP: str, lengths_B: str) -> str:
        """Each row reversed within its own length."""
        return self._graph.add("ReverseSequence", x_TBP, lengths_B, time_axis=0, batch_axis=1)

    def _read(self, name: str) -> Tensor:
        return self._network.read(name).detach().float().cpu()

    def _has(self, name: str) -> bool:
        return name in weight_shapes(self._config)


def _columns(cnn: CharCNNConfig) -> int:
    """Ids of a word: its characters, and its number where there is a table of words too."""
    return cnn.max_characters_per_token + (1 if cnn.word_dim else 0)
