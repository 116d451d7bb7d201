"""Devices, and what goes between them and the host, without either waiting for the other before it must."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.errors import ElmoError


def usable_device(device: str | torch.device | None = None) -> torch.device:
    """A device that can be computed on; the GPU, where there is one, if none is named.

    Raises:
        ElmoError: it is not here, or, such as "meta", only a name.
    """
    try:
        found = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError, TypeError) as error:  # torch's own words for a device that it does not have
        raise ElmoError(f"device is {str(device)!r}, which cannot be used here: {error}") from error
    return found


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
