"""The network against an independent one in float64, over drawn shapes and texts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import elmo
from conftest import write_model
from reference64 import Reference

WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "sat", "é", "日本"]


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """A model of any published kind: with and without characters, highways, projection, clips, skip connections."""
    width = draw(st.integers(1, 6))
    clip = st.one_of(st.none(), st.floats(0.1, 3))
    result: dict[str, Any] = {
        "lstm": {
            "projection_dim": width,
            "dim": draw(st.sampled_from([width, width + 1, 3 * width])),
            "n_layers": draw(st.integers(1, 3)),
            "cell_clip": draw(clip),
            "proj_clip": draw(clip),
            "use_skip_connections": draw(st.booleans()),
        }
    }
    if draw(st.integers(0, 4)) == 0:
        return result | {"n_tokens_vocab": len(WORDS)}
    length = draw(st.integers(6, 50))
    filters = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=4))
    if draw(st.booleans()):  # as many filters as the projection: then there is none after them
        filters = [(1, width)]
    cnn = {
        "embedding": {"dim": draw(st.integers(1, 5))},
        "filters": [list(pair) for pair in filters],
        "n_characters": draw(st.sampled_from([261, 262])),
        "max_characters_per_token": length,
        "activation": draw(st.sampled_from(["relu", "tanh"])),
    }
    highways = draw(st.integers(0, 2))
    return result | {"char_cnn": cnn | ({"n_highway": highways} if highways or draw(st.booleans()) else {})}


def words() -> st.SearchStrategy[str]:
    return st.sampled_from(WORDS[3:]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=50)
@given(options(), st.lists(st.lists(words(), max_size=7), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_random_models_equal_an_independent_float64_implementation(
    options: dict[str, Any], sentences: list[list[str]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = write_model(folder, options, seed)
        if "char_cnn" not in options:
            (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
        model = elmo.load(folder)
    reference = Reference(options, weights, WORDS)
    for ours, sentence in zip(model.embed(sentences, layers="all"), sentences, strict=True):
        expected, _ = reference.embed(sentence)
        np.testing.assert_allclose(ours, expected[:, 1:-1], rtol=0, atol=1e-5)


@settings(max_examples=20)
@given(
    options(),
    st.lists(st.lists(words(), max_size=5), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)
def test_carried_state_goes_from_row_to_row_of_the_next_batch(
    options: dict[str, Any], sentences: list[list[str]], rows: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = write_model(folder, options, seed)
        if "char_cnn" not in options:
            (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
        model = elmo.load(folder)
    reference = Reference(options, weights, WORDS)
    states = [reference.zero_state() for _ in range(rows)]
    embedded = model.embed(sentences, layers="all", state="carry", batch_size=rows)
    for i, (ours, sentence) in enumerate(zip(embedded, sentences, strict=True)):
        expected, states[i % rows] = reference.embed(sentence, states[i % rows])
        np.testing.assert_allclose(ours, expected[:, 1:-1], rtol=0, atol=1e-5)
