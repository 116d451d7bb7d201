"""Answers to questions, scored as SQuAD 1.1 defines it (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from elmo.errors import ElmoError

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> list[str]:
    """The words of an answer that count: in lower case, without ASCII punctuation, without articles."""
    return _ARTICLE.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def exact_match(gold: str, answer: str) -> float:
    """1 if both are the same words, else 0."""
    return float(normalised(gold) == normalised(answer))


def word_f1(gold: str, answer: str) -> float:
    """Harmonic mean of the shares of words that both have, each as often as it comes; 0 where they share none."""
    expected, given = normalised(gold), normalised(answer)
    same = (Counter(expected) & Counter(given)).total()
    return 2 * same / (len(expected) + len(given)) if same else 0.0


def question_scores(golds: Sequence[Sequence[str]], answers: Sequence[str]) -> dict[str, float]:
    """`em` and `f1`, the mean over the questions of the best over a question's gold answers."""
    if len(golds) != len(answers) or not answers or not all(golds):
        raise ElmoError(
            f"{len(answers)} answers to {len(golds)} questions: there must be one for each, and gold ones to compare"
        )
    pairs = list(zip(golds, answers, strict=True))
    return {
        name: sum(max(score(gold, answer) for gold in some) for some, answer in pairs) / len(pairs)
        for name, score in (("em", exact_match), ("f1", word_f1))
    }
