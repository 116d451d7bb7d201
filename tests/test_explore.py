"""Neighbours in context: what the search finds, in what order, and how the command refuses."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.embed import Layers, Sentence, as_tokens
from elmo.explore import neighbours as module
from elmo.explore.neighbours import Neighbour, Query, nearest

TEXT = ["the cat sat on the mat .", "The dog sat .", "", "a cat saw the cat", "the dog sat on a cat", "mat"]
QUERIES = [Query("the cat sat", 1), Query(["a", "dog", "on", "the", "mat"], 3)]


class Flags(TypedDict):
    same_word: bool
    one_per_sentence: bool
    own_sentence: bool


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> elmo.Model:
    return elmo.load(folder)


def brute_force(
    model: elmo.Model,
    query: Query,
    text: Sequence[Sentence],
    layers: Layers,
    *,
    same_word: bool = False,
    one_per_sentence: bool = False,
    own_sentence: bool = True,
) -> list[tuple[int, int]]:
    """Sentence and position of every token that is asked for, the nearest first: all compared, then all sorted."""
    embedded = model.embed([query.tokens, *text], layers=layers)
    asked = embedded[0][query.position].astype(np.float64)
    scores: dict[tuple[int, int], float] = {}
    for number, (sentence, vectors) in enumerate(zip(map(as_tokens, text), embedded[1:], strict=True)):
        for position, (token, vector) in enumerate(zip(sentence, vectors.astype(np.float64), strict=True)):
            if (not same_word or token.lower() == query.word.lower()) and (
                own_sentence or sentence != list(query.tokens)
            ):
                cosine = vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked)
                scores[number, position] = round(float(cosine), 6)
    ordered = sorted(scores, key=lambda place: -scores[place])
    firsts = {tuple(as_tokens(text[number])): (number, position) for number, position in reversed(ordered)}
    return [place for place in ordered if not one_per_sentence or place in firsts.values()]


def places(hits: list[Neighbour]) -> list[tuple[int, int]]:
    return [(hit.sentence, hit.position) for hit in hits]


def words(hits: list[Neighbour]) -> list[str]:
    return [hit.tokens[hit.position] for hit in hits]


class TestNearest:
    @pytest.mark.parametrize("layers", ["top", 1, "average", "mix"])
    def test_it_finds_what_a_search_through_all_vectors_finds(self, model: elmo.Model, layers: Layers) -> None:
        found = nearest(model.embedder(layers=layers), QUERIES, TEXT, 100, one_per_sentence=False)
        for query, hits in zip(QUERIES, found, strict=True):
            assert places(hits) == brute_force(model, query, TEXT, layers)
            assert [hit.tokens for hit in hits] == [tuple(TEXT[hit.sentence].split()) for hit in hits]
            assert all(-1 <= hit.score <= 1.000001 for hit in hits)

    def test_many_queries_are_answered_as_each_by_itself(self, model: elmo.Model) -> None:
        embedder = model.embedder(layers="top")
        for query, hits in zip(QUERIES, nearest(embedder, QUERIES, TEXT), strict=True):
            assert places(hits) == places(nearest(embedder, [query], TEXT)[0])

    @given(
        text=st.lists(st.lists(st.sampled_from(["a", "b", "c", "cat", "Cat"]), max_size=4), max_size=12),
        context=st.lists(st.sampled_from(["a", "b", "cat"]), max_size=2),
        k=st.integers(1, 6),
        chunk=st.integers(1, 9),
        same_word=st.booleans(),
        one_per_sentence=st.booleans(),
        own_sentence=st.booleans(),
    )
    def test_where_chunks_end_does_not_matter_however_many_are_equally_near(
        self,
        model: elmo.Model,
        text: list[list[str]],
        context: list[str],
        k: int,
        chunk: int,
        same_word: bool,
        one_per_sentence: bool,
        own_sentence: bool,
    ) -> None:
        flags: Flags = {
            "same_word": same_word,
            "one_per_sentence": one_per_sentence,
            "own_sentence": own_sentence,
        }
        queries = [Query([*context, "cat"], len(context)), Query(["a", *context], 0)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_CHUNK_TOKENS", chunk)
            # At layer 0 a word has the same vector in any sentence.
            found = nearest(model.embedder(layers=0), queries, text, k, **flags)
        for query, hits in zip(queries, found, strict=True):
            assert places(hits) == brute_force(model, query, text, 0, **flags)[:k]

    def test_small_batches_change_nothing_but_rounding(self, model: elmo.Model) -> None:
        one = nearest(model.embedder(layers="top"), QUERIES, TEXT)
        other = nearest(model.embedder(layers="top", batch_tokens=3), QUERIES, TEXT)
        assert list(map(places, one)) == list(map(places, other))
        scores = [[[hit.score for hit in hits] for hits in found] for found in (one, other)]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)

    def test_equally_near_tokens_come_in_the_order_of_the_text(self, model: elmo.Model) -> None:
        (hits,) = nearest(model.embedder(layers=0), [Query("cat", 0)], TEXT, 3, one_per_sentence=False)
        assert places(hits) == [(0, 1), (3, 1), (3, 4)]
        assert {round(hit.score, 6) for hit in hits} == {1.0}

    def test_the_same_word_is_meant_in_whatever_case(self, model: elmo.Model) -> None:
        queries = [Query("the DOG", 1), Query("THE dog", 0)]
        dogs, articles = nearest(model.embedder(layers="top"), queries, TEXT, 9, same_word=True, one_per_sentence=False)
        assert sorted(places(dogs)) == [(1, 1), (4, 1)]
        assert sorted(words(articles)) == ["The", "the", "the", "the", "the"]

    def test_a_sentence_and_its_copies_give_one_hit_the_best_of_the_first(self, model: elmo.Model) -> None:
        embedder = model.embedder(layers=0)
        for query, hits in zip(QUERIES, nearest(embedder, QUERIES, [*TEXT, *TEXT], 100), strict=True):
            assert sorted(hit.sentence for hit in hits) == [0, 1, 3, 4, 5]
            every = nearest(embedder, [query], TEXT, 100, one_per_sentence=False)[0]
            for hit in hits:
                assert hit.score == max(other.score for other in every if other.sentence == hit.sentence)

    def test_the_query_s_own_sentence_is_left_out_unless_asked_for(self, model: elmo.Model) -> None:
        embedder = model.embedder(layers="top")
        query = Query(TEXT[1], 1)
        assert 1 not in [hit.sentence for hit in nearest(embedder, [query], TEXT, 9)[0]]
        first = nearest(embedder, [query], TEXT, 9, own_sentence=True)[0][0]
        assert (first.sentence, first.position) == (1, 1)
        assert first.score == pytest.approx(1)

    def test_a_text_without_such_words_has_no_neighbours(self, model: elmo.Model) -> None:
        embedder = model.embedder(layers="top")
        assert nearest(embedder, QUERIES, []) == nearest(embedder, QUERIES, ["", []]) == [[], []]
        assert nearest(embedder, [Query("zebra", 0)], TEXT, same_word=True) == [[]]
        assert nearest(embedder, [], TEXT) == []

    def test_a_stream_is_read_once_and_how_far_it_is_gets_told(self, model: elmo.Model) -> None:
        told: list[tuple[int, int]] = []
        embedder = model.embedder(layers="top", batch_tokens=8)
        found = nearest(embedder, QUERIES, iter(TEXT), report=lambda *done: told.append(done))
        assert list(map(places, found)) == list(map(places, nearest(embedder, QUERIES, TEXT)))
        assert told[0] == (0, 0)
        assert told == sorted(told)
        assert told[-1] == (len(TEXT), sum(len(line.split()) for line in TEXT))

    @pytest.mark.parametrize(
        ("settings", "k", "message"),
        [
            ({}, 0, "k is 0: give a whole number, 1 or more"),
            ({"layers": "all"}, 5, "layers is 'all': give top"),
            ({"layers": [1]}, 5, r"layers is \(1,\): give top"),
            ({"pool": "mean"}, 5, "pool is 'mean': give none"),
            ({"state": "carry"}, 5, "state is 'carry': give zero or warm"),
        ],
    )
    def test_what_gives_no_vector_a_word_is_refused(
        self, model: elmo.Model, settings: dict[str, str], k: int, message: str
    ) -> None:
        with pytest.raises(elmo.ElmoError, match=message):
            nearest(model.embedder(**settings), QUERIES, TEXT, k)  # type: ignore[arg-type]  # wrong on purpose

    def test_a_position_outside_the_sentence_is_refused(self) -> None:
        with pytest.raises(
            elmo.ElmoError, match="position is 2, and the sentence has 2 words: give a whole number from 0 to 1"
        ):
            Query("a b", 2)
        with pytest.raises(elmo.ElmoError, match="position is -1"):
            Query("a b", -1)
        with pytest.raises(elmo.ElmoError, match="has 0 words: give a sentence with a word in it"):
            Query("", 0)


class TestCommand:
    @pytest.fixture
    def text(self, tmp_path: Path) -> Path:
        path = tmp_path / "text.txt"
        path.write_text("\n".join(TEXT) + "\n")
        return path

    def test_several_contexts_are_answered_with_the_word_in_brackets(self, folder: Path, text: Path) -> None:
        sentences = ["--in", "the cat sat", "--in", "the dog saw a Cat ."]
        result = run_elmo("neighbours", "cat", *sentences, "--text", text, "-m", folder, "-k", 2, "--same-word")
        assert result.returncode == 0, result.stderr
        one, other = result.stdout.decode().split("\n\n")
        assert one.startswith("the [cat] sat\n")
        assert other.startswith("the dog saw a [Cat] .\n")
        embedder = elmo.load(folder).embedder(layers="top")
        expected = nearest(embedder, [Query("the cat sat", 1)], TEXT, 2, same_word=True)[0]
        for line, hit in zip(one.splitlines()[1:], expected, strict=True):
            score, sentence = line.split(maxsplit=1)
            assert score == f"{hit.score:.3f}"
            assert sentence.replace("[cat]", "cat") == " ".join(hit.tokens)

    def test_json_has_all_there_is_to_know(self, folder: Path, text: Path) -> None:
        result = run_elmo(
            *["neighbours", "cat", "--in", "the cat sat", "--text", text, "-m", folder, "--json", "--every-hit"]
        )
        found = json.loads(result.stdout)
        assert (found["word"], found["tokens"], found["position"]) == ("cat", ["the", "cat", "sat"], 1)
        embedder = elmo.load(folder).embedder(layers="top")
        expected = nearest(embedder, [Query("the cat sat", 1)], filter(None, TEXT), one_per_sentence=False)[0]
        assert [(hit["sentence"], hit["position"]) for hit in found["neighbours"]] == places(expected)
        assert [hit["tokens"] for hit in found["neighbours"]] == [list(hit.tokens) for hit in expected]

    def test_text_from_standard_input_and_from_compressed_files(self, folder: Path, text: Path, tmp_path: Path) -> None:
        (tmp_path / "text.txt.xz").write_bytes(lzma.compress(text.read_bytes()))
        asked = ["neighbours", "cat", "--in", "the cat sat", "-m", folder]
        plain = run_elmo(*asked, "--text", text)
        assert plain.stdout
        assert run_elmo(*asked, "--text", "-", stdin=text.read_bytes()).stdout == plain.stdout
        assert run_elmo(*asked, "--text", tmp_path / "text.txt.xz").stdout == plain.stdout

    def test_a_mark_says_which_of_several_is_meant(self, folder: Path, text: Path) -> None:
        result = run_elmo("neighbours", "cat", "--in", "a cat or a [cat] .", "--text", text, "-m", folder, "--json")
        found = json.loads(result.stdout)
        assert (found["tokens"], found["position"]) == (["a", "cat", "or", "a", "cat", "."], 4)

    def test_raw_text_is_tokenised_on_request_and_so_is_the_sentence(self, folder: Path) -> None:
        pytest.importorskip("spacy", reason="tokenising needs spaCy")
        result = run_elmo(
            *["neighbours", "cat", "--in", "(a cat, or a [cat])", "--text", "-", "-m", folder, "--json", "--tokenize"],
            stdin=b"I saw it. A cat, I think.\n",
        )
        found = json.loads(result.stdout)
        assert (found["tokens"], found["position"]) == (["(", "a", "cat", ",", "or", "a", "cat", ")"], 6)
        hits = sorted(hit["tokens"] for hit in found["neighbours"])
        assert hits == [["A", "cat", ",", "I", "think", "."], ["I", "saw", "it", "."]]

    def test_long_sentences_are_cut_around_the_word(self, folder: Path) -> None:
        line = " ".join(["a"] * 40 + ["cat"] + ["b"] * 40)
        arguments = ["neighbours", "cat", "--in", "cat", "--text", "-", "-m", folder, "--same-word"]
        shown = run_elmo(*arguments, stdin=line.encode()).stdout.decode().splitlines()[1].split()
        assert shown[1:] == ["...", *["a"] * 15, "[cat]", *["b"] * 15, "..."]

    def test_a_word_that_the_text_lacks_is_said_to_be_missing(self, folder: Path, text: Path) -> None:
        result = run_elmo("neighbours", "emu", "--in", "an emu", "--text", text, "-m", folder, "--same-word")
        assert result.returncode == 0, result.stderr
        assert result.stdout.decode().splitlines() == ["an [emu]", "         nothing like it in the text"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--text", "TEXT"], "give a sentence with it, as --in 'the cat was'"),
            (["--in", "a cat"], "give --text TEXT"),
            (["--in", "a dog .", "--text", "TEXT"], "'cat' is not a word of 'a dog .': its words are a | dog | ."),
            (["--in", "a cat, too", "--text", "TEXT"], "its words are a | cat, | too"),
            (["--in", "", "--text", "TEXT"], "its words are none"),
            (
                ["--in", "cat or cat", "--text", "TEXT"],
                "is 2 times in 'cat or cat': mark one, as in --in '[cat] or cat'",
            ),
            (["--in", "a cat", "--text", "TEXT", "-k", "0"], "k is 0: give a whole number, 1 or more"),
            (
                ["--in", "a cat", "--text", "TEXT", "--layers", "0,2"],
                "--layers is '0,2': give top, average, mix or one",
            ),
            (["--in", "a cat", "--text", "TEXT", "--layers", "7"], "from 0 to 2"),
            (["--in", "a cat", "--text", "TEXT", "--state", "carry"], "state is 'carry': give zero or warm"),
            (["--in", "a cat", "--text", "-"], "--text - has no word in it, so there is nothing to search: give one"),
            (["--in", "a cat", "--text", "no.txt"], "cannot read no.txt"),
            (["--in", "a cat", "--text", "BYTES"], "line 2: not UTF-8"),
        ],
    )
    def test_a_mistake_is_one_line_and_exit_code_2(
        self, folder: Path, text: Path, tmp_path: Path, arguments: list[str], message: str
    ) -> None:
        (tmp_path / "bytes.txt").write_bytes(b"the cat\n\xff\n")
        names = {"TEXT": str(text), "BYTES": str(tmp_path / "bytes.txt")}
        given = [names.get(argument, argument) for argument in arguments]
        result = run_elmo("neighbours", "cat", *given, "-m", folder, cwd=tmp_path)
        assert result.returncode == 2
        assert result.stdout == b""
        error = result.stderr.decode()
        assert error.startswith("error: ")
        assert message in error
        assert "Traceback" not in error
