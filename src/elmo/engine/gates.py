"""The gates of an LSTM step: compiled into one pass where the package was built with a compiler, else in PyTorch.

Shapes: B rows, D cells, G = 4 * D gates in the order i, j, f, o; j comes doubled and f with its bias.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("_gates.so")

_FEW_THREADS = 3  # up to so many, one compiled pass on one of them is faster than PyTorch's passes on all


Gates = Callable[[Tensor, Tensor, Tensor, float | None], Tensor]
"""One step: from `z + x (B, G)`, the cells `(B, D)`, changed in place, and their clip, the output `(B, D)`."""


def fastest() -> Gates:
    """The twin that is faster on the threads that the caller has."""
    return gates_in_torch if compiled() is None or torch.get_num_threads() > _FEW_THREADS else gates_compiled


def gates_in_torch(z_BG: Tensor, x_BG: Tensor, c_BD: Tensor, clip: float | None) -> Tensor:
    """The plain twin: `tanh(j) = 2 sigmoid(2 j) - 1` makes one sigmoid of the four gates."""
    i, j, f, o = (z_BG.float() + x_BG).sigmoid_().chunk(4, dim=1)
    c_BD.mul_(f).addcmul_(i, j, value=2).sub_(i)
    if clip is not None:
        c_BD.clamp_(-clip, clip)
    return torch.tanh(c_BD).mul_(o).to(z_BG.dtype)


def gates_compiled(z_BG: Tensor, x_BG: Tensor, c_BD: Tensor, clip: float | None) -> Tensor:
    """The compiled twin."""
    library = compiled()
    assert z_BG.is_contiguous()
    assert x_BG.is_contiguous()
    assert c_BD.is_contiguous()
    h_BD = torch.empty(c_BD.shape, dtype=z_BG.dtype)
    run = library.elmo_gates_bf16 if z_BG.dtype == torch.bfloat16 else library.elmo_gates_f32
    pointers = (z_BG.data_ptr(), x_BG.data_ptr(), c_BD.data_ptr(), h_BD.data_ptr())
    run(*pointers, *c_BD.shape, float("inf") if clip is None else clip)
    return h_BD


@cache
def compiled() -> Any:
    """The library that the package was built with, or None."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    for run in (library.elmo_gates_f32, library.elmo_gates_bf16):
        run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2 + [ctypes.c_float]
        run.restype = None
    return library
