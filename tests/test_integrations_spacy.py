"""The spaCy component: rows for spaCy's tokens whatever they are, hooks, batches, and round trips."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elmo
from conftest import run_example, small_options, write_model
from elmo.errors import ElmoError

pytest.importorskip("spacy", reason="needs spaCy")

import spacy
import srsly
from spacy.tokens import Doc, DocBin
from spacy.ty import ListenedToComponent

from elmo.integrations.spacy import ElmoComponent, add_hooks

TEXT = "We sat on the bank. The bank raised its rates."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("spacy") / "model"
    write_model(path, small_options())
    return str(path)


@pytest.fixture(scope="module")
def model(folder: str) -> elmo.Model:
    return elmo.load(folder)


def pipeline(folder: str | None, *, sentences: bool = True, **config: Any) -> Any:
    nlp = spacy.blank("en")
    if sentences:
        nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", config={"model": folder, **config})
    return nlp


@pytest.fixture(scope="module")
def nlp(folder: str) -> Any:
    return pipeline(folder)


class TestRows:
    def test_each_sentence_is_read_by_itself(self, nlp: Any, model: elmo.Model) -> None:
        doc = nlp(TEXT)
        expected = model.embed(
            [["We", "sat", "on", "the", "bank", "."], ["The", "bank", "raised", "its", "rates", "."]]
        )
        np.testing.assert_allclose(doc._.elmo, np.concatenate(expected), atol=1e-6)

    def test_without_sentences_a_document_is_one(self, folder: str, model: elmo.Model) -> None:
        doc = pipeline(folder, sentences=False)(TEXT)
        np.testing.assert_allclose(doc._.elmo, model.embed([[token.text for token in doc]])[0], atol=1e-6)

    def test_several_layers_come_first(self, folder: str, model: elmo.Model) -> None:
        doc = pipeline(folder, layers="all")("It purred")
        np.testing.assert_allclose(doc._.elmo, model.embed(["It purred"], layers="all")[0], atol=1e-6)
        np.testing.assert_allclose(doc[1].vector, doc._.elmo[:, 1].mean(axis=0), atol=1e-6)

    def test_white_space_is_not_read_and_has_no_vector(self, nlp: Any) -> None:
        plain, spaced = nlp("It purred ."), nlp("  It   purred \n\n . ")
        words = [token.i for token in spaced if not token.is_space]
        assert len(spaced) > len(words) == len(plain)
        np.testing.assert_allclose(spaced._.elmo[words], plain._.elmo, atol=1e-6)
        assert not np.delete(spaced._.elmo, words, axis=0).any()
        assert [token.has_vector for token in spaced] == [not token.is_space for token in spaced]
        np.testing.assert_allclose(spaced.vector, plain.vector, atol=1e-6)

    def test_a_token_of_several_words_has_their_mean(self, nlp: Any) -> None:
        apart = nlp("I like New York .")
        merged = nlp.make_doc("I like New York .")
        with merged.retokenize() as retokenizer:
            retokenizer.merge(merged[2:4])
        merged = nlp(merged)
        assert [token.text for token in merged] == ["I", "like", "New York", "."]
        np.testing.assert_allclose(merged._.elmo[2], apart._.elmo[2:4].mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(merged._.elmo[3], apart._.elmo[4], atol=1e-6)

    @settings(max_examples=60)
    @given(st.text(max_size=40))
    def test_any_text_has_a_row_a_token(self, nlp: Any, text: str) -> None:
        doc = nlp(text)
        assert doc._.elmo.shape == (len(doc), 10)
        assert [bool(row.any()) for row in doc._.elmo] == [token.has_vector for token in doc]

    @settings(max_examples=60)
    @given(st.lists(st.tuples(st.text(min_size=1, max_size=5), st.booleans()), max_size=8))
    def test_words_are_aligned_whatever_the_tokenizer(self, nlp: Any, pieces: list[tuple[str, bool]]) -> None:
        words, spaces = [word for word, _ in pieces], [space for _, space in pieces]
        doc = nlp(Doc(nlp.vocab, words=words, spaces=spaces, sent_starts=[place == 0 for place in range(len(words))]))
        assert doc._.elmo.shape == (len(words), 10)
        assert [not row.any() for row in doc._.elmo] == [not word.split() for word in words]


class TestHooks:
    def test_documents_spans_and_tokens_have_the_means_of_their_rows(self, nlp: Any) -> None:
        doc = nlp(TEXT)
        np.testing.assert_allclose(doc.vector, doc._.elmo.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(doc[2:5].vector, doc._.elmo[2:5].mean(axis=0), atol=1e-6)
        assert np.array_equal(doc[4].vector, doc._.elmo[4])
        assert doc[4].vector_norm == pytest.approx(np.linalg.norm(doc._.elmo[4]), rel=1e-5)

    def test_the_same_word_elsewhere_is_similar_and_not_the_same(self, nlp: Any) -> None:
        doc = nlp(TEXT)
        first, second = doc._.elmo[4], doc._.elmo[7]
        cosine = float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
        assert doc[4].text == doc[7].text == "bank"
        assert doc[4].similarity(doc[7]) == pytest.approx(cosine, abs=1e-5)
        assert cosine < 0.999
        assert doc.similarity(nlp(TEXT)) == pytest.approx(1, abs=1e-5)
        assert -1 <= doc[:6].similarity(doc[6:]) <= 1

    def test_nothing_is_similar_to_white_space(self, nlp: Any) -> None:
        doc = nlp("a  b")
        assert doc[1].is_space
        assert doc[0].similarity(doc[1]) == 0

    def test_a_document_that_was_changed_behind_the_component_is_refused(self, nlp: Any) -> None:
        doc = nlp("I like New York .")
        with doc.retokenize() as retokenizer:
            retokenizer.merge(doc[2:4])
        with pytest.raises(ElmoError, match="has 4 tokens and vectors of 5"):
            doc[0].vector  # noqa: B018 - asking for it is the test
        with pytest.raises(ElmoError, match="and no vectors"):
            nlp(TEXT)[:2].as_doc().vector  # noqa: B018 - the same

    def test_vectors_of_another_pipeline_are_not_compared(self, nlp: Any) -> None:
        with pytest.raises(ElmoError, match="vectors of 10 and 0 numbers"):
            nlp("a").similarity(spacy.blank("en")("a"))


class TestPipeline:
    def test_a_stream_gives_what_each_document_gives_alone(self, nlp: Any) -> None:
        texts = [TEXT, "", "It purred", " ", "The cat sat. It purred."] * 3
        for doc, text in zip(nlp.pipe(texts, batch_size=4), texts, strict=True):
            np.testing.assert_allclose(doc._.elmo, nlp(text)._.elmo, atol=1e-6)

    def test_a_batch_is_embedded_together(self, nlp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[int] = []
        embed = elmo.Embedder.embed

        def counted(self: elmo.Embedder, sentences: Any) -> Any:
            sentences = list(sentences)
            calls.append(len(sentences))
            return embed(self, sentences)

        monkeypatch.setattr(elmo.Embedder, "embed", counted)
        list(nlp.pipe(["a b . c d ."] * 6, batch_size=3))
        assert [call for call in calls if call > 1] == [6, 6]

    def test_what_to_do_about_an_error_is_the_pipelines_to_say(self, nlp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        failed: list[Any] = []
        component = ElmoComponent(settings=elmo.EmbedSettings(layers=9))
        component.set_error_handler(lambda name, proc, docs, error: failed.append((len(docs), str(error))))  # type: ignore[arg-type, return-value]
        assert list(component.pipe([nlp.make_doc("a"), nlp.make_doc("b")])) == []
        assert failed[0][0] == 2
        assert "layers is 9" in failed[0][1]

    @pytest.mark.parametrize(
        ("config", "said"), [({"layers": "some"}, "layers is 'some'"), ({"state": "carry"}, "no pool, no carry")]
    )
    def test_settings_are_checked_when_the_component_is_added(self, config: dict[str, Any], said: str) -> None:
        with pytest.raises(ElmoError, match=said):
            pipeline(None, **config)


class TestRoundTrips:
    def test_a_folder_has_its_own_model(self, folder: str, tmp_path: Path) -> None:
        write_model(tmp_path / "lost", small_options(), seed=3)
        nlp = pipeline(str(tmp_path / "lost"), layers=[0, 2])
        expected = nlp(TEXT)._.elmo
        nlp.to_disk(tmp_path / "pipeline")
        (tmp_path / "lost").rename(tmp_path / "gone")
        again = spacy.load(tmp_path / "pipeline")
        assert np.array_equal(again(TEXT)._.elmo, expected)
        again.to_disk(tmp_path / "pipeline")  # over what it was read from
        assert np.array_equal(spacy.load(tmp_path / "pipeline")(TEXT)._.elmo, expected)

    def test_no_model_is_loaded_by_spacys_look_at_a_component(self, tmp_path: Path) -> None:
        """spaCy asks for a protocol's attributes in the order of a set: another one in each process."""
        component = pipeline(str(tmp_path / "lost")).get_pipe("elmo")
        found = {name: hasattr(component, name) for name in ListenedToComponent.__annotations__}
        assert not any(found.values())

    def test_bytes_have_their_own_model(self, nlp: Any, folder: str) -> None:
        again = pipeline("lost").from_bytes(nlp.to_bytes())
        assert np.array_equal(again(TEXT)._.elmo, nlp(TEXT)._.elmo)

    def test_bytes_put_no_file_elsewhere(self, nlp: Any, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="which is no part of a model"):
            ElmoComponent().from_bytes(srsly.msgpack_dumps({"../config.json": b"{}"}))

    def test_the_embedded_model_is_not_copied(self, tmp_path: Path) -> None:
        nlp = pipeline(None)
        nlp.to_disk(tmp_path / "pipeline")
        assert list((tmp_path / "pipeline" / "elmo").iterdir()) == []
        assert len(nlp.get_pipe("elmo").to_bytes()) < 10
        again: Any = spacy.load(tmp_path / "pipeline")
        assert again.get_pipe("elmo").to_bytes() == nlp.get_pipe("elmo").to_bytes()

    def test_the_embedded_model_takes_the_place_of_another(self, nlp: Any, tmp_path: Path) -> None:
        nlp.to_disk(tmp_path / "pipeline")
        default = pipeline(None)
        default.to_disk(tmp_path / "pipeline")
        again = spacy.load(tmp_path / "pipeline")
        assert np.array_equal(again(TEXT)._.elmo, default(TEXT)._.elmo)
        for read in (
            pipeline("lost").from_bytes(default.to_bytes()),
            pipeline("lost").from_disk(tmp_path / "pipeline"),
        ):
            assert np.array_equal(read(TEXT)._.elmo, default(TEXT)._.elmo)

    def test_what_was_left_out_stays_as_it_is(self, nlp: Any, folder: str, tmp_path: Path) -> None:
        nlp.to_disk(tmp_path / "pipeline", exclude=["elmo"])
        again: Any = spacy.load(tmp_path / "pipeline")
        assert np.array_equal(again(TEXT)._.elmo, nlp(TEXT)._.elmo)

    def test_documents_keep_their_vectors_and_get_their_hooks_again(self, nlp: Any) -> None:
        doc = nlp(TEXT)
        stored: Any
        (stored,) = DocBin(docs=[doc], store_user_data=True).get_docs(nlp.vocab)
        assert np.array_equal(stored._.elmo, doc._.elmo)
        assert np.array_equal(np.asarray(add_hooks(stored).vector), doc.vector)
        pickled = pickle.loads(pickle.dumps(doc))
        assert np.array_equal(pickled[4].vector, doc[4].vector)

    def test_several_processes_give_the_same_rows(self, nlp: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\[W109\]")  # hooks are not stored: add_hooks
            warnings.filterwarnings("ignore", category=DeprecationWarning)  # fork in a process with threads
            docs = list(nlp.pipe([TEXT, "It purred"], n_process=2))
        np.testing.assert_allclose(docs[0]._.elmo, nlp(TEXT)._.elmo, atol=1e-6)
        assert add_hooks(docs[1])[0].has_vector


def test_the_example_tells_two_senses_apart() -> None:
    first, *rows = run_example("spacy_component.py").splitlines()
    assert first == "9 tokens, vectors (9, 768)"
    similarities = np.array([[float(number) for number in row.split("  ")[:4]] for row in rows])
    assert min(similarities[0, 1], similarities[2, 3]) > similarities[:2, 2:].max() + 0.2
