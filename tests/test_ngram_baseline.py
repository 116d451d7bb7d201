"""scripts/ngram_baseline.py: which held-out sentences repeat the training text."""

from __future__ import annotations

import importlib.util
import sys
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).parents[1] / "scripts" / "ngram_baseline.py"
Sentences = list[list[int]]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ngram_baseline", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look it up
    spec.loader.exec_module(module)
    return module


def corpus(*shards: Sentences) -> Any:
    """As much of a corpus as is asked for: ten words, some shards of sentences."""
    made = [
        SimpleNamespace(tokens=np.array([*chain(*one)], np.int32), starts=np.cumsum([0, *map(len, one)]))
        for one in shards
    ]
    return SimpleNamespace(
        targets=lambda: np.arange(10, dtype=np.int32), split=lambda name: SimpleNamespace(shards=made)
    )


def fresh(script: ModuleType, train: Any, sentences: Sentences, n: int) -> list[bool]:
    found: list[bool] = script.shares_nothing(train, [np.array(one, np.int32) for one in sentences], n).tolist()
    return found


def runs(sentence: list[int], n: int) -> set[tuple[int, ...]]:
    return {tuple(sentence[place : place + n]) for place in range(len(sentence) - n + 1)}


def test_a_sentence_that_repeats_n_words_in_a_row_is_not_new(script: ModuleType) -> None:
    train = corpus([[1, 2, 3, 4], [5, 6]], [[7, 8, 9]])
    asked = [[9, 2, 3, 4], [4, 5, 6], [3, 4, 5], [8, 9, 7], [0, 7, 8, 9, 0], [1, 2]]
    # Neither a run over the end of a training sentence nor one that is too short is a repeat.
    assert fresh(script, train, asked, 3) == [False, True, True, True, False, True]


words = st.lists(st.integers(0, 3), min_size=1, max_size=9)
texts = st.lists(words, min_size=1, max_size=6)


@given(st.lists(texts, min_size=1, max_size=3), texts, st.integers(1, 4))
def test_it_is_what_a_search_would_find(script: ModuleType, shards: list[Sentences], asked: Sentences, n: int) -> None:
    known = {run for shard in shards for sentence in shard for run in runs(sentence, n)}
    assert fresh(script, corpus(*shards), asked, n) == [not runs(sentence, n) & known for sentence in asked]
