"""What a step says of itself, read while the next one is under way, so that the device never waits for the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from elmo.transfer import HostCopy


@dataclass(frozen=True)
class Late:
    """The outcome of a step that may still be under way."""

    step: int
    """Its number."""
    copy: HostCopy
    """What it says."""

    @classmethod
    def of(cls, step: int, values: Tensor) -> Self:
        """Begin to bring values, `(N,)`, to the host."""
        return cls(step, HostCopy(values))

    def wait(self) -> list[float]:
        """The values, once the device has them."""
        found: list[float] = self.copy.wait().tolist()
        return found
