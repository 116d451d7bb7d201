"""How good answers are, by the definitions of those who made the tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from elmo.errors import ElmoError


def accuracy(gold: Sequence[object], answers: Sequence[object]) -> float:
    """Share of the answers that are right."""
    if len(gold) != len(answers) or not gold:
        raise ElmoError(f"{len(answers)} answers to {len(gold)} questions: there must be one for each, and some")
    return sum(right == answer for right, answer in zip(gold, answers, strict=True)) / len(gold)


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
