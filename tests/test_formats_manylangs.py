"""ELMoForManyLangs' models, against a slow computation of our own, and its `Embedder`."""

from __future__ import annotations

import copy
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmo
import manylangs64
from conftest import run_elmo
from elmo.chars import model_ids
from elmo.compat.manylangs import Embedder
from elmo.config import ModelConfig
from elmo.errors import ElmoError
from elmo.lm.settings import TrainConfig

SENTENCES = [
    ["cat", "tab"],
    ["猫", "unknown", "é\u3000é"],
    ["abcabcabcabcabcabc"],
    [],
    ["CAT", "", "a" * 100, "\U0001f408"],
    ["\u3000", "", "tab\u00a0", "tab"],  # blanks of other scripts are words
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    manylangs64.write(tmp_path / "m")
    return tmp_path / "m"


def changed(part: str, **changes: Any) -> dict[str, Any]:
    settings = copy.deepcopy(manylangs64.SETTINGS)
    settings[part] |= changes
    return settings


@pytest.mark.parametrize(
    "settings",
    [
        manylangs64.SETTINGS,
        changed("token_embedder", activation="tanh", n_highway=0),
        changed("token_embedder", word_dim=0),
        changed("token_embedder", filters=[[2, 2]]),  # as wide as the projection, which is there all the same
        changed("encoder", n_layers=1),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_vectors_are_those_of_an_independent_computation(tmp_path: Path, settings: dict[str, Any], engine: Any) -> None:
    weights = manylangs64.write(tmp_path / "m", settings)
    model = elmo.load(tmp_path / "m")
    for tokens, found in zip(SENTENCES, model.embed(SENTENCES, layers="all", engine=engine), strict=True):
        np.testing.assert_allclose(found, manylangs64.embed(tokens, weights, settings), atol=1e-5)


def test_a_gpus_encoder_reads_alphabet_and_words_too(folder: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from elmo.engine.cuda import _encoded
    from elmo.engine.precision import network_encoder

    model = elmo.load(folder)
    encoder = network_encoder(model.config, model.network.read, torch.device("cpu"))
    ids = torch.from_numpy(model_ids(["cat", "猫", "other", "<S>"], model.config, model.vocab))
    torch.testing.assert_close(_encoded(encoder, ids), model.bilm.encoder(ids))


def test_in_a_task_model_the_ids_have_a_column_of_words(folder: Path) -> None:
    model = elmo.load(folder)
    ids = model.batch_to_ids(SENTENCES)
    assert ids.shape == (6, 4, 13)
    output = elmo.Elmo(model, dropout=0)(ids)
    for vectors, mask, expected in zip(output.vectors[0], output.mask, model.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(vectors[mask].numpy(force=True), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_native_folder_keeps_all_of_it(folder: Path, tmp_path: Path, dtype: Any) -> None:
    model = elmo.load(folder)
    elmo.save(model, tmp_path / "n", dtype=dtype)
    again = elmo.load(tmp_path / "n")
    assert again.config == model.config
    for ours, theirs in zip(again.embed(SENTENCES), model.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0 if dtype == "float32" else 0.05)


def test_a_zip_is_read_as_its_folder(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    expected = elmo.load(folder).embed(SENTENCES[0])
    assert np.array_equal(elmo.load(tmp_path / "m.zip").embed(SENTENCES[0])[0], expected[0])


def test_info_says_what_it_reads(folder: Path) -> None:
    result = run_elmo("info", folder, "--json")
    facts = json.loads(result.stdout)
    assert facts["format"] == "manylangs"
    assert facts["input"].startswith("characters of an alphabet of 7, a table of 10 words of 4")


def test_bilm_tf_has_no_place_for_it_and_it_is_not_trained(folder: Path, tmp_path: Path) -> None:
    model = elmo.load(folder)
    with pytest.raises(ElmoError, match="bilm-tf knows bytes alone"):
        elmo.save(model, tmp_path / "out", format="bilm-tf")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ElmoError, match="can be used, but not trained here"):
        TrainConfig(model=model.config)


class TestSettings:
    def test_only_the_name_of_the_path_counts_and_nothing_outside_is_read(self, folder: Path) -> None:
        shutil.move(folder / "settings.json", folder.parent / "settings.json")
        (folder / "config.json").write_text('{"config_path": "../settings.json"}')
        with pytest.raises(ElmoError, match=r"names the settings 'settings\.json', which are not beside it"):
            elmo.load(folder)
        assert elmo.load(folder, options=folder.parent / "settings.json").source == "manylangs"

    def test_those_of_the_published_models_are_known(self, folder: Path) -> None:
        (folder / "config.json").write_text('{"config_path": "/home/x/cnn_50_100_512_4096_sample.json"}')
        with pytest.raises(
            ElmoError, match=r"projection\.weight has shape \(6, 16\), the options say \(512, 2148\)|lacks"
        ):
            elmo.load(folder)

    @pytest.mark.parametrize(
        ("part", "changes", "message"),
        [
            ("encoder", {"name": "lstm"}, "name is 'lstm' in its settings; 'elmo' is known"),
            ("token_embedder", {"name": "lstm"}, "'cnn' is known"),
            ("token_embedder", {"filters": 5}, "its settings are not known here: char_cnn.filters"),
            ("encoder", {"dim": 10}, r"encoder\.pkl: .* has shape \(36, 6\), the options say \(40, 6\)"),
            ("encoder", {"dim": 6}, "LSTMs without a projection"),
        ],
    )
    def test_what_is_not_known_is_said(self, folder: Path, part: str, changes: dict[str, Any], message: str) -> None:
        (folder / "settings.json").write_text(json.dumps(changed(part, **changes)))
        with pytest.raises(ElmoError, match=message):
            elmo.load(folder)


class TestDictionaries:
    def test_a_line_without_a_name_is_a_blank(self, folder: Path) -> None:
        expected = elmo.load(folder).embed([["\u3000"]])[0]
        text = (folder / "char.dic").read_text(encoding="utf-8")
        (folder / "char.dic").write_text(text.replace("\u3000", "\u00a0"), encoding="utf-8")
        assert np.array_equal(elmo.load(folder).embed([["\u3000"]])[0], expected)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("<eow>\t6", "x\t6", r"char\.dic lacks <eow>"),
            ("a\t2", "a\t99", "names row 99 of a table of 13"),
            ("a\t2", "a\tb\t2", r"line 3 of char\.dic is 'a\\tb\\t2'"),
            ("a\t2", "a\t-2", "a name, a tab and a number are expected"),
        ],
    )
    def test_what_is_wrong_with_one_is_said(self, folder: Path, old: str, new: str, message: str) -> None:
        text = (folder / "char.dic").read_text(encoding="utf-8")
        (folder / "char.dic").write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(ElmoError, match=message):
            elmo.load(folder)

    def test_a_missing_one_is_named(self, folder: Path) -> None:
        (folder / "word.dic").unlink()
        with pytest.raises(ElmoError, match=r"has no word\.dic"):
            elmo.load(folder)


class TestEmbedder:
    def test_layers_are_numbered_as_in_the_original(self, folder: Path) -> None:
        weights = manylangs64.write(folder)
        embedder = Embedder(folder, batch_size=2)
        for layer in (0, 1, 2, -1, -2):
            found = embedder.sents2elmo(SENTENCES, output_layer=layer)
            for tokens, vectors in zip(SENTENCES, found, strict=True):
                layers = manylangs64.embed(tokens, weights)
                expected = layers if layer == -2 else layers.mean(axis=0) if layer == -1 else layers[layer]
                assert vectors.shape == expected.shape
                np.testing.assert_allclose(vectors, expected, atol=1e-5)

    def test_boundaries_in_the_text_are_boundaries(self, folder: Path) -> None:
        weights = manylangs64.write(folder)
        (found,) = Embedder(folder).sents2elmo([["<bos>", "cat", "<eos>"]], -2)
        np.testing.assert_allclose(found, manylangs64.embed(["<bos>", "cat", "<eos>"], weights), atol=1e-5)

    def test_the_same_sentence_has_the_same_vectors_in_every_call(self, folder: Path) -> None:
        embedder = Embedder(folder)
        first = embedder.sents2elmo(SENTENCES)
        for one, again in zip(first, embedder.sents2elmo(SENTENCES), strict=True):
            np.testing.assert_allclose(one, again, atol=1e-6)
        assert embedder.sents2elmo([]) == []

    @pytest.mark.parametrize("layer", [3, -3, "top", True])
    def test_other_layers_are_refused(self, folder: Path, layer: Any) -> None:
        with pytest.raises(ElmoError, match="give 0 to 2, -1 for the average or -2 for all layers"):
            Embedder(folder).sents2elmo(SENTENCES, layer)
        with pytest.raises(ElmoError, match="batch_size is 0"):
            Embedder(folder, 0)


def test_an_alphabet_has_each_character_once_and_a_word_table_its_size() -> None:
    options = {"lstm": {"dim": 4, "projection_dim": 2}}
    cnn = {"embedding": {"dim": 2}, "filters": [[1, 2]]}
    with pytest.raises(ElmoError, match=r"char_cnn\.alphabet is 'aa'"):
        ModelConfig.from_options(options | {"char_cnn": cnn | {"alphabet": "aa"}})
    with pytest.raises(ElmoError, match=r"char_cnn\.word_dim is 3, but n_tokens_vocab is not given"):
        ModelConfig.from_options(options | {"char_cnn": cnn | {"word_dim": 3}})


def test_pickles_that_are_no_state_dicts_are_refused(folder: Path) -> None:
    torch.save([torch.zeros(2)], folder / "encoder.pkl")
    with pytest.raises(ElmoError, match=r"encoder\.pkl holds a list; tensors by name"):
        elmo.load(folder)
