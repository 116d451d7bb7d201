"""The published software's own vectors (AllenNLP's fixtures)."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import elmo
from elmo.engine.compiled import compiled
from elmo.engine.cpu import CpuEngine

TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def model(golden: Path) -> elmo.Model:
    return elmo.load(golden / "lm_weights.hdf5", options=golden / "options.json")


@pytest.fixture(scope="module")
def sentences(golden: Path) -> list[list[str]]:
    """In the order in which they were embedded: batch k holds sentence k of each of the three lists."""
    lists = json.loads((golden / "sentences.json").read_text())
    return [lists[row][k].split() for k in range(10) for row in range(3)]


def expected(golden: Path, place: int) -> NDArray[np.float32]:
    with h5py.File(golden / f"lm_embeddings_{place % 3}.hdf5") as file:
        forward, backward = file[str(place // 3)][...]
    return np.concatenate([forward, backward], axis=-1)


@pytest.mark.parametrize("kind", ["reference", "compiled", "plain"])
def test_carried_state_gives_the_published_vectors_from_every_engine(
    model: elmo.Model, sentences: list[list[str]], golden: Path, kind: str
) -> None:
    if kind == "compiled" and not compiled("fp32"):
        pytest.skip("no kernels here")
    embedder = elmo.Embedder(model, elmo.EmbedSettings(layers="top", state="carry", batch_size=3, engine="reference"))
    if kind != "reference":
        embedder._engine = CpuEngine(model.config, model.network.read, "fp32", plainly=kind == "plain")
    top = list(embedder.embed_iter(sentences))
    differences = [np.abs(vectors - expected(golden, i)).max() for i, vectors in enumerate(top)]
    assert max(differences) <= TOLERANCE


def test_zero_state_gives_them_only_where_nothing_came_before(
    model: elmo.Model, sentences: list[list[str]], golden: Path
) -> None:
    top = model.embed(sentences, layers="top")
    differences = [np.abs(vectors - expected(golden, i)).max() for i, vectors in enumerate(top)]
    assert max(differences[:3]) <= TOLERANCE
    assert max(differences) > 1


def test_word_layer_is_the_published_token_cache(model: elmo.Model, golden: Path) -> None:
    words = elmo.Vocabulary.read(golden / "vocab_test.txt")
    with h5py.File(golden / "elmo_token_embeddings.hdf5") as file:
        published = file["embedding"][...]
    ours = np.stack([vectors[0] for vectors in model.embed([[word] for word in words], layers=0)])
    assert np.abs(ours[:, :16] - published).max() <= TOLERANCE
    assert np.array_equal(ours[:, :16], ours[:, 16:])


def test_converting_to_our_format_changes_no_bit_of_a_vector(
    model: elmo.Model, sentences: list[list[str]], tmp_path: Path
) -> None:
    elmo.save(model, tmp_path / "native")
    again = elmo.load(tmp_path / "native").embed(sentences, layers="all")
    for ours, theirs in zip(again, model.embed(sentences, layers="all"), strict=True):
        assert np.array_equal(ours, theirs)
