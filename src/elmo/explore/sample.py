"""A few thousand open sentences that the embedded model has not read: something to look at before one has text.

`held_out.tsv.xz` beside this file has a source, a tab and the tokens on each line; `held_out.md` says where they are
from and under which licences. `scripts/explorer_sample.py` makes both again.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

WORDS = (
    "play", "bank", "spring", "right", "match", "plant", "bear", "light", "fall", "rock", "run", "mean", "march", "left",
    "second", "close", "charge", "star", "lead", "present", "arms",
)  # fmt: skip
"""Words of several senses, which the sample has often."""


@dataclass(frozen=True)
class Place:
    """A token of a text."""

    sentence: int
    """Which sentence, from 0."""
    position: int
    """Which token of it, from 0."""


@dataclass(frozen=True)
class Sample:
    """Sentences with their sources."""

    sentences: Sequence[tuple[str, ...]]
    sources: Sequence[str]
    """One a sentence."""


@cache
def held_out() -> Sample:
    """The sample that comes with the package."""
    packed = (resources.files("elmo") / "explore" / "held_out.tsv.xz").read_bytes()
    lines = [line.split("\t") for line in lzma.decompress(packed).decode("utf-8").splitlines()]
    return Sample([tuple(tokens.split(" ")) for _, tokens in lines], [source for source, _ in lines])


def occurrences(sentences: Sequence[Sequence[str]], word: str, limit: int) -> list[Place]:
    """Where a word stands, in whatever case, once a sentence; of more than `limit`, as many, evenly spread.

    Args:
        sentences: the text, as tokens.
        word: a whole token.
        limit: the most that are wanted.
    """
    wanted = word.casefold()
    found = [
        Place(number, next(i for i, token in enumerate(sentence) if token.casefold() == wanted))
        for number, sentence in enumerate(sentences)
        if any(token.casefold() == wanted for token in sentence)
    ]
    step = max(1.0, len(found) / limit)
    return [found[int(i * step)] for i in range(min(limit, len(found)))]
