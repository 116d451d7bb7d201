"""What other formats can be written: NLPL's zips and token caches, and that they read back as what they were."""

from __future__ import annotations

import gzip
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.errors import ElmoError
from elmo.vocab import Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "naïve", "猫", "x" * 60]
SENTENCES = [["the", "cat"], [], ["naïve", "猫", "x" * 60]]


@pytest.fixture
def model(model_folder: Path) -> elmo.Model:
    return replace(elmo.load(model_folder), vocab=Vocabulary(WORDS))


def close(one: elmo.Model, other: elmo.Model, atol: float = 0.0) -> bool:
    pairs = zip(one.embed(SENTENCES, layers="all"), other.embed(SENTENCES, layers="all"), strict=True)
    return all(np.allclose(a, b, atol=atol, rtol=0) for a, b in pairs)


class TestNlpl:
    def test_a_zip_reads_back_and_nothing_is_left_beside_it(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "new" / "m.zip", format="nlpl")
        again = elmo.load(tmp_path / "new" / "m.zip")
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["m.zip"]
        assert (again.source, again.config) == ("nlpl", model.config)
        assert again.vocab is not None
        assert again.vocab.words == tuple(WORDS)
        assert close(model, again, atol=1e-6)
        with zipfile.ZipFile(tmp_path / "new" / "m.zip") as archive:
            assert sorted(archive.namelist()) == ["model.hdf5", "options.json", "vocab.txt"]

    def test_a_gzipped_vocabulary_and_a_folder_around_all(self, model_folder: Path, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(model_folder / "weights.hdf5", "elmo/model.hdf5")
            archive.write(model_folder / "options.json", "elmo/options.json")
            archive.writestr("elmo/vocab.txt.gz", gzip.compress("\n".join(WORDS).encode()))
        again = elmo.load(tmp_path / "m.zip")
        assert again.vocab is not None
        assert len(again.vocab) == len(WORDS)
        assert close(elmo.load(model_folder), again, atol=1e-6)

    def test_a_zip_is_replaced_by_one_only_where_asked(self, model: elmo.Model, tmp_path: Path) -> None:
        path = tmp_path / "m.zip"
        elmo.save(model, path, format="nlpl")
        with pytest.raises(ElmoError, match="exists"):
            elmo.save(model, path, format="nlpl")
        elmo.save(model, path, format="nlpl", overwrite=True)
        path.write_text("my thesis")
        with pytest.raises(ElmoError, match="something else than a zip: it is not overwritten"):
            elmo.save(model, path, format="nlpl", overwrite=True)
        with pytest.raises(ElmoError, match="is a folder: a zip is to be written there"):
            elmo.save(model, tmp_path, format="nlpl", overwrite=True)

    def test_options_and_vocabulary_are_its_own(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "m.zip", format="nlpl")
        with pytest.raises(ElmoError, match="has its own options"):
            elmo.load(tmp_path / "m.zip", options=tmp_path / "o.json")
        with pytest.raises(ElmoError, match="has its own vocabulary"):
            elmo.load(tmp_path / "m.zip", vocab=tmp_path / "v.txt")

    def test_a_member_that_is_missing_is_named(self, model_folder: Path, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
            archive.write(model_folder / "weights.hdf5", "model.hdf5")
        with pytest.raises(ElmoError, match=r"has no options\.json beside model\.hdf5"):
            elmo.load(tmp_path / "m.zip")


class TestTokenCache:
    def test_words_of_the_vocabulary_have_the_vectors_of_their_characters(
        self, model: elmo.Model, tmp_path: Path
    ) -> None:
        elmo.save(model, tmp_path / "c", format="token-cache")
        cached = elmo.load(tmp_path / "c")
        assert cached.source == "token-cache"
        assert cached.config.n_words == len(WORDS)
        assert cached.config.char_cnn is None
        assert close(model, cached, atol=1e-5)
        # A word that is not there is <UNK>, whose own five letters are what is read.
        expected = model.embed([["<UNK>"]])[0]
        np.testing.assert_allclose(cached.embed([["dog"]])[0], expected, atol=1e-5)

    def test_the_weights_beside_it_are_the_model(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "c", format="token-cache")
        assert close(model, elmo.load(tmp_path / "c" / "weights.hdf5"), atol=1e-6)

    def test_the_table_of_bilm_tf_itself(self, golden: Path, tmp_path: Path) -> None:
        names = {"elmo_token_embeddings.hdf5": "cache.hdf5", "lm_weights.hdf5": "weights.hdf5"}
        for name, new in (names | {"options.json": "options.json", "vocab_test.txt": "vocab.txt"}).items():
            shutil.copy(golden / name, tmp_path / new)
        cached, whole = elmo.load(tmp_path), elmo.load(tmp_path / "weights.hdf5")
        words = [word for word in (cached.vocab or ()) if not word.startswith("<")][:20]
        np.testing.assert_allclose(cached.embed([words])[0], whole.embed([words])[0], atol=1e-5)

    def test_by_the_command_of_any_words(self, model_folder: Path, tmp_path: Path) -> None:
        elmo.save(elmo.load(model_folder), tmp_path / "native")
        (tmp_path / "v").write_text("<S>\n</S>\n<UNK>\ncat\n")
        asked = ("convert", tmp_path / "native", tmp_path / "c", "--format", "token-cache")
        refused = run_elmo(*asked)
        assert refused.returncode == 2
        assert b"a token cache is of some words: give them with vocab=... or --vocab" in refused.stderr
        result = run_elmo(*asked, "--vocab", tmp_path / "v")
        assert result.returncode == 0, result.stderr
        facts = json.loads(run_elmo("info", tmp_path / "c", "--json").stdout)
        assert (facts["format"], facts["input"]) == ("token-cache", "words, a table of 4")

    def test_what_cannot_be_a_cache_is_refused(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "c", format="token-cache")
        with pytest.raises(ElmoError, match="reads words already"):
            elmo.save(elmo.load(tmp_path / "c"), tmp_path / "d", format="token-cache")
        shuffled = replace(model, vocab=Vocabulary(WORDS[::-1]))
        with pytest.raises(ElmoError, match="must begin with <S> and </S>"):
            elmo.save(shuffled, tmp_path / "d", format="token-cache")
        assert not (tmp_path / "d").exists()
        with h5py.File(tmp_path / "c" / "token_embeddings.hdf5", "w") as file:
            file["embedding"] = np.zeros((3, 5), dtype=np.float32)
        with pytest.raises(ElmoError, match=r"embedding has shape \(3, 5\), the options say \(8, 5\)"):
            elmo.load(tmp_path / "c")


def test_a_cache_of_a_larger_vocabulary_is_made_piece_by_piece(tmp_path: Path) -> None:
    write_model(tmp_path / "m", small_options(dim=4, projection_dim=2))
    words = Vocabulary([*WORDS[:3], *(f"w{i}" for i in range(5000))])
    elmo.save(replace(elmo.load(tmp_path / "m"), vocab=words), tmp_path / "c", format="token-cache")
    cached, whole = elmo.load(tmp_path / "c"), elmo.load(tmp_path / "m")
    sentence = [["w0", "w4092", "w4093", "w4999"]]
    np.testing.assert_allclose(cached.embed(sentence)[0], whole.embed(sentence)[0], atol=1e-5)
