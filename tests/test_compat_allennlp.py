"""AllenNLP's names: its own results, stored by scripts/make_compat_figures.py, and what its users rely on."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.compat import allennlp_bilm
from elmo.compat.allennlp import (
    Elmo,
    ElmoEmbedder,
    ElmoTokenEmbedder,
    ScalarMix,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
    remove_sentence_boundaries,
)
from elmo.config import ModelConfig
from elmo.engine import ReferenceEngine
from elmo.errors import ElmoError
from elmo.formats.allennlp_table import to_ours, to_theirs
from elmo.model import BiLM
from elmo.sinks import SentenceKeys
from peers import allennlp_code
from test_reference import options as drawn_options

STORED = Path(__file__).parent / "data" / "compat"
FILES = (str(STORED / "options.json"), str(STORED / "weights.hdf5"))
SENTENCES = [line.split(" ") for line in (STORED / "text.txt").read_text(encoding="utf-8").split("\n")[:-1]]
CLOSE = 5e-6
BATCH = batch_to_ids(SENTENCES[:4])


def assert_stored(name: str, found: dict[str, Any]) -> None:
    with np.load(STORED / f"{name}.npz") as stored:
        assert set(found) == set(stored.files)
        for key, value in found.items():
            theirs, ours = stored[key], value.detach().numpy()
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE, err_msg=key)


@pytest.mark.parametrize("what", ["layers", "mix", "norm", "cached"])
def test_old_code_gives_what_allennlp_gave(what: str) -> None:
    with torch.no_grad():
        assert_stored(what, getattr(allennlp_code, what)(FILES, SENTENCES))


def test_a_batch_with_gradients_and_one_without_have_the_same_vectors_and_leave_the_same_state() -> None:
    bilm = _ElmoBiLm(*FILES, requires_grad=True)
    with torch.no_grad():
        fast = [bilm(ids)["activations"] for ids in (BATCH, BATCH[:2])]
    carried = bilm._elmo_lstm._states
    assert carried is not None
    bilm._elmo_lstm.reset_states()
    slow = [bilm(ids)["activations"] for ids in (BATCH, BATCH[:2])]
    assert all(layer.requires_grad for layers in slow for layer in layers)
    torch.testing.assert_close(slow, fast, rtol=0, atol=CLOSE)
    torch.testing.assert_close(bilm._elmo_lstm._states, carried, rtol=0, atol=CLOSE)


def test_training_makes_the_same_steps_as_in_allennlp(tmp_path: Path) -> None:
    assert_stored("train", allennlp_code.train(FILES, SENTENCES, tmp_path / "task.th"))


def test_a_task_model_saved_by_allennlp_loads_and_says_the_same() -> None:
    found = allennlp_code.train(FILES, SENTENCES, STORED / "task.th")
    with np.load(STORED / "train.npz") as stored:
        np.testing.assert_allclose(found["scores"].numpy(), stored["scores"], rtol=0, atol=CLOSE)


def test_a_task_model_is_saved_under_the_names_that_allennlp_loads() -> None:
    theirs = torch.load(STORED / "task.th", weights_only=True)
    tagger = allennlp_code.Tagger(FILES)
    assert {name: w.shape for name, w in tagger.state_dict().items()} == {name: w.shape for name, w in theirs.items()}
    tagger.load_state_dict(theirs, strict=True)
    assert all(torch.equal(weight, theirs[name]) for name, weight in tagger.state_dict().items())


def with_projections(options: dict[str, Any]) -> dict[str, Any]:
    """A drawn model as AllenNLP has them: it reads characters, and has both projections."""
    cnn: dict[str, Any] = options.get("char_cnn") or small_options()["char_cnn"]
    width = options["lstm"]["projection_dim"]
    if sum(number for _, number in cnn["filters"]) == width:
        cnn = cnn | {"filters": [*cnn["filters"], [1, 3]]}
    lstm = options["lstm"] | {"dim": max(options["lstm"]["dim"], width + 1)}
    return {"lstm": lstm, "char_cnn": cnn}


@settings(max_examples=30)
@given(drawn_options().map(with_projections), st.integers(0, 99))
def test_names_and_layouts_translate_there_and_back(options: dict[str, Any], seed: int) -> None:
    torch.manual_seed(seed)
    config = ModelConfig.from_options(options)
    ours = {name: torch.randn_like(weight) for name, weight in BiLM(config).state_dict().items()}
    again = to_ours(config, dict(to_theirs(config, ours.__getitem__)))
    assert set(again) == set(ours)
    for name, weight in ours.items():
        torch.testing.assert_close(again[name], weight, rtol=0, atol=1e-6)  # a bias had 1 added, then taken away


def test_the_state_is_carried_row_by_row_unless_old_code_says_not_to() -> None:
    bilm = _ElmoBiLm(*FILES)
    first, second = (bilm(BATCH)["activations"][-1] for _ in range(2))
    assert (first - second).abs().max() > 0.01
    bilm._elmo_lstm.reset_states()
    assert torch.equal(bilm(BATCH)["activations"][-1], first)
    bilm._elmo_lstm.reset_states(torch.tensor([True, False, True, False]))
    mixed = bilm(BATCH)["activations"][-1]
    assert torch.equal(mixed[::2], first[::2])
    torch.testing.assert_close(mixed[1::2], second[1::2])
    bilm._elmo_lstm.stateful = False
    assert torch.equal(bilm(BATCH)["activations"][-1], first)


def test_a_mask_of_other_rows_than_the_state_is_refused() -> None:
    bilm = _ElmoBiLm(*FILES)
    bilm(BATCH)
    with pytest.raises(ElmoError, match="the mask has 3 rows, the carried state 4"):
        bilm._elmo_lstm.reset_states(torch.ones(3, dtype=torch.bool))


def test_a_weight_that_changes_changes_the_vectors() -> None:
    bilm = _ElmoBiLm(*FILES)
    bilm._elmo_lstm.stateful = False
    before = bilm(BATCH)["activations"][0]
    bilm._token_embedder._projection.weight.data.mul_(2)  # type: ignore[operator, union-attr]  # as old code does it
    assert (bilm(BATCH)["activations"][0] - before).abs().max() > 0.1


@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_module_that_was_used_can_be_copied_with_its_state(again: Any) -> None:
    bilm = _ElmoBiLm(*FILES)
    bilm(BATCH)
    copied = again(bilm)
    assert torch.equal(copied(BATCH)["activations"][-1], bilm(BATCH)["activations"][-1])


def test_only_what_is_asked_for_is_trained() -> None:
    frozen, trained = (Elmo(*FILES, 1, requires_grad=wanted) for wanted in (False, True))
    assert [name for name, weight in frozen.named_parameters() if weight.requires_grad] == [
        *(f"scalar_mix_0.{name}" for name in ("gamma", *(f"scalar_parameters.{k}" for k in range(3))))
    ]
    for module in (frozen, trained):
        module(BATCH)["elmo_representations"][0].square().sum().backward()
        for name, weight in module.named_parameters():
            assert (weight.grad is not None and bool(weight.grad.abs().sum())) == weight.requires_grad, name
    fixed = Elmo(*FILES, 1, scalar_mix_parameters=[1.0, 2.0, 3.0])
    assert not any(weight.requires_grad for weight in fixed.parameters())


def test_a_task_is_trained_on_a_frozen_network_whatever_engine_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class InferenceEngine(ReferenceEngine):  # as on a GPU
        encode = torch.inference_mode()(ReferenceEngine.encode)
        contextualise = torch.inference_mode()(ReferenceEngine.contextualise)

    monkeypatch.setattr(allennlp_bilm, "make_engine", lambda source, *_: (InferenceEngine(source.bilm), "fp32"))
    bilm, task = _ElmoBiLm(*FILES), torch.nn.Linear(10, 1)
    for _ in range(2):  # the second starts from a carried state
        task(bilm(BATCH)["activations"][-1]).sum().backward()
    assert task.weight.grad is not None


def test_dimensions_between_batch_and_time_come_out_as_they_went_in() -> None:
    module = Elmo(*FILES, 1).eval()
    flat = module(BATCH)
    module._elmo_lstm._elmo_lstm.reset_states()  # type: ignore[union-attr, operator]
    nested = module(BATCH.view(2, 2, *BATCH.shape[1:]))
    assert torch.equal(nested["elmo_representations"][0].flatten(0, 1), flat["elmo_representations"][0])
    assert torch.equal(nested["mask"].flatten(0, 1), flat["mask"])


def test_the_character_encoder_alone_gives_the_word_layer_with_boundaries() -> None:
    encoded = _ElmoCharacterEncoder(*FILES)(BATCH)
    output = _ElmoBiLm(*FILES)(BATCH)
    assert torch.equal(encoded["mask"], output["mask"])
    words = encoded["token_embedding"] * encoded["mask"][..., None]
    torch.testing.assert_close(torch.cat([words, words], dim=-1), output["activations"][0])


def test_a_token_embedder_projects() -> None:
    plain, projected = ElmoTokenEmbedder(*FILES, dropout=0.0), ElmoTokenEmbedder(*FILES, projection_dim=3)
    assert plain(BATCH).shape[-1] == plain.get_output_dim() == 10
    assert projected(BATCH).shape[-1] == projected.get_output_dim() == 3
    assert "_projection.weight" in projected.state_dict()


def test_another_network_can_take_the_place_of_ours() -> None:
    module = Elmo(None, None, 2, module=_ElmoBiLm(*FILES), dropout=0.0)
    expected = Elmo(*FILES, 2, dropout=0.0)
    assert module.get_output_dim() == 10
    assert torch.equal(module(BATCH)["elmo_representations"][1], expected(BATCH)["elmo_representations"][1])
    with pytest.raises(ElmoError, match="module is given"):
        Elmo(*FILES, 1, module=_ElmoBiLm(*FILES))


def test_what_allennlp_downloaded_must_be_given() -> None:
    for options in (None, "https://example.org/options.json"):
        with pytest.raises(ElmoError, match="nothing is downloaded here"):
            Elmo(options, FILES[1], 1)
    with pytest.raises(ElmoError, match="nothing is downloaded here"):
        ElmoEmbedder()


def test_a_model_that_reads_words_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, {"lstm": small_options()["lstm"], "n_tokens_vocab": 7})
    with pytest.raises(ElmoError, match="reads the bytes of words and nothing else"):
        _ElmoBiLm(tmp_path / "options.json", tmp_path / "weights.hdf5")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 3))
def test_removing_boundaries_keeps_what_lies_between(lengths: list[int], padding: int) -> None:
    longest = max(lengths) + 2 + padding
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None] + 2
    tensor = torch.randn(len(lengths), longest, 3)
    inner, kept = remove_sentence_boundaries(tensor, mask)
    assert inner.shape == (len(lengths), longest - 2, 3)
    for row, length in enumerate(lengths):
        assert torch.equal(inner[row, :length], tensor[row, 1 : length + 1])
        assert not inner[row, length:].any()
        assert kept[row].tolist() == [step < length for step in range(longest - 2)]


def test_a_mix_refuses_numbers_that_do_not_fit() -> None:
    with pytest.raises(ElmoError, match="2 initial_scalar_parameters are given for a mixture_size of 3"):
        ScalarMix(3, initial_scalar_parameters=[0.0, 1.0])
    with pytest.raises(ElmoError, match="2 layers are given to a mix of 3"):
        ScalarMix(3)([torch.ones(1, 1, 1)] * 2)


def test_the_embedder_gives_the_published_vectors(golden: Path) -> None:
    embedder = ElmoEmbedder(golden / "options.json", golden / "lm_weights.hdf5")
    lists = json.loads((golden / "sentences.json").read_text())
    for k, batch in enumerate(zip(*lists, strict=True)):
        for row, layers in enumerate(embedder.embed_batch([sentence.split() for sentence in batch])):
            with h5py.File(golden / f"lm_embeddings_{row}.hdf5") as file:
                assert np.abs(layers[-1] - np.concatenate(file[str(k)][...], axis=-1)).max() < 2e-6


def test_the_embedder_has_no_vectors_for_no_words() -> None:
    embedder = ElmoEmbedder(*FILES)
    assert embedder.embed_sentence([]).shape == (3, 0, 10)
    assert [v.shape for v in embedder.embed_sentences([["a"], [], ["b", "c"]], batch_size=2)] == [
        (3, 1, 10),
        (3, 0, 10),
        (3, 2, 10),
    ]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"batch_size": 8}, ["--layers", "all", "--batch-size", "8", "--sentence-to-index"]),
        ({"output_format": "top", "forget_sentences": True}, ["--layers", "top"]),
        ({"output_format": "average", "use_sentence_keys": True}, ["--layers", "average", "--use-sentence-keys"]),
    ],
)
def test_the_command_writes_the_embedders_file(tmp_path: Path, given: dict[str, Any], options: list[str]) -> None:
    old, new = tmp_path / "old.hdf5", tmp_path / "new.hdf5"
    ElmoEmbedder(*FILES).embed_file((STORED / "text.txt").open(encoding="utf-8"), old, **given)
    done = run_elmo("embed", STORED / "text.txt", "-o", new, "--model", STORED, "--state", "carry", "-q", *options)
    assert done.returncode == 0, done.stderr
    with h5py.File(old) as theirs, h5py.File(new) as ours:
        assert set(theirs) == set(ours)
        assert ("sentence_to_index" in ours) == ("--sentence-to-index" in options)
        for name in ours:
            if name == "sentence_to_index":
                assert json.loads(ours[name][0]) == json.loads(theirs[name][0])
                assert json.loads(ours[name][0])[" ".join(SENTENCES[7])] == "7"
            else:
                assert np.abs(ours[name][...] - theirs[name][...]).max() < CLOSE


def test_a_file_that_cannot_be_embedded_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b\n\nc\n")
    embedder, out = ElmoEmbedder(*FILES), tmp_path / "out.hdf5"
    with pytest.raises(ElmoError, match=r"empty lines \(counted from 0: \[1\]\)"):
        embedder.embed_file((tmp_path / "text").open(), out)
    with pytest.raises(ElmoError, match="output_format is 'both'"):
        embedder.embed_file((tmp_path / "text").open(), out, output_format="both")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("sentences", "problem"),
    [
        (["a b", "a b"], "was there before"),
        (["."], "cannot be a name"),
        ([""], "cannot be a name"),
        (["a /"], "cannot be a name"),
        (["a", "a/b"], "begins another one"),
        (["a/b", "a"], "begins another one"),
    ],
)
def test_sentences_that_cannot_be_keys_are_refused_before_they_are_embedded(
    tmp_path: Path, sentences: list[str], problem: str
) -> None:
    embedder = elmo.load(STORED).embedder()
    with pytest.raises(ElmoError, match=problem):
        elmo.embed_file(embedder, sentences, tmp_path / "out.hdf5", sentence_keys=True)
    assert not list(tmp_path.iterdir())


def test_sentence_keys_belong_to_hdf5_and_need_no_table(tmp_path: Path) -> None:
    embedder = elmo.load(STORED).embedder()
    with pytest.raises(ElmoError, match="sentence_keys belongs to HDF5 files"):
        elmo.embed_file(embedder, ["a"], tmp_path / "out.npz", sentence_keys=True)
    with pytest.raises(ElmoError, match="contradict each other"):
        elmo.embed_file(embedder, ["a"], tmp_path / "out.hdf5", sentence_keys=True, sentence_to_index=True)


@settings(max_examples=50)
@given(st.lists(st.lists(st.text("ab./", min_size=1, max_size=3), max_size=3), max_size=6))
def test_sentences_that_pass_as_keys_are_found_in_the_file(sentences: list[list[str]]) -> None:
    keys, passed = SentenceKeys(), []
    with h5py.File("in memory", "w", driver="core", backing_store=False) as file:
        for number, tokens in enumerate(sentences):
            try:
                keys.check(number, tokens)
            except ElmoError:
                continue
            file[" ".join(tokens)] = number
            passed.append((number, tokens))
        assert all(file[" ".join(tokens)][()] == number for number, tokens in passed)
