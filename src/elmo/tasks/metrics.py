"""How good answers are, by the definitions of those who made the tasks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from elmo.errors import ElmoError


def accuracy(gold: Sequence[object], answers: Sequence[object]) -> float:
    """Share of the answers that are right."""
    if len(gold) != len(answers) or not gold:
        raise ElmoError(f"{len(answers)} answers to {len(gold)} questions: there must be one for each, and some")
    return sum(right == answer for right, answer in zip(gold, answers, strict=True)) / len(gold)


Span = tuple[str, int, int]
"""Kind, first token, and the token behind the last."""


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Spans of BIO tags, as `conlleval` finds them: an `I-` behind another kind, or behind `O`, begins a span."""
    spans: list[Span] = []
    begun: tuple[str, int] | None = None
    for place, tag in enumerate([*tags, "O"]):
        if begun is not None and (tag[:2] != "I-" or tag[2:] != begun[0]):
            spans.append((begun[0], begun[1], place))
            begun = None
        if begun is None and tag != "O":
            begun = (tag[2:], place)
    return spans


Argument = tuple[str, tuple[tuple[int, int], ...]]
"""Kind, and first token and the token behind the last of each of its pieces."""


def arguments_of(tags: Sequence[str]) -> list[Argument]:
    """Arguments of a predicate, as `srl-eval` of CoNLL 2005 counts them.

    A piece `C-KIND` goes on with the last `KIND` before it, and the whole is one argument; without one, it is a `KIND`
    itself. The predicate, `V` and what goes on with it, is given and does not count.
    """
    found: list[tuple[str, list[tuple[int, int]]]] = []
    last: dict[str, list[tuple[int, int]]] = {}
    for name, start, end in spans_of(tags):
        kind = name.removeprefix("C-")
        if name == kind or kind not in last:
            last[kind] = []
            found.append((kind, last[kind]))
        last[kind].append((start, end))
    return [(kind, tuple(pieces)) for kind, pieces in found if kind != "V"]


def span_scores(pairs: Iterable[tuple[Collection[Hashable], Collection[Hashable]]]) -> dict[str, float]:
    """`precision`, `recall` and `f1` of spans or arguments, gold and found, over all sentences; all must be exact."""
    gold, found, right = 0, 0, 0
    for expected, given in pairs:
        gold, found = gold + len(expected), found + len(given)
        right += len(set(expected) & set(given))
    return f_scores(right, found, gold)


def f_scores(right: float, found: float, gold: float) -> dict[str, float]:
    """`precision`, `recall` and `f1` of so many right ones among those found and those there are."""
    precision, recall = right / found if found else 0.0, right / gold if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


@dataclass(frozen=True)
class SenseScore:
    """Word senses as the framework of Raganato et al. 2017 scores them."""

    correct: int
    answered: int
    """Instances with an answer; a system may leave some out."""
    total: int

    @property
    def precision(self) -> float:
        """Of the answers, how many are right."""
        return self.correct / self.answered if self.answered else 0.0

    @property
    def recall(self) -> float:
        """Of the instances, how many were answered right."""
        return self.correct / self.total if self.total else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of the two; the accuracy where all is answered."""
        both = self.answered + self.total
        return 2 * self.correct / both if both else 0.0

    def __add__(self, other: SenseScore) -> SenseScore:
        """Of two test sets put together."""
        return SenseScore(self.correct + other.correct, self.answered + other.answered, self.total + other.total)


def sense_score(gold: Iterable[Collection[str]], answers: Iterable[str | None]) -> SenseScore:
    """Score answers, None where there is none; each is right if it is any of the senses that the gold standard has."""
    pairs = list(zip(gold, answers, strict=True))
    answered = [(keys, answer) for keys, answer in pairs if answer is not None]
    return SenseScore(sum(answer in keys for keys, answer in answered), len(answered), len(pairs))
