"""scikit-learn's estimators: its own checks, its pipelines and searches, and the numbers of `elmo.load().embed`."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo
from conftest import run_example, small_options, write_model
from elmo.errors import ElmoError

pytest.importorskip("sklearn", reason="needs scikit-learn")

from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import validate_data

from elmo.integrations.sklearn import ElmoTokens, ElmoVectorizer

SENTENCES = ["The cat sat .", "It purred", "", "a", "We sat on the bank of the river ."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sklearn") / "model"
    write_model(path, small_options())
    return str(path)


@pytest.fixture(scope="module")
def model(folder: str) -> elmo.Model:
    return elmo.load(folder)


class Numbers(ElmoVectorizer):
    """`ElmoVectorizer` for tables of numbers: all that scikit-learn's checks know. A row is a sentence of digits."""

    def __init__(self, model: Any = None, *, layers: Any = "average", pool: Any = "mean") -> None:
        super().__init__(model, layers=layers, pool=pool)

    def fit(self, X: Any, y: Any = None) -> Numbers:
        return super().fit(validate_data(self, X))

    def transform(self, X: Any) -> Any:
        rows = validate_data(self, X, reset=False)
        return super().transform([f"{number:.3f}" for number in row] for row in rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = False, True
        return tags


class TestChecks:
    @pytest.mark.parametrize("kind", [ElmoVectorizer, ElmoTokens])
    def test_scikit_learns_checks_pass(self, kind: Any, folder: str) -> None:
        with warnings.catch_warnings():
            # It says that most of its checks make tables of numbers, which is why there is the next test.
            warnings.simplefilter("ignore", SkipTestWarning)
            results = check_estimator(kind(folder))
        assert results
        assert {result["status"] for result in results} == {"passed"}

    def test_all_of_its_checks_pass_where_rows_of_numbers_are_sentences(self, folder: str) -> None:
        expected = {
            "check_methods_sample_order_invariance": "a product's last bit depends on the place of a row in it, and "
            "1e-9 is asked for; the order does not matter to 1e-6 (below)",
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkipTestWarning)  # pandas and the like, where they are not installed
            results = check_estimator(Numbers(folder), expected_failed_checks=expected, on_fail=None)
        failed = [(result["check_name"], result["exception"]) for result in results if result["status"] == "failed"]
        assert failed == []
        # The compiled engine gives a row the same bits in any place, and passes this one, too.
        assert {result["check_name"] for result in results if result["status"] == "xfail"} <= expected.keys()
        assert sum(result["status"] == "passed" for result in results) >= 40

    def test_parameters_are_kept_as_given_and_not_checked_before_fit(self) -> None:
        layers = [0, 1]
        vectorizer = ElmoVectorizer("nowhere", layers=layers, pool="sum")  # type: ignore[arg-type]
        assert vectorizer.get_params()["layers"] is layers
        with pytest.raises(ElmoError, match="pool is 'sum': give mean or max"):
            vectorizer.fit(SENTENCES)
        with pytest.raises(ElmoError, match="there is no model at nowhere"):
            vectorizer.set_params(pool="max").fit(SENTENCES)


class TestVectorizer:
    @pytest.mark.parametrize("pool", ["mean", "max"])
    def test_a_sentence_has_the_vector_that_embed_pools(self, model: elmo.Model, folder: str, pool: Any) -> None:
        found = ElmoVectorizer(folder, pool=pool).fit_transform(SENTENCES)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, model.embed(SENTENCES, pool=pool), atol=1e-6)

    def test_tokens_strings_and_arrays_are_the_same_sentences(self, folder: str) -> None:
        vectorizer = ElmoVectorizer(folder)
        expected = vectorizer.transform(SENTENCES)
        tokens = [sentence.split() for sentence in SENTENCES]
        for given in (tokens, np.array(SENTENCES), np.array([*tokens, None], dtype=object)[:-1], iter(tokens)):
            assert np.array_equal(vectorizer.transform(given), expected)

    def test_the_order_of_samples_does_not_matter(self, folder: str) -> None:
        vectorizer = ElmoVectorizer(folder)
        np.testing.assert_allclose(
            vectorizer.transform(SENTENCES[::-1])[::-1], vectorizer.transform(SENTENCES), atol=1e-6
        )

    def test_several_layers_stand_side_by_side_and_have_names(self, model: elmo.Model, folder: str) -> None:
        vectorizer = ElmoVectorizer(folder, layers=[0, 2])
        found = vectorizer.transform(SENTENCES)
        expected = np.stack(model.embed(SENTENCES, layers=[0, 2], pool="mean")).reshape(len(SENTENCES), -1)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert len(vectorizer.get_feature_names_out()) == found.shape[1] == 20

    @pytest.mark.parametrize("pool", ["mean", "max"])
    def test_raw_text_is_pooled_over_all_its_tokens(self, model: elmo.Model, folder: str, pool: Any) -> None:
        pytest.importorskip("spacy", reason="raw text needs spaCy")
        text = "I can't. Can you? No."
        sentences = [["I", "ca", "n't", "."], ["Can", "you", "?"], ["No", "."]]
        tokens = np.concatenate(model.embed(sentences))
        expected = tokens.mean(axis=0) if pool == "mean" else tokens.max(axis=0)
        found = ElmoVectorizer(folder, pool=pool, language="en").transform([text, " "])
        np.testing.assert_allclose(found, [expected, np.zeros(10)], atol=1e-6)
        with pytest.raises(ElmoError, match="each sample is raw text, not"):
            ElmoVectorizer(folder, language="en").transform([["a"]])

    def test_no_sample_is_no_row(self, folder: str) -> None:
        assert ElmoVectorizer(folder).transform([]).shape == (0, 10)

    @pytest.mark.parametrize(
        ("given", "said"),
        [("a sentence", "put it in a list"), ([1, 2], "a sentence is a string or a list"), ([None], "not None")],
    )
    def test_what_is_no_sentence_is_refused(self, folder: str, given: Any, said: str) -> None:
        with pytest.raises(ElmoError, match=said):
            ElmoVectorizer(folder).transform(given)

    def test_a_table_is_no_list_of_sentences(self, folder: str) -> None:
        class Frame(list[str]):  # iterated over, it gives the names of its columns
            columns = ("text",)

        column = ["We sat .", "It purred"]
        for table in (Frame(["text"]), np.array(column)[:, None], np.array(column, object)[:, None]):
            with pytest.raises(ElmoError, match="not a table: give its column of text"):
                ElmoVectorizer(folder).transform(table)

    def test_a_state_that_depends_on_other_samples_is_refused(self, folder: str) -> None:
        with pytest.raises(ElmoError, match="give zero or warm"):
            ElmoVectorizer(folder, state="carry").fit(SENTENCES)


class TestTokens:
    def test_a_sentence_has_the_vectors_that_embed_gives(self, model: elmo.Model, folder: str) -> None:
        choices: tuple[Any, ...] = ("average", "all")
        for layers in choices:
            found = ElmoTokens(folder, layers=layers).fit_transform(SENTENCES)
            assert found.shape == (len(SENTENCES),)
            for ours, expected in zip(found, model.embed(SENTENCES, layers=layers), strict=True):
                assert np.array_equal(ours, expected)

    def test_tokens_of_raw_text_follow_one_another(self, folder: str) -> None:
        pytest.importorskip("spacy", reason="raw text needs spaCy")
        found = ElmoTokens(folder, language="en").transform(["I can't. Can you?", ""])
        assert [vectors.shape for vectors in found] == [(7, 10), (0, 10)]


class TestInScikitLearn:
    def labelled(self) -> tuple[list[str], list[int]]:
        words = [["good", "fine", "nice"], ["bad", "poor", "awful"]]
        pairs = [(f"a {word} day {n}", label) for label in (0, 1) for word in words[label] for n in range(4)]
        return [text for text, _ in pairs], [label for _, label in pairs]

    def test_a_pipeline_learns_and_a_pickle_of_it_answers_alike(self, folder: str) -> None:
        texts, labels = self.labelled()
        pipeline = make_pipeline(ElmoVectorizer(folder), LogisticRegression(C=100)).fit(texts, labels)
        assert pipeline.score(texts, labels) == 1
        again = pickle.loads(pickle.dumps(pipeline))
        assert np.array_equal(again.predict_proba(texts), pipeline.predict_proba(texts))

    def test_a_search_over_layers_and_pools_finds_one(self, folder: str, tmp_path: Path) -> None:
        texts, labels = self.labelled()
        steps = [("elmo", ElmoVectorizer(folder)), ("classifier", LogisticRegression(C=100))]
        grid = {"elmo__layers": ["top", "average", 0], "elmo__pool": ["mean", "max"]}
        search = GridSearchCV(Pipeline(steps, memory=str(tmp_path)), grid, cv=2, error_score="raise")
        assert search.fit(texts, labels).best_score_ > 0.5
        assert len(search.cv_results_["params"]) == 6

    def test_pickles_and_clones_of_a_path_have_no_weights_in_them(self, folder: str) -> None:
        vectorizer = ElmoVectorizer(folder).fit(SENTENCES)
        assert len(pickle.dumps(vectorizer)) < 1000
        assert clone(vectorizer).get_params() == vectorizer.get_params()

    def test_a_loaded_model_may_be_given_and_another_path_takes_effect(self, folder: str, tmp_path: Path) -> None:
        write_model(tmp_path / "other", small_options(), seed=1)
        vectorizer = ElmoVectorizer(elmo.load(folder))
        first = vectorizer.fit_transform(SENTENCES)
        assert np.array_equal(clone(vectorizer).transform(SENTENCES), first)
        assert np.array_equal(vectorizer.set_params(model=folder).transform(SENTENCES), first)
        assert not np.array_equal(vectorizer.set_params(model=tmp_path / "other").transform(SENTENCES), first)

    def test_columns_of_a_data_frame_have_names(self, folder: str) -> None:
        pandas = pytest.importorskip("pandas", reason="needs pandas")
        frame = ElmoVectorizer(folder).set_output(transform="pandas").fit_transform(pandas.Series(SENTENCES))
        assert list(frame.columns[:2]) == ["elmovectorizer0", "elmovectorizer1"]


def test_the_example_finds_the_layer_and_the_source() -> None:
    printed = run_example("sklearn_pipeline.py")
    assert printed.count("accuracy 0.") == 4
    assert printed.endswith("-> frus_diplomatic\n")
