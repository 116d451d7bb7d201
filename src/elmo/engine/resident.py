"""Launches `resident.cu`: a layer over few rows with its weights on the chip, compiled on first use by NVRTC."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROWS = 32
"""At most, in a launch."""

_WARPS, _OUTPUTS, _CELLS = 16, 8, 64
_HOPPER = 9  # its compute capability
_SHARED = 227 * 1024  # bytes that a block has of it there
_TILE = 512 * _WARPS  # bytes of it that a tile of 16 inputs of a block's recurrent weights takes
_COOPERATIVE_ERROR = "the GPU did not take a launch of all blocks at once (CUDA error {})"


def fits(projection: int, cells: int, device: torch.device) -> bool:
    """Whether a layer of this size can be held on the chip: the sizes of the published models can, on a Hopper."""
    if device.type != "cuda" or not hasattr(torch.cuda, "_compile_kernel"):  # since PyTorch 2.9
        return False
    properties = torch.cuda.get_device_properties(device)
    blocks = 2 * projection // _OUTPUTS
    return (
        properties.major == _HOPPER
        and cells == _CELLS * projection // _OUTPUTS
        and projection in (128, 256, 512)
        and blocks <= properties.multi_processor_count
    )


class ResidentLSTM:
    """A layer, both directions, made ready for launches."""

    def __init__(self, recurrent_2PG: Tensor, projection_2DP: Tensor) -> None:
        """Put the weights into the order of the tensor cores' fragments; gates in the order i, j, f, o."""
        _, self._projection, gates = recurrent_2PG.shape
        self._device = recurrent_2PG.device.index or 0
        _kernel(self._projection, 1, self._device)  # if it cannot be compiled, that shows at once
        rows, columns = gate_places(self._projection, gates // 4)
        self._recurrent = recurrent_2PG[:, _on(rows, recurrent_2PG), _on(columns, recurrent_2PG)].bfloat16()
        rows, columns = projection_places(self._projection, gates // 4)
        self._outward = projection_2DP[:, _on(rows, projection_2DP), _on(columns, projection_2DP)].bfloat16()

    def __call__(self, *tensors: Tensor | None, rows: int, cell_clip: float | None, proj_clip: float | None) -> None:
        """Run over steps of at most `rows` rows: the tensors are those of `resident.cu` from `bias` to `counters`."""
        _, z, _, m, _, y, *_ = tensors
        assert z is not None
        assert m is not None
        assert y is not None
        _kernel(self._projection, eights(rows), self._device)(
            [self._recurrent, self._outward, *tensors],
            [y.shape[1], z.shape[1], m.shape[1]],
            [cell_clip or 0.0, proj_clip or 0.0],
        )


def eights(rows: int) -> int:
    """How many times 8 rows the kernel for so many rows has: 1, 2 or 4."""
    return 1 << (-(-rows // 8) - 1).bit_length()


def _on(places: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    return torch.from_numpy(places).to(like.device)


def gate_places(projection: int, cells: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Row and column in `(P, 4 * D)` of each recurrent weight: `[block][tile][warp][lane][register][pair]`."""
    blocks = projection // _OUTPUTS
    block, tile, warp, lane, register, pair = np.ogrid[:blocks, : projection // 16, :_WARPS, :32, :4, :2]
    row = lane // 4 + 8 * (register % 2)  # of the fragment
    cell = block * _CELLS + warp * 4 + row % 8 // 2
    gate = 2 * (row // 8) + row % 2
    return np.broadcast_arrays(_input(tile, lane, register // 2, pair), gate * cells + cell)  # type: ignore[return-value]


def projection_places(projection: int, cells: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Row and column in `(D, P)` of each weight of the projection: `[block][warp][tile][lane][register][pair]`."""
    blocks, tiles = projection // _OUTPUTS, cells // (16 * _WARPS)
    block, warp, tile, lane, register, pair = np.ogrid[:blocks, :_WARPS, :tiles, :32, :2, :2]
    rows = warp * (cells // _WARPS) + _input(tile, lane, register, pair)
    return np.broadcast_arrays(rows, block * _OUTPUTS + lane // 4)  # type: ignore[return-value]


def _input(tile: Any, lane: Any, half: Any, pair: Any) -> Any:
    """Which input a tile's value is: the eight that a thread has of two tiles lie together."""
    return 32 * (tile // 2) + 8 * (lane % 4) + 4 * (tile % 2) + 2 * half + pair


def source(projection: int, n_eights: int) -> tuple[str, int]:
    """The kernel for a size, and how many bytes of shared memory it takes."""
    tiles, rows = projection // 16, 8 * n_eights
    exchange = rows * (2 * projection + 64) + _WARPS * rows * _OUTPUTS * 4
    in_shared = min(tiles, (_SHARED - exchange) // _TILE)
    defines = {
        "P": projection,
        "D": 8 * projection,
        "BLOCKS": projection // _OUTPUTS,
        "IN_REGISTERS": tiles - in_shared,
        "EIGHTS": n_eights,
    }
    text = resources.files("elmo.engine").joinpath("resident.cu").read_text(encoding="utf-8")
    return "".join(f"#define {name} {value}\n" for name, value in defines.items()) + text, in_shared * _TILE + exchange


@cache
def _kernel(projection: int, n_eights: int, device: int) -> Any:
    """The kernel for a size, as a function of tensors, whole numbers and numbers."""
    text, shared = source(projection, n_eights)
    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel(text, "resident_lstm")
        kernel.set_shared_memory_config(shared)
    library = ctypes.CDLL("libcuda.so.1")

    def launch(tensors: list[Tensor | None], numbers: list[int], clips: list[float]) -> None:
        values = [
            *(ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors),
            *map(ctypes.c_int, numbers),
            *map(ctypes.c_float, clips),
        ]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
        error = library.cuLaunchCooperativeKernel(
            kernel.func, 2 * projection // 8, 1, 1, 32 * _WARPS, 1, 1, shared, stream, arguments
        )
        if error:
            raise RuntimeError(_COOPERATIVE_ERROR.format(error))

    return launch
