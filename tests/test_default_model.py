"""The model that comes with the package: small enough to ship, good enough to use."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import elmo
from elmo.embed import Vectors


@pytest.fixture(scope="module")
def model() -> elmo.Model:
    return elmo.load()


def vectors_of(model: elmo.Model, word: str, sentences: list[str], layer: int) -> Vectors:
    embedded = model.embed(sentences, layers=layer)
    found = np.stack(
        [vectors[sentence.split().index(word)] for vectors, sentence in zip(embedded, sentences, strict=True)]
    )
    unit: Vectors = found / np.linalg.norm(found, axis=-1, keepdims=True)
    return unit


def test_it_is_as_large_as_agreed(model: elmo.Model) -> None:
    with resources.as_file(resources.files("elmo") / "models" / "default") as folder:
        sizes = [path.stat().st_size for path in Path(folder).iterdir()]
    assert sum(sizes) <= 60e6
    assert max(sizes) < 50e6
    assert sum(weight.numel() for weight in model.bilm.parameters()) >= 14e6


def test_it_has_all_that_a_model_can_have(model: elmo.Model) -> None:
    assert model.head is not None
    assert model.vocab is not None
    assert model.warm is not None
    assert model.card is not None
    for source in ("Wikipedia", "Gutenberg", "eLife", "OpenStax", "MASC", "CC BY-SA", "public domain"):
        assert source in model.card


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize(
    ("word", "ones", "others"),
    [
        (
            "bank",
            ["She sat on the bank of the river .", "They swam to the other bank of the river ."],
            ["The bank raised its interest rates again .", "The bank lent him the money for the house ."],
        ),
        (
            "spring",
            ["In the spring of 1939 she moved to Paris .", "Birds come back in spring and leave in autumn ."],
            ["The spring in the lock was broken .", "A metal spring pushes the lever back ."],
        ),
        (
            "match",
            ["The team lost its last match by two goals .", "They won the match in the second half ."],
            ["The name must match the one in the list .", "These values do not match the old ones ."],
        ),
    ],
)
def test_it_tells_senses_apart(model: elmo.Model, word: str, ones: list[str], others: list[str], layer: int) -> None:
    first, second, third, fourth = vectors_of(model, word, ones + others, layer)
    within = min(first @ second, third @ fourth)
    between = max(one @ other for one in (first, second) for other in (third, fourth))
    assert within > between


def test_words_in_their_order_are_likelier_than_the_same_words_in_another(model: elmo.Model) -> None:
    sentence = ["The", "old", "man", "walked", "slowly", "down", "the", "street", "."]
    ordered, mixed = (
        scores.forward.sum() + scores.backward.sum() for scores in model.score([sentence, sentence[::-1]])
    )
    assert ordered > mixed + 20


def test_it_knows_english(model: elmo.Model) -> None:
    found = model.perplexity(["In the morning they went back to the village ."], state="zero")
    assert found.perplexity < 60
    assert math.isfinite(found.perplexity)
    best = [substitute.word for substitute in model.substitutes("She was born in London in the year 1850 .", 4, 10)]
    assert any(city in best for city in ("Paris", "London", "Boston", "Edinburgh", "Dublin", "England"))
