"""This library in one precision: `ours_worker.py MODEL TEXT OUT COUNT ONE_BY_ONE PRECISION`."""

from __future__ import annotations

import sys
from typing import Any, cast

from measure import CHECK_ROWS, measure

import elmo
from elmo.engine import Precision

model = elmo.load(sys.argv[1])
precision = cast(Precision, sys.argv[6])


def embed(sentences: list[list[str]], rows: int) -> list[Any]:
    """The check with the state carried as the peers do, all else as a user would call it."""
    if rows == CHECK_ROWS:
        return list(model.embed(sentences, precision=precision, state="carry", batch_size=rows))
    return list(model.embed(sentences, precision=precision))


measure(f"elmo {precision}", embed, [2048])
