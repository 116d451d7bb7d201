from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.word_cache import WordCache


@given(st.lists(st.lists(st.integers(0, 30), unique=True, max_size=12), max_size=20), st.integers(1, 8))
@settings(max_examples=50)
def test_it_keeps_the_words_met_last(asked: list[list[int]], capacity: int) -> None:
    cache = WordCache(capacity, lambda words: torch.zeros(len(words), 1))
    kept: OrderedDict[str, None] = OrderedDict()
    hits = 0
    for numbers in asked:
        words = [str(n) for n in numbers]
        known = [word for word in words if word in kept]
        new = [word for word in words if word not in kept]
        hits += len(known)
        for word in known:
            kept.move_to_end(word)
        for word in new:
            kept[word] = None
            if len(kept) > capacity:
                kept.popitem(last=False)
        cache.vectors(words)
        assert cache._slots.keys() == kept.keys()
        assert cache.hits == hits


@given(st.lists(st.lists(st.integers(0, 30), unique=True, max_size=12), max_size=20), st.integers(1, 8))
@settings(max_examples=50)
def test_vectors_are_those_of_the_words_however_small_it_is(asked: list[list[int]], capacity: int) -> None:
    cache = WordCache(capacity, lambda words: torch.tensor([float(word) for word in words])[:, None])
    for numbers in asked:
        if numbers:
            assert cache.vectors([str(n) for n in numbers])[0].flatten().tolist() == numbers
        assert len(cache._slots) <= capacity


def test_a_word_met_again_is_not_encoded_again() -> None:
    encoded: list[str] = []

    def encode(words: list[str]) -> torch.Tensor:
        encoded.extend(words)
        return torch.zeros(len(words), 2)

    cache = WordCache(2, encode)
    cache.vectors(["a", "b"])
    cache.vectors(["a"])
    cache.vectors(["c"])  # takes the place of b, which was met longest ago
    cache.vectors(["a", "c"])
    assert encoded == ["a", "b", "c"]
    assert (cache.hits, cache.misses) == (3, 3)


def test_words_whose_vectors_were_not_stored_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = WordCache(2, lambda words: torch.tensor([float(word) for word in words])[:, None])
    cache.vectors(["1", "2"])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.Tensor, "index_copy_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache._store(["3"], torch.tensor([[3.0]]))
    monkeypatch.undo()
    for words in (["1", "2"], ["3", "4"], ["1", "3"]):
        assert cache.vectors(words)[0].flatten().tolist() == [float(word) for word in words]
