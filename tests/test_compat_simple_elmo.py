"""simple_elmo's names: its own results, stored by scripts/make_compat_figures.py, and what is put right."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import elmo
from elmo.compat.simple_elmo import ElmoModel, Session
from elmo.errors import ElmoError
from peers import simple_elmo_code
from test_compat_allennlp import CLOSE, SENTENCES, STORED
from test_lm_scores import TEXT, VOCAB, drawn_model


@pytest.fixture
def model() -> ElmoModel:
    loaded = ElmoModel()
    assert loaded.load(STORED, max_batch_size=8) == "The model is now loaded."
    return loaded


@pytest.fixture(scope="module")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "with head"
    elmo.save(drawn_model(), folder)
    return folder


def test_old_code_gives_what_simple_elmo_gave(tmp_path: Path) -> None:
    script = [sys.executable, simple_elmo_code.__file__]
    subprocess.run([*script, str(STORED), str(STORED / "text.txt"), str(tmp_path / "out.npz")], check=True)
    with np.load(STORED / "simple_elmo.npz") as stored, np.load(tmp_path / "out.npz") as ours:
        assert set(ours.files) == set(stored.files)
        for name in ours.files:
            assert ours[name].dtype == stored[name].dtype
            np.testing.assert_allclose(ours[name], stored[name], rtol=0, atol=CLOSE, err_msg=name)


def test_behind_a_sentences_end_there_is_nothing(model: ElmoModel) -> None:
    vectors = model.get_elmo_vectors([["a"], ["a", "b", "c"], []], layers="all")
    assert vectors.shape == (3, 3, 3, 10)
    assert not vectors[0, :, 1:].any()
    assert not vectors[2].any()
    assert model.get_elmo_vectors([]).shape == (0, 0, 10)


def test_each_call_starts_from_nothing_unless_a_session_carries_on(model: ElmoModel) -> None:
    first = model.get_elmo_vectors(SENTENCES[:8], warmup=False)
    assert np.array_equal(model.get_elmo_vectors(SENTENCES[:8], warmup=False), first)
    warm = model.get_elmo_vectors(SENTENCES[:8])
    assert np.abs(warm - first).max() > 0.01
    session = Session()
    carried = [model.get_elmo_vectors(SENTENCES[:8], warmup=False, session=session) for _ in range(2)]
    assert np.array_equal(carried[0], first)
    assert np.array_equal(carried[1], warm)


@pytest.mark.parametrize("layers", ["average", "top", "all"])
def test_a_mean_is_of_the_sentences_own_tokens_and_of_length_one(model: ElmoModel, layers: str) -> None:
    texts = [["a"], ["b", "c", "d", "e"], []]
    vectors = model.get_elmo_vectors(texts, layers=layers)  # type: ignore[arg-type]  # of a parameter
    means = model.get_elmo_vector_average(texts, layers=layers)  # type: ignore[arg-type]
    for row, tokens in enumerate(texts[:2]):
        expected = vectors[row][..., : len(tokens), :].mean(axis=-2)
        np.testing.assert_allclose(means[row], expected / np.linalg.norm(expected), atol=1e-6)
    assert not means[2].any()


def test_substitutes_are_the_likeliest_words_given_all_on_one_side(with_head: Path) -> None:
    model, native = ElmoModel(), elmo.load(with_head)
    model.load(with_head, full=True)
    found = model.get_elmo_substitutes(TEXT, topn=len(VOCAB), nodelimiters=False)
    assert [len(sentence) for sentence in found] == [len(sentence) for sentence in TEXT]
    for sentence, scores in zip(found, native.score(TEXT), strict=True):
        for place, token in enumerate(sentence):
            for direction, logs in (("forward", scores.forward), ("backward", scores.backward)):
                candidates = token[direction]
                assert candidates["logp"] == sorted(candidates["logp"], reverse=True)
                assert [VOCAB.words[number] for number in candidates["candidates"]] == candidates["candidate_words"]
                by_word = dict(zip(candidates["candidate_words"], candidates["logp"], strict=True))
                assert by_word[token["word"]] == pytest.approx(float(logs[place]), abs=1e-5)
                assert sum(np.exp(candidates["logp"])) == pytest.approx(1, abs=1e-5)


def test_substitutes_pass_over_boundaries_and_need_no_full_batch(with_head: Path) -> None:
    model = ElmoModel()
    model.load(with_head, max_batch_size=32, full=True)
    ((token,),) = model.get_elmo_substitutes([["zebra"]], topn=99)
    assert token["word"] == "<UNK>"
    assert set(token["forward"]["candidate_words"]) == set(VOCAB) - {"<S>", "</S>"}


def test_the_first_choice_of_several_files_is_simple_elmos(tmp_path: Path) -> None:
    shutil.copy(STORED / "options.json", tmp_path)
    for name in ("model.hdf5", "other.hdf5"):
        shutil.copy(STORED / "weights.hdf5", tmp_path / name)
    ElmoModel().load(tmp_path)
    (tmp_path / "model.hdf5").unlink()
    ElmoModel().load(tmp_path)


def test_mistakes_are_named(model: ElmoModel) -> None:
    with pytest.raises(ElmoError, match="no model is loaded"):
        ElmoModel().get_elmo_vectors([["a"]])
    with pytest.raises(ElmoError, match="layers is 'both': give one of average, top, all"):
        model.get_elmo_vectors([["a"]], layers="both")  # type: ignore[arg-type]
    with pytest.raises(ElmoError, match="max_batch_size is 0"):
        model.load(STORED, max_batch_size=0)
    with pytest.raises(ElmoError, match="no language model head"):
        model.load(STORED, full=True)
    with pytest.raises(ElmoError, match="there is no model at"):
        model.load(STORED / "nowhere")
