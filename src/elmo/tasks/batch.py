"""What a task's model is given: numbers of some examples, made on the host, moved to the device in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from elmo.transfer import to_device


@dataclass(frozen=True)
class Batch:
    """Tensors by name; a subclass says which. A field may be a batch itself, or None."""

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return replace(self, **{f.name: _moved(getattr(self, f.name), device) for f in fields(self)})


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return to_device(value, device)
    return value.to(device) if isinstance(value, Batch) else value


def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
    """Rows of numbers as one tensor, `(B, longest)` int64."""
    longest = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=torch.long).view(
        len(rows), longest
    )
