"""How well a language model begins: the perplexity of the words that each direction reads first in a sentence.

What a sentence's start state is worth shows there, where it is all that the model knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elmo.errors import ElmoError
from elmo.lm.perplexity import perplexity_of
from elmo.lm.scores import Scores


@dataclass(frozen=True)
class Openings:
    """What the first words of sentences cost."""

    predictions: int
    """Of each direction."""
    forward_loss: float
    """Mean of `-ln p` of the first words, read forward."""
    backward_loss: float
    """Mean of `-ln p` of the last words, which are the first that the backward direction reads."""

    @property
    def perplexity(self) -> float:
        """`exp` of the mean of the two losses."""
        return perplexity_of(0.5 * (self.forward_loss + self.backward_loss))


def openings(scores: Iterable[Scores], words: int = 3) -> Openings:
    """Add up the first `words` predictions of each direction; a shorter sentence has fewer, and boundaries are none."""
    predictions, forward, backward = 0, 0.0, 0.0
    for one in scores:
        n = len(one.tokens)
        count = min(words, n)
        predictions += count
        forward -= float(one.forward[:count].sum(dtype="float64"))
        backward -= float(one.backward[n - count : n].sum(dtype="float64"))
    if predictions == 0:
        raise ElmoError("the text has no word in it, so it has no perplexity")
    return Openings(predictions, forward / predictions, backward / predictions)
