"""A graph of ONNX under construction: nodes, weights, and products in float32 or int8. It knows nothing of ELMo.

Values are known by their names, as in ONNX itself: each method adds nodes and returns the name of what they give.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.errors import MissingExtraError
from elmo.formats.quantise import LARGEST, quantise

OPSET = 18
"""Of ONNX's operators; onnxruntime has it since 1.14."""
IR_VERSION = 8
"""Of the file's layout: the one of these operators, so that no reader of theirs refuses it."""

Shape = Sequence[str | int]
"""Of an input or output: numbers, and names for what is known only when it runs."""

_ZERO_POINT = LARGEST + 1  # of activations, which are unsigned: x86 multiplies unsigned by signed
_SPAN = 128  # values of a row that share a scale, where a row has several
_LEAST = 1e-30  # taken for the largest magnitude of a row of zeros, lest it be divided by


def import_onnx() -> Any:
    """The library that writes the files."""
    try:
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as error:
        raise MissingExtraError("Writing ONNX", "onnx") from error
    return onnx


class Graph:
    """Nodes and weights. The body of a loop is one within another, with nodes and weights of its own.

    Of its own, for what onnxruntime does to a weight (`session.x64quantprecision`) stops at the graph that it is in.
    """

    def __init__(self, *, int8: bool = False, around: Graph | None = None) -> None:
        """Begin a graph, or a body in the graph `around` it."""
        self.onnx = import_onnx()
        self.int8: bool = int8 if around is None else around.int8
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._numbers: itertools.count[int] = itertools.count() if around is None else around._numbers

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.add_many(operator, *inputs, outputs=1, **attributes)[0]

    def add_many(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs."""
        names = [f"{operator}_{next(self._numbers)}" for _ in range(outputs)]
        self._nodes.append(self.onnx.helper.make_node(operator, inputs, names, **attributes))
        return names

    def rename(self, value: str, name: str) -> None:
        """Let a value have a given name too, as an output must."""
        self._nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))

    def weight(self, name: str, array: NDArray[Any] | Tensor) -> str:
        """Store an array under a name."""
        data = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
        self._weights.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(data), name))
        return name

    def constant(self, value: Any, dtype: type[np.generic] = np.int64) -> str:
        """Store a number or a list of numbers."""
        # `ascontiguousarray` would make a list of a number.
        name = f"constant_{next(self._numbers)}"
        self._weights.append(self.onnx.numpy_helper.from_array(np.array(value, dtype=dtype), name))
        return name

    def cast(self, x: str, dtype: type[np.generic]) -> str:
        """A value in another type."""
        return self.add("Cast", x, to=self._type(dtype))

    def clip(self, x: str, limit: float | None) -> str:
        """A value kept within plus and minus a limit, if there is one."""
        if limit is None:
            return x
        return self.add("Clip", x, self.constant(-limit, np.float32), self.constant(limit, np.float32))

    def stack(self, values: Sequence[str]) -> str:
        """Values of one shape, one after the other along a new first axis."""
        first = self.constant([0])
        return self.add("Concat", *(self.add("Unsqueeze", value, first) for value in values), axis=0)

    def rows_of(self, name: str, table_NP: Tensor, rows: str) -> str:
        """Rows of a large table, in the shape of their numbers: `(...)` to `(..., P)`."""
        if not self.int8:
            return self.add("Gather", self.weight(name, table_NP), rows)
        values, scales = quantise(table_NP, (len(table_NP), 1))
        integers = self.add("Gather", self.weight(name, values), rows)
        scale = self.add("Gather", self.weight(f"{name}.scale", scales), rows)
        return self.add("Mul", self.cast(integers, np.float32), scale)

    def product(self, name: str, x: str, weight_IO: Tensor, *, in_spans: bool = False) -> str:
        """`x @ weight`: `(..., I)` to `(..., O)`.

        In int8 each column of the weight has a scale, and so has each row of `x`, found when it is there. So a row
        depends on no other, as in float32; ONNX's own `DynamicQuantizeLinear` has one scale for a whole batch. With
        `in_spans` each span of a row has one, for values of which some are far larger than the rest: `(N, I)` alone.
        """
        if not self.int8:
            return self.add("MatMul", x, self.weight(name, weight_IO))
        values, scales = quantise(weight_IO, (1, weight_IO.shape[1]))
        in_spans = in_spans and len(weight_IO) > _SPAN
        if in_spans:
            x, values = self._spans(x, values)
        largest = self.add("ReduceMax", self.add("Abs", x), self.constant([-1]))
        largest = self.add("Max", largest, self.constant(_LEAST, np.float32))
        scale = self.add("Div", largest, self.constant(LARGEST, np.float32))
        steps = self.add("Round", self.add("Div", x, scale))
        unsigned = self.cast(self.add("Add", steps, self.constant(_ZERO_POINT, np.float32)), np.uint8)
        zero_point = self.constant(_ZERO_POINT, np.uint8)
        sums = self.add("MatMulInteger", unsigned, self.weight(name, values), zero_point)
        # One scale after the other: onnxruntime (1.31) takes a product of the two for that of two numbers, and fuses it
        # with the integers' product into an operator that has no scales of rows.
        by_row = self.add("Mul", self.cast(sums, np.float32), scale)
        if in_spans:
            by_row = self.add("ReduceSum", by_row, self.constant([0]), keepdims=0)
        return self.add("Mul", by_row, self.weight(f"{name}.scale", scales))

    def _spans(self, x_NI: str, values_IO: Tensor) -> tuple[str, Tensor]:
        """Both operands of a product as the sum of S: `(S, N, I / S)` and `(S, I / S, O)`."""
        width, outputs = values_IO.shape
        count = -(-width // _SPAN)
        missing = count * _SPAN - width
        if missing:
            x_NI = self.add("Pad", x_NI, self.constant([0, 0, 0, missing]))
            values_IO = torch.nn.functional.pad(values_IO, (0, 0, 0, missing))
        x_NSI = self.add("Reshape", x_NI, self.constant([0, count, _SPAN]))
        return self.add("Transpose", x_NSI, perm=[1, 0, 2]), values_IO.view(count, _SPAN, outputs)

    def linear(self, name: str, x: str, weight_OI: Tensor, bias_O: Tensor) -> str:
        """A linear layer in PyTorch's layout: `(..., I)` to `(..., O)`."""
        return self.add("Add", self.product(f"{name}.weight", x, weight_OI.T), self.weight(f"{name}.bias", bias_O))

    def described(self, name: str, dtype: type[np.generic], shape: Shape, about: str = "") -> Any:
        """An input or output as a graph declares it."""
        return self.onnx.helper.make_tensor_value_info(name, self._type(dtype), list(shape), doc_string=about)

    def finish(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """The graph, as ONNX writes it."""
        return self.onnx.helper.make_graph(self._nodes, name, list(inputs), list(outputs), self._weights)

    def _type(self, dtype: type[np.generic]) -> int:
        number: int = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return number
