"""Metrics against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from elmo.errors import ElmoError
from elmo.lm.scores import Scores
from elmo.tasks.metrics import SenseScore, accuracy, sense_score
from elmo.tasks.openings import openings


def test_accuracy_is_the_share_of_right_answers() -> None:
    assert accuracy(["a", "b", "a", "c"], ["a", "b", "b", "c"]) == 0.75


@pytest.mark.parametrize(("gold", "answers"), [(["a"], []), ([], [])])
def test_answers_must_fit_the_questions(gold: list[str], answers: list[str]) -> None:
    with pytest.raises(ElmoError, match="there must be one for each, and some"):
        accuracy(gold, answers)


def test_a_sense_is_right_if_it_is_any_of_the_gold_standards_and_silence_costs_recall() -> None:
    score = sense_score([("x", "y"), ("z",), ("w",), ("v",)], ["y", "x", None, "v"])
    assert score == SenseScore(correct=2, answered=3, total=4)
    assert score.precision == pytest.approx(2 / 3)
    assert score.recall == 0.5
    assert score.f1 == pytest.approx(2 * (2 / 3) * 0.5 / (2 / 3 + 0.5))


def test_sets_put_together_are_scored_by_instances_not_by_sets() -> None:
    assert (SenseScore(1, 1, 1) + SenseScore(0, 3, 3)).f1 == 0.25


def test_nothing_asked_is_nothing_right() -> None:
    score = sense_score([], [])
    assert (score.precision, score.recall, score.f1) == (0, 0, 0)


def test_the_first_words_of_each_direction_are_what_it_reads_first() -> None:
    long = Scores(
        ("a", "b", "c", "d"),
        np.array([-1, -2, -4, -8, -16], np.float32),
        np.array([-1, -2, -4, -8, -16], np.float32),
        np.zeros(4, np.bool_),
    )
    short = Scores(("a",), np.array([-3, -50], np.float32), np.array([-5, -50], np.float32), np.zeros(1, np.bool_))
    found = openings([long, short], words=2)
    assert found.predictions == 3
    assert found.forward_loss == pytest.approx((1 + 2 + 3) / 3)
    assert found.backward_loss == pytest.approx((8 + 4 + 5) / 3)
    assert found.perplexity == pytest.approx(np.exp((6 / 3 + 17 / 3) / 2))


def test_no_word_has_no_perplexity() -> None:
    with pytest.raises(ElmoError, match="no word"):
        openings([])
