"""What products allow on this machine at the original size: how many words a second, were all else for nothing.

A word takes 75.5 M multiply-adds in the LSTMs. Of these 16.8 M are the first layer's inputs, which an engine may make
once for a word that comes again: words a second in large batches can lie above what all products allow, but never
above what is left without these.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from elmo.engine import compiled
from elmo.engine.precision import Precision

MACS_A_WORD = 4 * (2 * 512 * 16384 + 4096 * 512)  # two layers, two directions
MACS_OF_FIRST_INPUTS = 2 * 512 * 16384


def best(run: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of a few times, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def products(precision: Precision) -> tuple[float, str]:
    """The most multiply-adds a second that a large product reaches here, and whose: PyTorch's, or ours if faster."""
    rows, inner, columns = 1536, 2048, 4096
    x, weight = torch.randn(rows, inner), torch.randn(inner, columns)
    ours = compiled.Linear(weight, None, precision)
    found = {"ours": best(lambda: ours(x))}
    if precision == "int8":
        a, b = torch.randint(-99, 99, (rows, inner)).to(torch.int8), torch.randint(-99, 99, (inner, columns))
        b8 = b.to(torch.int8)
        found["PyTorch's"] = best(lambda: torch._int_mm(a, b8), 2)
    else:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        a, b = x.to(dtype), weight.to(dtype)
        found["PyTorch's"] = best(lambda: a @ b)
    name = min(found, key=lambda key: found[key])
    return rows * inner * columns / found[name], name
