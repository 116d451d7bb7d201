"""What a loss is as a perplexity."""

from __future__ import annotations

import math


def perplexity_of(loss: float) -> float:
    """`exp` of a mean `-ln p`; infinite where it would overflow: a model may be out of its depth, and say so."""
    return math.inf if loss >= 700 else math.exp(loss)
