"""Classes of texts: trees and how they can be wrong, phrases, what the model learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo
from conftest import small_options, write_model
from elmo.errors import ElmoError
from elmo.tasks.encoder import Place
from elmo.tasks.sentiment import ClassifierSettings, Sentiment, Verdict
from elmo.tasks.settings import TaskConfig
from elmo.tasks.training import TaskTraining
from elmo.tasks.trees import LabelledText, read_labelled
from elmo.tasks.vectors import FrozenLayers
from toy_tasks import PLACES, answer, learn, loss_of, toy_model

TASK = Sentiment()
SMALL = ClassifierSettings(hidden=12, dropout=0)
TREE = "(3 (2 It) (4 (3 works) (2 .)))"

TOYS = [
    LabelledText(tuple(text.split()), label)
    for label, text in [
        ("0", "never again ."),
        ("0", "bad , bad , bad"),
        ("1", "not good"),
        ("1", "it is not a good film ."),
        ("2", "a film"),
        ("2", "film"),
        ("3", "good"),
        ("3", "it is not bad at all"),
        ("4", "so very good !"),
        ("4", "a film to see again and again"),
    ]
]


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> FrozenLayers:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return FrozenLayers(elmo.load(folder).embedder(layers="all"), [text.tokens for text in TOYS])


def write(folder: Path, text: str) -> str:
    (folder / "a.txt").write_text(text, encoding="utf-8")
    return str(folder / "a.txt")


class TestReading:
    def test_a_tree_has_a_label_for_each_part(self, tmp_path: Path) -> None:
        phrases = (("2", 0, 1), ("3", 1, 2), ("2", 2, 3), ("4", 1, 3), ("3", 0, 3))
        assert read_labelled(write(tmp_path, TREE + "\n\n(1 no)\n")) == [
            LabelledText(("It", "works", "."), "3", phrases),
            LabelledText(("no",), "1", (("1", 0, 1),)),
        ]

    def test_a_word_may_have_a_no_break_space_in_it(self, tmp_path: Path) -> None:
        assert read_labelled(write(tmp_path, "(2 (2 8\N{NO-BREAK SPACE}1\\/2) (2 .))"))[0].tokens[0] == "8\xa01/2"

    def test_words_of_trees_are_made_plain(self, tmp_path: Path) -> None:
        path = write(tmp_path, r"(2 (2 -LRB-) (2 (2 ``) (2 (2 and\/or) (2 (2 \*) (2 -RRB-)))))")
        assert read_labelled(path)[0].tokens == ("(", '"', "and/or", "*", ")")

    def test_a_line_may_be_a_label_and_a_text(self, tmp_path: Path) -> None:
        path = write(tmp_path, "very good\tIt works ( well ) .\r\n2\tx\n")
        assert read_labelled(path) == [
            LabelledText(("It", "works", "(", "well", ")", "."), "very good"),
            LabelledText(("x",), "2"),
        ]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("It works", "found 'It works', expected a tree such as"),
            ("3\t ", "expected a tree such as"),
            ("\tIt works", "expected a tree such as"),
            ("(3 (2 It) (3 works)", "found the line's end with 1 open brackets, expected an end for each"),
            ("(3 (2 It) (3 works)))", r"found '\)' at character 21, expected one tree"),
            ("(3 It works)", r"found '\(3 It works\)' at character 1, expected one tree, its nodes \(LABEL WORD\)"),
            ("(3 (2 It) works)", "found 'works\\)' at character 11"),
            ("(3 (2 It) ())", r"found '\(\)\)' at character 11"),
            ("(3)", r"found '\(3\)' at character 1"),
            ("((2 It))", "at character 1"),
            ("(2 It) (3 works)", r"found '\(3 works\)' at character 8"),
            ("(2 It) x", "found 'x' at character 8"),
        ],
    )
    def test_a_bad_line_is_named_with_what_was_expected(self, tmp_path: Path, line: str, message: str) -> None:
        path = write(tmp_path, TREE + "\n" + line)
        with pytest.raises(ElmoError, match=message) as error:
            read_labelled(path)
        assert f"{path}, line 2" in str(error.value)

    def test_an_empty_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="has no labelled text in it"):
            read_labelled(write(tmp_path, "\n"))

    def test_a_deep_tree_needs_no_recursion(self, tmp_path: Path) -> None:
        deep = "(1 " * 20_000 + "(2 x)" + ")" * 20_000
        assert len(read_labelled(write(tmp_path, deep))[0].phrases) == 20_001

    @given(
        st.recursive(
            st.tuples(st.sampled_from("01234"), st.text("abé", min_size=1, max_size=3)),
            lambda node: st.tuples(st.sampled_from("01234"), st.lists(node, min_size=1, max_size=3)),
            max_leaves=8,
        )
    )
    def test_any_tree_is_read_as_it_was_written(self, tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
        def text_of(node: Any) -> str:
            label, inside = node
            return f"({label} {inside if isinstance(inside, str) else ' '.join(map(text_of, inside))})"

        def count(node: Any) -> int:
            return 1 if isinstance(node[1], str) else 1 + sum(map(count, node[1]))

        def words(node: Any) -> list[str]:
            return [node[1]] if isinstance(node[1], str) else [word for child in node[1] for word in words(child)]

        (found,) = read_labelled(write(tmp_path_factory.getbasetemp(), text_of(tree)))
        assert found.tokens == tuple(words(tree))
        assert found.label == tree[0]
        assert len(found.phrases) == count(tree)
        assert found.phrases[-1] == (tree[0], 0, len(found.tokens))

    @given(st.text("()23 a\t", max_size=12))
    def test_any_line_is_read_or_refused_with_its_number(
        self, tmp_path_factory: pytest.TempPathFactory, line: str
    ) -> None:
        path = write(tmp_path_factory.getbasetemp(), "2\ta\n" + line)
        try:
            found = read_labelled(path)
        except ElmoError as error:
            assert f"{path}, line 2" in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert all(text.tokens and text.label for text in found)
            assert len(found) == 1 + bool(line.strip())


class TestPhrases:
    text = LabelledText(("It", "works", "."), "3", (("2", 0, 1), ("4", 1, 3), ("3", 0, 3)))

    def test_long_enough_phrases_are_trained_on_each_once(self) -> None:
        again = LabelledText(("It", "works"), "2", (("2", 0, 1), ("2", 0, 2)))
        other = LabelledText(("!",), "4")
        found = TASK.for_training([self.text, self.text, again, other], ClassifierSettings(shortest_phrase=2))
        assert found == [
            LabelledText(("It", "works", "."), "3"),
            LabelledText(("It", "works"), "2"),
            other,
            LabelledText(("works", "."), "4"),
        ]

    def test_those_of_a_class_that_no_text_has_teach_nothing(self) -> None:
        """As where trees with a neutral root were left out."""
        found = TASK.for_training([self.text], ClassifierSettings(shortest_phrase=1))
        assert found == [LabelledText(self.text.tokens, "3")]

    def test_whole_texts_stay_however_short(self) -> None:
        whole = [LabelledText(self.text.tokens, "3")]
        assert TASK.for_training([self.text], ClassifierSettings(shortest_phrase=4)) == whole

    def test_0_is_whole_texts_as_they_are(self) -> None:
        assert TASK.for_training([self.text, self.text], ClassifierSettings(shortest_phrase=0)) == [
            self.text,
            self.text,
        ]

    def test_a_run_trains_on_phrases_of_its_share_of_the_texts(self, frozen: FrozenLayers) -> None:
        other = LabelledText(("No", "good"), "0", (("1", 0, 1), ("3", 1, 2), ("0", 0, 2)))
        config = TaskConfig.of(TASK, sets=["train.share=0.5", "model.shortest_phrase=2", "model.hidden=2"])
        model = toy_model(TASK, [self.text, other], config.model, frozen)
        found = TaskTraining(TASK, config, model, [self.text, other], [self.text]).train_examples
        assert found in (TASK.for_training([self.text], config.model), TASK.for_training([other], config.model))


class TestModel:
    @pytest.mark.parametrize("place", PLACES)
    def test_it_learns_a_few_texts_to_the_end(self, frozen: FrozenLayers, place: Place) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen, place)
        losses = learn(model, TOYS, frozen, steps=80)
        assert losses[-1] < losses[0] / 20
        assert TASK.scores(TOYS, answer(model, TOYS, frozen)) == {"accuracy": 1}

    @pytest.mark.parametrize("place", PLACES)
    def test_an_answer_does_not_depend_on_the_other_rows(self, frozen: FrozenLayers, place: Place) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen, place)
        for text, together in zip(TOYS, answer(model, TOYS, frozen), strict=True):
            (alone,) = answer(model, [text], frozen)
            assert together.shares == pytest.approx(alone.shares, rel=1e-4)

    def test_an_answer_is_the_most_probable_class(self, frozen: FrozenLayers) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen)
        for verdict in answer(model, TOYS, frozen):
            assert sum(verdict.shares.values()) == pytest.approx(1)
            assert verdict.shares[verdict.label] == max(verdict.shares.values())

    def test_a_class_that_training_had_not_counts_for_nothing_in_the_loss(self, frozen: FrozenLayers) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen)
        new = LabelledText(("good",), "5")
        assert loss_of(model, [TOYS[0], new], frozen) == pytest.approx(loss_of(model, TOYS[:1], frozen), rel=1e-4)

    def test_it_answers_new_text(self, frozen: FrozenLayers) -> None:
        model = toy_model(TASK, TOYS, SMALL, frozen)
        examples = TASK.parse(["utterly unheard of", "", "x"])
        assert examples == [LabelledText(("utterly", "unheard", "of")), LabelledText(("x",))]
        assert len(answer(model, examples, frozen)) == 2

    @pytest.mark.parametrize("change", [{"hidden": 0}, {"shortest_phrase": -1}, {"dropout": 1.0}])
    def test_sizes_that_no_model_has_are_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(ElmoError, match=f"model.{next(iter(change))}"):
            ClassifierSettings(**change)


def test_answers_are_shown_before_the_text_and_given_with_all_shares() -> None:
    text, verdict = LabelledText(("so", "good")), Verdict("4", {"0": 0.125, "4": 0.875})
    assert TASK.show(text, verdict) == "4 (0.88)\tso good"
    assert TASK.record(text, verdict) == {"tokens": ["so", "good"], "label": "4", "shares": {"0": 0.125, "4": 0.875}}
