"""Coreference: documents as published, the scores by the official scorer's own cases, the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import elmo
from conftest import small_options, write_model
from elmo.errors import ElmoError
from elmo.tasks.coref import Coreference
from elmo.tasks.coref_metrics import best_pairs, coref_scores
from elmo.tasks.coref_model import CorefModel, CorefSettings
from elmo.tasks.coref_reader import Clusters, Document, read_documents
from elmo.tasks.coref_spans import all_spans, clusters_of, gold_antecedents, keep_spans, n_spans
from elmo.tasks.encoder import EncoderSettings, Place, TokenEncoder
from elmo.tasks.vectors import FrozenLayers
from test_tasks_readers import write


def conllu(*rows: str) -> str:
    """Rows of number, word and Entity (or `_`) as ten columns, a sentence."""
    lines = []
    for row in rows:
        number, word, marks = row.split()
        misc = "_" if marks == "_" else f"Discourse=x:1->2|Entity={marks}|SpaceAfter=No"
        lines.append("\t".join([number, word, *["_"] * 7, misc]))
    return "\n".join(lines) + "\n\n"


def columns(*rows: str, speaker: str = "-") -> str:
    """Rows of number, word and last column as CoNLL 2012 has them, a sentence."""
    lines = []
    for row in rows:
        number, word, marks = row.split()
        lines.append(" ".join(["bc/x", "0", number, word, *["-"] * 5, speaker, "*", marks]))
    return "\n".join(lines) + "\n\n"


CONLLU = (
    "# newdoc id = one\n# global.Entity = GRP\n# speaker = Ann\n"
    + conllu("1 The (1", "2 cat's (2(1)", "3 tail 2)1)", "4-5 wasn't _", "4 was _", "5 n't _", "5.1 x _")
    + conllu("1 It (2)", "2 ate (1)")
    + "# newdoc\n"
    + conllu("1 He (e4-person-1)", "2 saw (e5[1/2]-thing-2", "3 it e5[1/2])", "4 all (e5[2/2])", "5 him (e4-person)")
)
COLUMNS = (
    "#begin document (bc/x); part 000\n"
    + columns("0 The (12|(5", "1 cat 5)", "2 sat 12)", speaker="Ann")
    + columns("0 It (5)|(12)", "1 is -")
    + "#end document\n#begin document (bc/x); part 001\n"
    + columns("0 No -")
    + "#end document\n"
)
BEGIN = "#begin document x\n"


class TestReader:
    def test_brackets_of_conllu_nest_and_end_where_the_last_of_their_name_began(self, tmp_path: Path) -> None:
        one, two = read_documents(write(tmp_path / "a.conllu", CONLLU))
        assert one.name == "one"
        assert one.sentences == (("The", "cat's", "tail", "was", "n't"), ("It", "ate"))
        assert one.speakers == ("Ann", "")
        assert one.clusters == (((0, 3), (1, 2), (6, 7)), ((1, 3), (5, 6)))
        assert two.name == "2"
        assert two.clusters == (((0, 1), (4, 5)), ((1, 3),))  # the first piece of a mention in pieces

    def test_columns_of_conll_2012(self, tmp_path: Path) -> None:
        one, two = read_documents(write(tmp_path / "a.conll", COLUMNS))
        assert one == Document(
            "(bc/x); part 000",
            (("The", "cat", "sat"), ("It", "is")),
            ("Ann", ""),
            (((0, 2), (3, 4)), ((0, 3),)),
        )
        assert (two.name, two.sentences, two.clusters) == ("(bc/x); part 001", (("No",),), ())

    def test_words_of_conll_2012_are_made_plain(self, tmp_path: Path) -> None:
        text = BEGIN + columns("0 -LRB- -", "1 `` -", "2 and\\/or -", "3 -RRB- -") + "#end document\n"
        assert read_documents(write(tmp_path / "a.conll", text))[0].tokens == ["(", '"', "and/or", ")"]

    @pytest.mark.parametrize("text", [CONLLU, COLUMNS])
    def test_line_ends_of_windows_a_byte_order_mark_and_blanks_change_nothing(self, tmp_path: Path, text: str) -> None:
        expected = read_documents(write(tmp_path / "a", text))
        (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + text.replace("\n\n", "\n \n").replace("\n", "\r\n").encode())
        assert read_documents(str(tmp_path / "a")) == expected

    def test_a_mention_is_of_one_cluster(self, tmp_path: Path) -> None:
        text = "# newdoc\n" + conllu("1 It (1)(2)", "2 is _", "3 it (1)", "4 too (2)")
        (document,) = read_documents(write(tmp_path / "a.conllu", text))
        assert document.clusters == (((0, 1), (2, 3)), ((3, 4),))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "has no document in it"),
            ("# text = x\n", "has no document in it"),
            (conllu("1 a _"), "line 1: found a word outside of a document"),
            ("# begin document x\n0\tIt\t(1)\n", "line 2: found a word outside of a document"),
            ("# newdoc\n1\ta\n", "line 2: found 2 columns, expected 10"),
            ("# newdoc\n" + conllu("1 a _").replace("a", ""), "line 2: found no word, expected one in column 2"),
            ("# newdoc\n" + conllu("1 a _", "3 b _"), "line 3: found token number '3', expected 2"),
            ("# newdoc\n" + conllu("1 a 1)"), "line 2: found the end of a mention of '1', expected its beginning"),
            ("# newdoc\n" + conllu("1 a (1", "2 b 2)"), "line 3: found the end of a mention of '2'"),
            ("# newdoc\n" + conllu("1 a (1"), "line 2: found the beginning of a mention of '1', expected its end"),
            ("# newdoc\n" + conllu("1 a (1") + "# newdoc\n" + conllu("1 a 1)"), "found the end of a mention of '1'"),
            ("# newdoc\n" + conllu("1 a 1"), "line 2: found '1', expected brackets"),
            ("# newdoc\n" + conllu("1 a ()"), r"line 2: found '\(\)', expected brackets"),
            ("# newdoc\n" + conllu("1 a ((1))"), "expected brackets"),
            (
                "# newdoc\n" + conllu("1 a _", "1.1 b (1)"),
                "line 3: found a mention at '1.1', expected mentions of words",
            ),
            ("# newdoc id = x\n\n# newdoc\n" + conllu("1 a _"), "line 1: found document 'x' without a sentence"),
            (BEGIN + "x 0 0 a -\n", "line 2: found 5 columns, expected 12 or more"),
            (BEGIN + columns("1 a -"), "line 2: found word number '1', expected 0"),
            (BEGIN + columns("0 a (1|"), "line 2: found the beginning of a mention|a document without an end"),
            (BEGIN + columns("0 a -"), "line 1: found a document without an end"),
            (BEGIN + columns("0 a -") + BEGIN, "line 4: found the beginning of a document, expected '#end document'"),
            (BEGIN + "#end document\n" + columns("0 a -"), "line 3: found a word outside of a document"),
            (BEGIN + columns("0 a (1|2)") + "#end document\n", "line 2: found the end of a mention of '2'"),
            (BEGIN + columns("0 a 7") + "#end document\n", "line 2: found '7', expected brackets"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        path = write(tmp_path / "bad", text)
        with pytest.raises(ElmoError, match=message) as error:
            read_documents(path)
        assert path in str(error.value)

    @given(st.text(alphabet="()|12-[/]", max_size=12))
    def test_any_brackets_are_read_or_refused(self, tmp_path_factory: pytest.TempPathFactory, marks: str) -> None:
        path = tmp_path_factory.getbasetemp() / "wild.conllu"
        path.write_text("# newdoc\n" + "\t".join(["1", "a", *["_"] * 7, f"Entity={marks}"]) + "\n", encoding="utf-8")
        try:
            (document,) = read_documents(str(path))
        except ElmoError:
            return
        assert all(mention == (0, 1) for cluster in document.clusters for mention in cluster)


def clusters(text: str) -> Clusters:
    """`ab cd` as two clusters of mentions, each of one token."""
    return tuple(tuple((ord(letter), ord(letter) + 1) for letter in word) for word in text.split())


def f1(recall: float, precision: float) -> float:
    return 2 * recall * precision / (recall + precision)


class TestMetrics:
    @pytest.mark.parametrize(
        ("gold", "found", "expected"),
        [  # the cases that the official scorer is tested with, TC-A-1 to TC-L-1: recall and precision
            ("a bc def", "a bc def", {"muc": (1, 1), "b3": (1, 1), "ceafe": (1, 1)}),
            ("a bc def", "a de", {"muc": (1 / 3, 1), "b3": (7 / 18, 1), "ceafe": (1.8 / 3, 1.8 / 2)}),
            (
                "a bc def",
                "a bcx defy z",
                {"muc": (1, 3 / 5), "b3": (1, 55 / 108), "ceafe": ((1.8 + 6 / 7) / 3, (1.8 + 6 / 7) / 4)},
            ),
            ("a bc def", "a bcx dy z", {"muc": (1 / 3, 1 / 3), "b3": (5 / 9, 17 / 42), "ceafe": (2.2 / 3, 2.2 / 4)}),
            ("a bc def", "a bcxB dy z", {"muc": (1 / 3, 1 / 4), "b3": (5 / 9, 5 / 16), "ceafe": (31 / 45, 31 / 60)}),
            ("a bc def", "a bcx dy Bz", {"muc": (1 / 3, 1 / 4), "b3": (5 / 9, 17 / 48), "ceafe": (2.2 / 3, 2.2 / 4)}),
            ("a bc def", "a b c d e f", {"b3": (1 / 2, 1)}),
            ("a bc def", "abcdef", {"muc": (1, 3 / 5), "b3": (1, 7 / 18)}),
            ("a bc def", "a x y c d e z", {"b3": (13 / 36, 4 / 7)}),
            ("a bc def", "axycdez", {"muc": (1 / 3, 1 / 6), "b3": (17 / 36, 6 / 49)}),
            ("12345 67 89ABC", "12345 6789ABC", {"muc": (1, 9 / 10), "b3": (1, 16 / 21)}),
            ("12345 67 89ABC", "1234589ABC 67", {"muc": (1, 9 / 10), "b3": (1, 7 / 12)}),
            ("ABCD", "AB CD", {"muc": (2 / 3, 1)}),
            ("AB CD", "ABCD", {"muc": (1, 2 / 3)}),
            ("ABC", "AC", {"muc": (1 / 2, 1)}),
            ("BCDEGHJ", "ABC DEF GHI", {"muc": (1 / 2, 1 / 2)}),
            ("ABC DEFG", "AB CD FGH", {"muc": (2 / 5, 2 / 4)}),
            # the example of Pradhan et al. 2014
            ("abc defg", "ab cd fghi", {"muc": (0.4, 0.4), "b3": (5 / 12, 1 / 2), "ceafe": (0.65, 1.3 / 3)}),
        ],
    )
    def test_what_the_official_scorer_says(
        self, gold: str, found: str, expected: dict[str, tuple[float, float]]
    ) -> None:
        scores = coref_scores([(clusters(gold), clusters(found))])
        assert {name: scores[name] for name in expected} == pytest.approx(
            {name: f1(*pair) for name, pair in expected.items()}
        )

    def test_the_score_is_the_mean_of_the_three(self) -> None:
        scores = coref_scores([(clusters("abc defg"), clusters("ab cd fghi"))])
        assert scores["f1"] == pytest.approx((scores["muc"] + scores["b3"] + scores["ceafe"]) / 3)
        assert set(scores) == {"f1", "muc", "b3", "ceafe"}

    @pytest.mark.parametrize(("gold", "found"), [("", ""), ("ab", ""), ("", "ab"), ("ab", "cd")])
    def test_nothing_right_is_zero(self, gold: str, found: str) -> None:
        assert set(coref_scores([(clusters(gold), clusters(found))]).values()) == {0.0}

    def test_documents_are_counted_together_and_not_averaged(self) -> None:
        pairs = [(clusters("ab"), clusters("ab")), (clusters("abcd"), ()), ((), clusters("xy"))]
        scores = coref_scores(pairs)
        assert scores["muc"] == pytest.approx(f1(1 / 4, 1 / 2))
        assert scores["b3"] == pytest.approx(f1(2 / 6, 2 / 4))
        assert scores["ceafe"] == pytest.approx(f1(1 / 2, 1 / 2))

    @given(
        st.tuples(st.integers(0, 6), st.integers(0, 6)).flatmap(
            lambda shape: st.lists(
                st.lists(st.sampled_from([0.0, 0.25, 0.4, 0.5, 1.0]), min_size=shape[1], max_size=shape[1]),
                min_size=shape[0],
                max_size=shape[0],
            ).map(lambda rows: np.array(rows).reshape(shape))
        )
    )
    def test_pairs_are_the_best_of_all(self, scores: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
        found = best_pairs(scores)
        rows, found_columns = {row for row, _ in found}, {column for _, column in found}
        assert len(rows) == len(found_columns) == len(found) == min(scores.shape)
        short = scores if scores.shape[0] <= scores.shape[1] else scores.T
        every = itertools.permutations(range(short.shape[1]), short.shape[0])
        best = max(sum(short[row, column] for row, column in enumerate(one)) for one in every)
        assert sum(scores[pair] for pair in found) == pytest.approx(best)


def greedy(scores: Sequence[float], spans: Sequence[tuple[int, int]], n_kept: int) -> list[int]:
    """The best first, without those that cross a better one, as Lee et al. say it."""
    kept: list[int] = []
    for one in sorted(range(len(scores)), key=lambda place: -scores[place]):
        first, last = spans[one]
        crossed = any(first < f <= last < e or f < first <= e < last for f, e in (spans[other] for other in kept))
        if not crossed and len(kept) < n_kept:
            kept.append(one)
    return sorted(kept)


class TestSpans:
    def test_all_spans_of_each_sentence_up_to_the_width(self) -> None:
        firsts, lasts = all_spans([3, 1], 2)
        assert list(zip(firsts, lasts, strict=True)) == [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (3, 3)]
        assert [n_spans(length, 2) for length in (0, 1, 2, 3)] == [0, 1, 3, 5]

    @settings(deadline=None)
    @given(st.integers(0, 2**32 - 1), st.integers(4, 40))
    def test_the_best_that_cross_no_better_one_are_kept(self, seed: int, length: int) -> None:
        firsts, lasts = map(torch.from_numpy, all_spans([length, length // 2], 5))
        scores = torch.randn(len(firsts), generator=torch.Generator().manual_seed(seed))
        n_kept = length // 3
        spans = list(zip(firsts.tolist(), lasts.tolist(), strict=True))
        best = scores.topk(2 * n_kept).indices.tolist()
        expected = greedy([scores[place].item() for place in best], [spans[place] for place in best], n_kept)
        found = keep_spans(scores, firsts, lasts, n_kept).tolist()
        assert len(found) == n_kept
        assert found == sorted(found)
        assert {best[place] for place in expected} <= set(found)

    def test_links_make_clusters_and_what_is_linked_to_nothing_is_left_out(self) -> None:
        links = [((0, 1), 0), ((2, 3), 0), ((4, 5), 2), ((6, 7), 0), ((8, 9), 3), ((9, 10), 2)]
        assert clusters_of(links) == (((0, 1), (4, 5)), ((2, 3), (8, 9)), ((6, 7), (9, 10)))
        assert clusters_of([]) == ()

    def test_gold_antecedents_are_those_of_the_same_cluster_and_else_none(self) -> None:
        found = gold_antecedents(torch.tensor([1, 0, 1, 0, 1]), 2).int().tolist()
        assert found == [[1, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]


def story(man: str, woman: str, verb: str) -> Document:
    """Two people, told apart by their pronouns."""
    sentences = ((man, verb, woman, "."), ("She", "saw", "him", "."), ("He", "left", "."))
    return Document(man + woman, sentences, ("",) * 3, (((0, 1), (6, 7), (8, 9)), ((2, 3), (4, 5))))


MEN, WOMEN = ("Bob", "Tom", "Max", "Jim", "Leo"), ("Ann", "Eve")
STORIES = [story(man, woman, verb) for man in MEN for woman, verb in zip(WOMEN, ("met", "likes"), strict=True)]
TINY = CorefSettings(hidden=12, scorer=16, features=4, span_width=3, spans=0.8, antecedents=8, dropout=0.0)
PLACES: tuple[Place, ...] = ("none", "input", "output", "both")


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> FrozenLayers:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    sentences = [tokens for one in [*STORIES, *EDGES] for tokens in one.sentences]
    return FrozenLayers(elmo.load(folder).embedder(layers="all"), sentences)


EDGES = [
    Document("token", (("Hm",),), ("",)),
    Document("short", (("Go",), ("Oh", "no")), ("Ann", "Bob"), (((0, 1), (1, 3)),)),
]


def made(place: Place, frozen: FrozenLayers, sizes: CorefSettings = TINY) -> CorefModel:
    torch.manual_seed(0)
    known = EncoderSettings(elmo=place, vectors="none", word_dim=16, characters=4, dropout=0.0, elmo_dropout=0.0)
    words = sorted({token for one in STORIES for token in one.tokens})
    return Coreference().model(TokenEncoder(known, words, elmo=frozen.shape if place != "none" else None), (), sizes)


def answered(model: CorefModel, documents: Sequence[Document], frozen: FrozenLayers) -> list[Clusters]:
    model.eval()
    with torch.no_grad():
        return model.answers(model.collate(documents, frozen), documents)


class TestModel:
    @pytest.mark.parametrize("place", ["none", "both"])
    def test_it_learns_ten_stories_to_the_end(self, frozen: FrozenLayers, place: Place) -> None:
        model = made(place, frozen)
        batch = model.collate(STORIES, frozen)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        losses = []
        for _ in range(60):
            loss = model.train().loss(batch)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.05 * losses[0]
        found = answered(model, [replace(one, clusters=()) for one in STORIES], frozen)
        assert Coreference().scores(STORIES, found)["f1"] == 1
        assert found == [one.clusters for one in STORIES]

    @pytest.mark.parametrize("place", PLACES)
    def test_a_document_is_answered_alike_in_any_company(self, frozen: FrozenLayers, place: Place) -> None:
        model = made(place, frozen).eval()
        documents = [EDGES[1], STORIES[0], EDGES[0], STORIES[3]]
        with torch.no_grad():
            together = model.collate(documents, frozen)
            whole = [(0, len(lengths)) for lengths in together.documents]
            ranked = list(model._documents(together, model._tokens(together), whole))
            for document, one in zip(documents, ranked, strict=True):
                alone = model.collate([document], frozen)
                (expected,) = model._documents(alone, model._tokens(alone), [(0, len(document.sentences))])
                torch.testing.assert_close(one.scores, expected.scores, atol=1e-5, rtol=1e-5)
        assert answered(model, documents, frozen) == [answered(model, [one], frozen)[0] for one in documents]

    @pytest.mark.parametrize("document", EDGES, ids=lambda one: one.name)
    def test_the_smallest_documents_have_a_loss_and_an_answer(self, frozen: FrozenLayers, document: Document) -> None:
        model = made("both", frozen)
        loss = model.loss(model.collate([document], frozen))
        torch.autograd.backward(loss)
        assert torch.isfinite(loss)
        assert len(answered(model, [document], frozen)) == 1

    @pytest.mark.parametrize("weight", [0.0, 0.5])
    def test_the_loss_is_that_of_any_gold_antecedent_and_of_mentions(self, frozen: FrozenLayers, weight: float) -> None:
        model = made("none", frozen, replace(TINY, mentions=weight)).eval()
        batch = model.collate(STORIES[:1], frozen)
        (ranked,) = model._documents(batch, model._tokens(batch), [(0, 3)])
        clusters = batch.clusters[ranked.spans].tolist()
        loss = 0.0
        for place, row in enumerate(ranked.scores.softmax(dim=1).tolist()):
            same = [k for k in range(1, len(row)) if place >= k and clusters[place - k] == clusters[place] > 0]
            loss -= np.log(sum(row[k] for k in same or [0]))
        for score, number in zip(ranked.mention.tolist(), batch.clusters.tolist(), strict=True):
            loss += weight * np.log1p(np.exp(-score if number else score))
        assert sorted(batch.clusters.tolist())[-6:] == [0, 1, 1, 1, 2, 2]
        assert model.loss(batch).item() == pytest.approx(loss / len(clusters), rel=1e-4)

    def test_training_takes_a_stretch_of_a_long_document_that_the_generator_draws(self, frozen: FrozenLayers) -> None:
        long = Document("long", STORIES[0].sentences * 3, ("",) * 9, STORIES[0].clusters)
        model = made("none", frozen, replace(TINY, sentences=3)).eval()
        batch = model.collate([long], frozen)
        with torch.no_grad():
            losses = []
            for seed in (*range(20), *range(20)):
                torch.manual_seed(seed)
                losses.append(round(model.loss(batch).item(), 5))
            assert losses[:20] == losses[20:]
            assert len(set(losses)) > 2
            short = [model.loss(model.collate([STORIES[0]], frozen)).item()]
        assert round(short[0], 5) in losses

    def test_memory_is_bounded_by_parts_that_change_nothing(
        self, frozen: FrozenLayers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = made("both", frozen).eval()
        batch = model.collate(STORIES, frozen)
        whole = model.loss(batch)
        monkeypatch.setattr("elmo.tasks.coref_model._SPANS", 3)
        monkeypatch.setattr("elmo.tasks.coref_model._PAIRED", 2)
        torch.testing.assert_close(model.loss(batch), whole)

    def test_who_speaks_can_matter(self, frozen: FrozenLayers) -> None:
        model = made("none", frozen).eval()
        losses = set()
        for speakers in (("", "", ""), ("a", "a", "a"), ("a", "b", "a")):
            losses.add(model.loss(model.collate([replace(STORIES[0], speakers=speakers)], frozen)).item())
        assert len(losses) == 3

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"span_width": 0}, "model.span_width is 0"),
            ({"antecedents": -1}, "model.antecedents is -1"),
            ({"spans": 0.0}, "model.spans is 0.0"),
            ({"mentions": -0.1}, "model.mentions is -0.1"),
            ({"dropout": 1.0}, "model.dropout is 1.0"),
        ],
    )
    def test_sizes_that_no_model_can_have_are_refused(self, values: dict[str, int], message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            CorefSettings(**values)


class TestTask:
    def test_new_text_is_a_sentence_a_line_and_a_blank_line_between_documents(self) -> None:
        one, two = Coreference().parse(["", "Ann left .", "She ran .", "", "  ", "Bye", ""])
        assert one == Document("1", (("Ann", "left", "."), ("She", "ran", ".")), ("", ""))
        assert two == Document("2", (("Bye",),), ("",))

    def test_an_answer_for_people_and_for_programs(self) -> None:
        document = STORIES[0]
        assert Coreference().show(document, document.clusters) == "document BobAnn:\n  Bob; him; He\n  Ann; She"
        assert Coreference().show(document, ()) == "document BobAnn:\n  nothing mentioned twice"
        assert Coreference().record(EDGES[1], EDGES[1].clusters) == {
            "document": "short",
            "sentences": [["Go"], ["Oh", "no"]],
            "clusters": [[[0, 1], [1, 3]]],
        }
