"""A few thousand open sentences that the embedded model has not read: something to look at before one has text.

`held_out.tsv.xz` beside this file has a source, a tab and the tokens on each line; `held_out.md` says where they are
from and under which licences. `scripts/explorer_sample.py` makes it again.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

WORDS = (
    "bank", "play", "spring", "right", "match", "plant", "bear", "light", "fall", "rock", "run", "mean", "march",
    "left", "second", "close", "charge", "star", "lead", "present", "arms",
)  # fmt: skip
"""Words of several senses, which the sample has often."""


@dataclass(frozen=True)
class Sourced:
    """A sentence, and where it is from."""

    source: str
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Use:
    """A token in its sentence."""

    source: str
    tokens: tuple[str, ...]
    position: int
    """Which token, from 0."""


@cache
def held_out() -> tuple[Sourced, ...]:
    """The sample that comes with the package."""
    packed = (resources.files("elmo") / "explore" / "held_out.tsv.xz").read_bytes()
    lines = (line.split("\t") for line in lzma.decompress(packed).decode("utf-8").splitlines())
    return tuple(Sourced(source, tuple(tokens.split(" "))) for source, tokens in lines)


def uses_of(word: str, sentences: Sequence[Sourced]) -> list[Use]:
    """Where a word stands, in whatever case: the first place in each sentence that has it."""
    wanted = word.casefold()
    found = []
    for sentence in sentences:
        folded = [token.casefold() for token in sentence.tokens]
        if wanted in folded:
            found.append(Use(sentence.source, sentence.tokens, folded.index(wanted)))
    return found


def spread(uses: Sequence[Use], limit: int) -> list[Use]:
    """At most `limit` of the uses, evenly spread over the text."""
    step = max(1.0, len(uses) / max(limit, 1))
    return [uses[int(i * step)] for i in range(min(limit, len(uses)))]
