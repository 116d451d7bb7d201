"""Whether Triton's kernels can be had: what else needs them imports them only then."""

from __future__ import annotations

import importlib.util

import torch

_OLDEST_GPU = (8, 0)  # compute capability
_LEAST_SIZE = 64  # of a cell or a projection that the LSTM's kernels know; they must be powers of 2, too


def has_triton() -> bool:
    """Whether there is what compiles kernels for a GPU, and no GPU that is too old for it."""
    there = importlib.util.find_spec("triton") is not None
    return there and not (torch.cuda.is_available() and torch.cuda.get_device_capability() < _OLDEST_GPU)


def has_lstm_kernels(device: torch.device, cells: int, projection: int) -> bool:
    """Whether `triton_lstm.py` runs on a device and knows an LSTM of this size."""
    powers = all(size >= _LEAST_SIZE and size & (size - 1) == 0 for size in (cells, projection))
    return device.type == "cuda" and powers and has_triton()
