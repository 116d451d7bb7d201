"""What each worker does, in its own environment: embed for a check, then for speed, and print JSON.

Only the standard library and numpy: it runs under the peers' old Pythons too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

CHECKED = 32  # sentences, embedded in batches of CHECK_ROWS with the state carried, as the peers do
CHECK_ROWS = 8

Embed = Callable[[list[list[str]], int], Sequence[Any]]


def measure(name: str, embed: Embed, batch_sizes: list[int]) -> None:
    """Measure one implementation.

    Args:
        name: what to call it.
        embed: from sentences and a batch size to an array a sentence, `(tokens, dim)` or padded behind.
        batch_sizes: to choose the best of.
    """
    text, out, count, one_by_one = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    sentences = [line.split() for line in Path(text).read_text(encoding="utf-8").splitlines()][:count]
    check = embed(sentences[:CHECKED], CHECK_ROWS)
    np.savez(out, *[np.asarray(v)[: len(s)] for v, s in zip(check, sentences[:CHECKED], strict=True)])
    sample = sentences[: max(CHECKED, min(200, count // 5))]
    speeds = {size: words(sample) / seconds(partial(embed, sample, size)) for size in batch_sizes}
    best = max(speeds, key=lambda size: speeds[size])
    whole = words(sentences) / seconds(partial(embed, sentences, best))
    times = [seconds(partial(embed, [s], 1)) for s in sentences[:one_by_one]]
    print(
        json.dumps(
            {
                "name": name,
                "batch": best,
                "words_per_second": whole,
                "one_at_a_time": words(sentences[:one_by_one]) / sum(times),
                "median_ms": 1000 * float(np.median(times)),
                "p95_ms": 1000 * float(np.percentile(times, 95)),
                "memory_mb": peak_mb(),
            }
        )
    )


def peak_mb() -> float:
    """The most memory that this process has had; getrusage would begin with what its parent had."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def words(sentences: list[list[str]]) -> int:
    """Number of words."""
    return sum(map(len, sentences))


def seconds(run: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
