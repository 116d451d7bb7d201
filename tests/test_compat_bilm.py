"""bilm-tf's names: its published vectors, and what its users rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import elmo
from elmo.compat.bilm import (
    Batcher,
    BidirectionalLanguageModel,
    TokenBatcher,
    dump_bilm_embeddings,
    dump_token_embeddings,
    weight_layers,
)
from elmo.errors import ElmoError
from test_compat_allennlp import FILES, SENTENCES, STORED

TEXT = SENTENCES[:5]
WORDS = ["<S>", "</S>", "<UNK>", *sorted({word for sentence in TEXT for word in sentence} - {"<UNK>"})]


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")  # as their example does, without a last line break
    return path


def test_a_batch_has_the_boundaries_and_ids_that_the_model_reads() -> None:
    model = elmo.load(STORED)
    ids = Batcher(None, 50).batch_sentences(TEXT)
    assert ids.dtype == np.int64
    assert torch.equal(torch.from_numpy(ids), model.bilm.with_boundaries(model.batch_to_ids(TEXT)).long())


def test_tokens_are_numbered_from_1_by_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "vocab").write_text("</S>\n<S>\n!!!MAXTERMID\ncat\n<UNK>\n")
    ids = TokenBatcher(tmp_path / "vocab").batch_sentences([["cat", "dog"], []])
    assert ids.tolist() == [[2, 3, 4, 1], [2, 1, 0, 0]]
    (tmp_path / "vocab").write_text("</S>\n<S>\ncat\n")
    with pytest.raises(ElmoError, match="'dog' is not in the vocabulary, which has no <UNK>"):
        TokenBatcher(tmp_path / "vocab").batch_sentences([["dog"]])
    (tmp_path / "vocab").write_text("cat\n<UNK>\n")
    with pytest.raises(ElmoError, match="lacks </S>, <S>"):
        TokenBatcher(tmp_path / "vocab")


def test_the_published_token_embeddings_are_dumped_again(golden: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens.hdf5"
    dump_token_embeddings(golden / "vocab_test.txt", golden / "options.json", golden / "lm_weights.hdf5", out)
    with h5py.File(out) as ours, h5py.File(golden / "elmo_token_embeddings.hdf5") as published:
        assert np.abs(ours["embedding"][...] - published["embedding"][...]).max() < 2e-6


def test_sentences_are_dumped_one_by_one_with_the_state_carried(tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "out.hdf5"
    text.write_text("".join(" ".join(sentence) + "\n" for sentence in TEXT), encoding="utf-8")
    out.write_text("what was there is replaced")
    dump_bilm_embeddings(None, text, *FILES, out)
    bilm = BidirectionalLanguageModel(*FILES)
    with h5py.File(out) as file:
        assert set(file) == set("01234")
        for number, sentence in enumerate(TEXT):
            expected = bilm(Batcher(None, 50).batch_sentences([sentence]))["lm_embeddings"][0]
            assert np.abs(file[str(number)][...] - expected.numpy()).max() < 5e-6
    with pytest.raises(ElmoError, match="cannot read"):
        dump_bilm_embeddings(None, tmp_path / "nothing", *FILES, out)


def test_cached_words_give_what_their_characters_give(vocab: Path, tmp_path: Path) -> None:
    cache = tmp_path / "tokens.hdf5"
    dump_token_embeddings(vocab, *FILES, cache)
    by_characters = BidirectionalLanguageModel(*FILES)
    by_words = BidirectionalLanguageModel(*FILES, use_character_inputs=False, embedding_weight_file=cache)
    for batch in (TEXT, TEXT[:2], TEXT[1:]):  # rows come and go, and their state is carried
        one = by_characters(Batcher(vocab, 50).batch_sentences(batch))
        other = by_words(TokenBatcher(vocab).batch_sentences(batch))
        torch.testing.assert_close(other["lm_embeddings"], one["lm_embeddings"], rtol=0, atol=5e-6)
        assert torch.equal(other["mask"], one["mask"])
        assert one["lengths"].tolist() == [len(sentence) for sentence in batch]
        assert one["token_embeddings"].shape == (len(batch), max(map(len, batch)) + 2, 5)


@pytest.mark.parametrize("table", [np.zeros((7, 4), np.float32), np.zeros(5, np.float32), np.zeros((7, 5), np.int64)])
def test_a_cache_that_does_not_fit_is_refused(tmp_path: Path, table: NDArray[Any]) -> None:
    with h5py.File(tmp_path / "tokens.hdf5", "w") as file:
        file["embedding"] = table
    cache = tmp_path / "tokens.hdf5"
    with pytest.raises(ElmoError, match="no dataset 'embedding' of words 5 wide"):
        BidirectionalLanguageModel(*FILES, use_character_inputs=False, embedding_weight_file=cache)


def test_a_model_that_is_to_read_words_needs_them() -> None:
    with pytest.raises(ElmoError, match="give embedding_weight_file"):
        BidirectionalLanguageModel(*FILES, use_character_inputs=False)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_layers_are_weighted_as_by_our_elmo(layer_norm: bool) -> None:
    model = elmo.load(STORED)
    expected = elmo.Elmo(model, layer_norm="bilm-tf" if layer_norm else False, dropout=0.0)(model.batch_to_ids(TEXT))
    ops = BidirectionalLanguageModel(*FILES)(Batcher(None, 50).batch_sentences(TEXT))
    weighted = weight_layers("input", ops, do_layer_norm=layer_norm)["weighted_op"] * ops["mask"][..., None]
    torch.testing.assert_close(weighted, expected.vectors[0], rtol=0, atol=5e-6)


def test_a_name_is_one_mix_whichever_batch_it_is_put_on() -> None:
    bilm = BidirectionalLanguageModel(*FILES)
    context, question = (bilm(Batcher(None, 50).batch_sentences(batch)) for batch in (TEXT[:3], TEXT[3:]))
    for ops in (context, question):
        weight_layers("input", ops)
    top = weight_layers("output", context, use_top_only=True)
    assert torch.equal(top["weighted_op"], context["lm_embeddings"][:, -1])
    assert {name for name, weight in bilm.named_parameters() if weight.requires_grad} == {
        f"mixes.{mix}.{weight}" for mix in ("input", "output") for weight in ("weights", "gamma")
    }
    with torch.no_grad():
        bilm.mixes["input"].weights.copy_(torch.tensor([1.0, 2.0, 3.0]))  # type: ignore[operator]
    assert weight_layers("input", question, l2_coef=0.5)["regularization_op"].item() == 7.0
    assert weight_layers("input", question)["regularization_op"].item() == 0.0
