"""transformers, the hub, datasets and sentence-transformers: the numbers of this library, in their shapes."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import elmo
from conftest import run_elmo, run_example, small_options, write_model
from elmo.errors import ElmoError
from elmo.formats.hub import snapshot

pytest.importorskip("transformers", reason="needs transformers")

from transformers import AutoConfig, AutoFeatureExtractor, AutoModel

from elmo.integrations.hf import ElmoConfig, ElmoFeatureExtractor, ElmoModel

SENTENCES = ["We sat on the bank of the river .", "It purred", "The cat sat ."]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf") / "model"
    write_model(path, small_options())
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> elmo.Model:
    return elmo.load(folder)


@pytest.fixture(scope="module")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    """A model with all that may come with one."""
    from elmo.lm.softmax import SoftmaxHead

    write_model(folder := tmp_path_factory.mktemp("head"), small_options())
    bare = elmo.load(folder)
    mix = elmo.ScalarMix(3)
    torch.nn.init.normal_(mix.weights, generator=torch.Generator().manual_seed(0))
    torch.nn.init.constant_(mix.gamma, 1.5)
    vocab = elmo.Vocabulary(["<S>", "</S>", "<UNK>", "cat"])
    parts: Any = {"mix": mix, "vocab": vocab, "head": SoftmaxHead(4, bare.config.lstm.projection_dim)}
    return elmo.Model.of(bare.bilm, **parts).warmed(["a cat"])


def layers_of(model: Any, sentences: list[str]) -> list[NDArray[np.float32]]:
    """`(layers + 1, tokens, dim)` of each sentence: what transformers' model says, the mix last."""
    features = ElmoFeatureExtractor.of(model.config)(sentences, return_tensors="pt")
    with torch.inference_mode():
        output = model(**features, output_hidden_states=True)
    every = torch.stack([*output.hidden_states, output.last_hidden_state]).numpy()
    return [every[:, row, : len(sentence.split())] for row, sentence in enumerate(sentences)]


def assert_same(found: Any, expected: elmo.Model) -> None:
    layers, mix = expected.embed(SENTENCES, layers="all"), expected.embed(SENTENCES, layers="mix")
    for ours, theirs, mixed in zip(layers_of(found, SENTENCES), layers, mix, strict=True):
        np.testing.assert_allclose(ours, [*theirs, mixed], rtol=TOLERANCE, atol=TOLERANCE)


class TestModel:
    def test_layers_and_mix_are_those_of_embed(self, model: elmo.Model, with_head: elmo.Model) -> None:
        assert_same(ElmoModel.of(model), model)
        assert_same(ElmoModel.of(with_head), with_head)

    def test_the_published_vectors_come_out(self, golden: Path) -> None:
        import h5py

        published = elmo.load(golden / "lm_weights.hdf5", options=golden / "options.json")
        first = [sentences[0] for sentences in json.loads((golden / "sentences.json").read_text())]
        found = layers_of(ElmoModel.of(published), first)
        for row, layers in enumerate(found):
            with h5py.File(golden / f"lm_embeddings_{row}.hdf5") as file:
                expected = np.concatenate(file["0"][...], axis=-1)
            np.testing.assert_allclose(layers[-2], expected, atol=2e-6)  # as far as the readable network is

    def test_a_folder_of_its_own_is_read_by_automodel_and_by_elmo_load(
        self, with_head: elmo.Model, tmp_path: Path
    ) -> None:
        ElmoModel.of(with_head).save_pretrained(tmp_path)
        assert_same(AutoModel.from_pretrained(tmp_path), with_head)
        again = elmo.load(tmp_path)
        for ours, theirs in zip(
            again.embed(SENTENCES, layers="mix"), with_head.embed(SENTENCES, layers="mix"), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)

    def test_a_native_folder_is_read_by_automodel(
        self, model: elmo.Model, with_head: elmo.Model, tmp_path: Path
    ) -> None:
        for number, saved in enumerate((model, with_head)):
            elmo.save(saved, tmp_path / str(number))
            found = AutoModel.from_pretrained(tmp_path / str(number))
            assert isinstance(found, ElmoModel)
            assert_same(found, saved)
            found.save_pretrained(tmp_path / "again", max_shard_size="1GB")
            assert_same(AutoModel.from_pretrained(tmp_path / "again"), saved)
            assert elmo.load(tmp_path / "again").head is None

    def test_half_precision_is_read_as_it_is_stored(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "half", dtype="bfloat16")
        found = AutoModel.from_pretrained(tmp_path / "half", dtype=torch.float32)
        assert_same(found, elmo.load(tmp_path / "half"))

    def test_padding_changes_nothing_and_may_be_said_by_a_mask(self, model: elmo.Model) -> None:
        found = ElmoModel.of(model)
        features = ElmoFeatureExtractor()(SENTENCES, return_tensors="pt")
        with torch.inference_mode():
            unmasked = found(features["input_ids"], return_dict=False)[0]
            cut = features["attention_mask"].clone()
            cut[:, 2:] = 0
            short = found(features["input_ids"], cut).last_hidden_state
        assert not unmasked[1, 2:].any()
        np.testing.assert_allclose(short[2, :2], model.embed(["The cat"])[0], rtol=TOLERANCE, atol=TOLERANCE)
        with pytest.raises(ElmoError, match="pad sentences at their ends"):
            found(features["input_ids"], 1 - cut)

    def test_the_bilm_and_the_mix_learn(self, model: elmo.Model) -> None:
        found = ElmoModel.of(model).train()
        features = ElmoFeatureExtractor()(SENTENCES, return_tensors="pt")
        found(**features).last_hidden_state.square().sum().backward()
        assert all(weight.grad is not None for weight in found.parameters())

    def test_a_model_from_a_config_alone_starts_as_ours_do(self) -> None:
        torch.manual_seed(0)
        found = AutoModel.from_config(ElmoConfig(**small_options()))
        torch.manual_seed(0)
        expected = elmo.BiLM(elmo.ModelConfig.from_options(small_options()))
        assert found.mix.weights.tolist() == [0, 0, 0]
        for name, weight in expected.state_dict().items():
            assert torch.equal(found.bilm.state_dict()[name], weight)


class TestConfig:
    def test_it_is_known_by_its_type(self, model: elmo.Model, tmp_path: Path) -> None:
        ElmoConfig(**small_options()).save_pretrained(tmp_path)
        config = AutoConfig.from_pretrained(tmp_path)
        assert isinstance(config, ElmoConfig)
        assert config.model_config == model.config
        assert (config.hidden_size, config.num_hidden_layers) == (10, 2)

    def test_a_model_that_it_cannot_be_is_refused(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "int8", dtype="int8")
        with pytest.raises(ElmoError, match="elmo convert IN OUT"):
            AutoModel.from_pretrained(tmp_path / "int8")
        elmo.save(model, tmp_path / "split", max_file_mb=0.01)
        with pytest.raises(ElmoError, match="in several files"):
            AutoModel.from_pretrained(tmp_path / "split")
        words = {"lstm": small_options()["lstm"], "n_tokens_vocab": 5}
        with pytest.raises(ElmoError, match="this model reads words"):
            ElmoConfig(**words)
        with pytest.raises(ElmoError, match="is larger than"):
            ElmoConfig(**small_options(projection_dim=99))


class TestFeatureExtractor:
    def test_ids_are_those_of_batch_to_ids(self, model: elmo.Model, tmp_path: Path) -> None:
        ElmoFeatureExtractor.of(ElmoModel.of(model).config).save_pretrained(tmp_path)
        extractor = AutoFeatureExtractor.from_pretrained(tmp_path)
        features = extractor(SENTENCES, return_tensors="pt")
        assert torch.equal(features["input_ids"], model.batch_to_ids(SENTENCES).long())
        assert features["attention_mask"].sum(dim=1).tolist() == [9, 2, 4]
        assert extractor([["It", "purred"]])["attention_mask"] == [[1, 1]]

    def test_a_model_with_an_alphabet_has_its_own_ids(self) -> None:
        options = small_options()
        options["char_cnn"] |= {"alphabet": "abc", "n_characters": 10}
        extractor = ElmoFeatureExtractor.of(ElmoConfig(**options))
        assert extractor(["ab"])["input_ids"][0][0][1:3] == [1, 2]

    def test_a_string_is_no_list(self) -> None:
        with pytest.raises(ElmoError, match="put it in a list"):
            ElmoFeatureExtractor()("a b")


def cached(cache: Path, model: elmo.Model, name: str = "owner/name", branch: str = "main") -> None:
    """A repository as huggingface_hub keeps it."""
    repository, commit = cache / "hub" / f"models--{name.replace('/', '--')}", "0123456789" * 4
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / branch).write_text(commit)
    elmo.save(model, repository / "snapshots" / commit)


class TestHub:
    """In a process of its own: huggingface_hub reads the environment when it is imported."""

    def run(self, cache: Path, *arguments: str) -> Any:
        environment = {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return run_elmo(*arguments, environment=environment)

    def test_a_repository_is_loaded_from_the_cache_without_a_network(self, model: elmo.Model, tmp_path: Path) -> None:
        cached(tmp_path, model)
        result = self.run(tmp_path, "info", "hf://owner/name", "--json")
        assert json.loads(result.stdout)["dim"] == 10, result.stderr
        cached(tmp_path, model, "owner/other", "v1.0")
        assert self.run(tmp_path, "info", "hf://owner/other@v1.0").returncode == 0

    def test_one_that_is_not_there_is_said_to_be_missing(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "info", "hf://owner/nothing")
        assert result.returncode == 2
        assert result.stderr.startswith(b"error: hf://owner/nothing is not in the local cache")

    @pytest.mark.parametrize(
        "address",
        [
            "hf://",
            "hf://name",
            "hf://../name",
            "hf://a/../../b",
            "hf://a/b/c",
            "hf://a/b@../x",
            "hf://a b/c",
            "hf://a--b/c",
        ],
    )
    def test_what_is_no_name_is_refused_before_anything_is_asked(self, address: str) -> None:
        with pytest.raises(ElmoError, match="give hf://owner/name"):
            snapshot(address)

    def test_code_and_folders_are_never_asked_for(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        from huggingface_hub.utils._paths import filter_repo_objects

        wanted: list[str] = []
        offered = ["config.json", "model.safetensors", "vocab.txt", "evil.py", "x/evil.json", "x/a.hdf5", "model.pkl"]

        def download(repository: str, *, revision: str | None, **patterns: Any) -> str:
            wanted.extend(filter_repo_objects(offered, **patterns))
            return str(tmp_path)

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        assert snapshot("hf://owner/name") == tmp_path
        assert wanted == ["config.json", "model.safetensors", "vocab.txt"]


class TestSentenceTransformers:
    @pytest.fixture
    def modules(self) -> Any:
        pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
        import sentence_transformers
        from sentence_transformers.sentence_transformer.modules import Pooling

        from elmo.integrations.sentence_transformers import ElmoEmbeddings

        return sentence_transformers.SentenceTransformer, ElmoEmbeddings, Pooling

    def transformer(self, modules: Any, model: elmo.Model, **settings: Any) -> Any:
        whole, first, pooling = modules
        embeddings = first(model, **settings)
        return whole(modules=[embeddings, pooling(embeddings.get_embedding_dimension())], device="cpu")

    def test_sentences_have_the_vectors_that_embed_pools(self, modules: Any, model: elmo.Model) -> None:
        found = self.transformer(modules, model).encode(SENTENCES)
        np.testing.assert_allclose(found, model.embed(SENTENCES, pool="mean"), rtol=TOLERANCE, atol=TOLERANCE)

    def test_raw_text_is_tokenised_and_cut(self, modules: Any, model: elmo.Model) -> None:
        pytest.importorskip("spacy", reason="raw text needs spaCy")
        encoder = self.transformer(modules, model, language="en", max_seq_length=3)
        for one in (encoder, pickle.loads(pickle.dumps(encoder))):  # as several processes get it
            found = one.encode(["I can't. No."])
            np.testing.assert_allclose(found, model.embed(["I ca n't"], pool="mean"), rtol=TOLERANCE, atol=TOLERANCE)

    def test_a_saved_one_is_loaded_again(self, modules: Any, model: elmo.Model, tmp_path: Path) -> None:
        first = self.transformer(modules, model, max_seq_length=3)
        first.save(str(tmp_path / "saved"))
        # It asks so of every class that is not its own; no code lies in the folder.
        again = modules[0](str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
        assert again[0].max_seq_length == 3
        np.testing.assert_allclose(again.encode(SENTENCES), first.encode(SENTENCES), rtol=TOLERANCE, atol=TOLERANCE)
        assert elmo.load(tmp_path / "saved").config == model.config


def test_datasets_map_adds_vectors(model: elmo.Model, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    table = datasets.Dataset.from_dict({"text": SENTENCES})
    mapped = table.map(
        lambda batch: {"vector": model.embed(batch["text"], pool="mean")},
        batched=True,
        batch_size=2,
        cache_file_name=str(tmp_path / "cache.arrow"),
    )
    np.testing.assert_allclose(mapped.with_format("numpy")["vector"][:], model.embed(SENTENCES, pool="mean"), atol=1e-6)


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("elmo.integrations.sklearn", "sklearn", "sklearn"),
        ("elmo.integrations.spacy", "spacy", "spacy"),
        ("elmo.integrations.hf", "transformers", "hf"),
        ("elmo.integrations.sentence_transformers", "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_missing_extra_says_how_to_install_it(
    module: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    for name in [name for name in sys.modules if name == missing or name.startswith(missing + ".")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(elmo.ElmoError, match=rf"pip install 'elmo\[{extra}\]'"):
        importlib.import_module(module)


def test_a_hub_without_its_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(elmo.ElmoError, match=r"pip install 'elmo\[hf\]'"):
        elmo.load("hf://owner/name")


def test_the_example_goes_through_all_three() -> None:
    pytest.importorskip("datasets", reason="needs datasets")
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    assert run_example("huggingface.py").splitlines() == [
        "ElmoModel: (3, 9, 768), 3 layers",
        "datasets: ['text', 'vector'], vectors of 768",
        "sentence-transformers: (3, 768)",
    ]
