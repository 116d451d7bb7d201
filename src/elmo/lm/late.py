"""What a step says of itself, read while the next one is under way, so that the device never waits for the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Late:
    """The outcome of a step that may still be under way."""

    step: int
    """Its number."""
    values: Tensor
    """What it says, on the host."""
    done: torch.cuda.Event | None
    """After which it is there; None where it is."""

    @classmethod
    def of(cls, step: int, values: Tensor) -> Self:
        """Begin to bring values, `(N,)`, to the host."""
        if values.device.type != "cuda":
            return cls(step, values.to("cpu", copy=True), None)
        found = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        found.copy_(values, non_blocking=True)
        done: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(values.device))  # not the current device's, which may be another
        return cls(step, found, done)

    def wait(self) -> list[float]:
        """The values, once the device has them."""
        if self.done is not None:
            self.done.synchronize()
        found: list[float] = self.values.tolist()
        return found
