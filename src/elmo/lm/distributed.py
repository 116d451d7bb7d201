"""Several processes, one training run: each reads its own rows of the batch, and gradients are averaged.

The processes are started by `torchrun` (docs/scaling.md). Every rank draws the same samples of the softmax and takes
the same rows out of the head, the samples' and all ranks' targets', so the table's gradient is a small dense tensor and
one all-reduce serves it like any other. That is why this is no `DistributedDataParallel`: it would send the whole
table, or sparse tensors, which NCCL does not reduce.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous

from elmo.errors import ElmoError
from elmo.model import State
from elmo.transfer import usable_device

_BUCKET = 2**24  # numbers sent at a time: 64 MB; a bucket is a copy, so it must not be of the model's size
_PATIENCE = timedelta(minutes=10)  # a rank that validates or saves lets the others wait


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def rows(self, number: int) -> tuple[int, int]:
        """The first of this rank's rows out of `number`, and the one behind its last."""
        if number % self.size:
            raise ElmoError(
                f"data.rows is {number}: it cannot be divided among {self.size} processes; give a multiple of them"
            )
        share = number // self.size
        return self.rank * share, (self.rank + 1) * share

    @torch.no_grad()
    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the ranks."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            dist.all_reduce(flat)
            pieces = torch.split(flat.div_(self.size), [tensor.numel() for tensor in bucket])
            for tensor, piece in zip(bucket, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """What every rank has, in their order; all have the same shape."""
        if self.size == 1:
            return [tensor]
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(gathered, tensor.contiguous())
        return gathered

    def gather_state(self, state: State) -> State:
        """The rows of all ranks."""
        return State(torch.cat(self.gather(state.m), dim=2), torch.cat(self.gather(state.c), dim=2))


@contextmanager
def ranks(device: str | None = None) -> Iterator[Ranks]:
    """Take part in the run that `torchrun` started, or be alone; gloo between CPUs, NCCL between GPUs."""
    if "WORLD_SIZE" not in os.environ:
        yield Ranks(device=usable_device(device))
        return
    wanted = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda":
        wanted = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(wanted)
    store, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
    # torchrun restarts ranks on the same store, where the addresses of those that died still are (PyTorch 2.13).
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    attempt = dist.PrefixStore(f"attempt-{count}", store)  # type: ignore[attr-defined]  # it is there, if not in __all__
    backend = "nccl" if wanted.startswith("cuda") else "gloo"
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=size, timeout=_PATIENCE)
    yield Ranks(rank, size, torch.device(wanted))
    # Not after an error: NCCL would wait for the others, who wait for this one, and its message would never come.
    dist.destroy_process_group()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(one.numel() for one in bucket) + tensor.numel() > _BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
