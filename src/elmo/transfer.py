"""Between the host and a device, without either waiting for the other before it must."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Values on a device; to a GPU they may still be under way, for work that is given to the GPU after them."""
    tensor = torch.as_tensor(values)
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """A copy of a tensor in the host's memory: from a GPU it is under way until it is waited for."""

    def __init__(self, tensor: Tensor) -> None:
        """Begin to copy."""
        self._done: torch.cuda.Event | None = None
        if not tensor.is_cuda:
            self._host = tensor.to("cpu", copy=True)
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # of PyTorch
        self._done.record(torch.cuda.current_stream(tensor.device))  # not the current device's, which may be another

    def wait(self) -> Tensor:
        """What was copied, once it is there."""
        if self._done is not None:
            self._done.synchronize()
        return self._host
