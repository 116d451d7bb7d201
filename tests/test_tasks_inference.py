"""Inference: pairs as published, and ESIM."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from elmo.errors import ElmoError
from elmo.tasks.encoder import Place
from elmo.tasks.inference import Inference, InferenceModel, InferenceSettings, aligned
from elmo.tasks.pairs import Pair, read_pairs
from elmo.tasks.texts import tokenise
from test_tasks_readers import write
from toy_tasks import PLACES, answer, assert_rows_are_alone, frozen_layers, learn, toy_model

SICK = (
    "pair_ID\tsentence_A\tsentence_B\tentailment_label\tSemEval_set\n"
    "1\tA dog runs\tAn animal moves\tENTAILMENT\tTRAIN\n"
    "2\tA dog runs\tA cat sleeps\tNEUTRAL\tTRIAL\n"
)
TABLE = "sentence1\tsentence2\tgold_label\n"


def pair(premise: str, hypothesis: str, label: str | None = None) -> Pair:
    return Pair(tokenise(premise), tokenise(hypothesis), label)


class TestPairs:
    def test_objects_a_line_without_those_that_have_no_label(self, tmp_path: Path) -> None:
        rows: list[dict[str, Any]] = [
            {"sentence1": "A ball.", "sentence2": "It's round.", "gold_label": "neutral", "pairID": "x"},
            {"sentence1": "", "sentence2": "Yes", "gold_label": "-"},
        ]
        path = write(tmp_path / "snli.jsonl", "\n".join(map(json.dumps, rows)))
        assert read_pairs(path) == [pair("A ball.", "It's round.", "neutral")]

    def test_the_tokens_are_words_and_punctuation(self, tmp_path: Path) -> None:
        (found,) = read_pairs(write(tmp_path / "a.tsv", TABLE + "A ball.\tIt isn't.\tneutral"))
        assert found.premise.tokens == ("A", "ball", ".")
        assert found.hypothesis.tokens == ("It", "is", "n't", ".")

    def test_tables_with_columns_in_any_order_and_quotes_as_programs_write_them(self, tmp_path: Path) -> None:
        text = 'gold_label\tid\tsentence2\tsentence1\r\nContradiction\t1\tno\t"a ""big"" dog"\r\n-\t2\ta\tb\r\n'
        assert read_pairs(write(tmp_path / "a.txt", text)) == [pair('a "big" dog', "no", "contradiction")]

    @pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
    def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(self, tmp_path: Path, name: str) -> None:
        row = {"sentence1": "a", "sentence2": "b", "gold_label": "yes"}
        text = json.dumps(row) + "\n\n" if name == "a.jsonl" else TABLE + "a\tb\tyes \n\na\tb\t- \n"
        expected = read_pairs(write(tmp_path / name, text))
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
        assert read_pairs(str(tmp_path / name)) == expected == [pair("a", "b", "yes")]

    def test_quotes_that_are_the_sentence_s_own_stay(self, tmp_path: Path) -> None:
        (found,) = read_pairs(write(tmp_path / "a.tsv", TABLE + '"Go" means "leave"\tno\tneutral'))
        assert found.premise.raw == '"Go" means "leave"'

    def test_a_part_of_sick_in_its_file_and_in_an_archive(self, tmp_path: Path) -> None:
        path = write(tmp_path / "SICK.txt", SICK)
        assert read_pairs(f"{path}#TRAIN") == [pair("A dog runs", "An animal moves", "entailment")]
        with tarfile.open(tmp_path / "nli.tar.xz", "w:xz") as tar:
            member = tarfile.TarInfo("nli/SICK.txt")
            member.size = len(SICK)
            tar.addfile(member, io.BytesIO(SICK.encode()))
        assert read_pairs(f"{tmp_path}/nli.tar.xz/nli/SICK.txt#TRIAL")[0].label == "neutral"

    def test_a_file_may_have_that_sign_in_its_name(self, tmp_path: Path) -> None:
        assert len(read_pairs(write(tmp_path / "part#1", TABLE + "a\tb\tyes"))) == 1

    @pytest.mark.parametrize(
        ("part", "message"),
        [
            ("", "no part '' in its column SemEval_set: give one of .*SICK.txt#TRAIN, .*#TRIAL"),
            ("#DEV", "no part 'DEV'"),
        ],
    )
    def test_a_part_must_be_chosen_and_be_there(self, tmp_path: Path, part: str, message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            read_pairs(write(tmp_path / "SICK.txt", SICK) + part)

    @pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
    def test_a_part_of_a_file_that_has_none_is_refused(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / name, TABLE + "a\tb\tyes")
        with pytest.raises(ElmoError, match="give it without #TRAIN"):
            read_pairs(path + "#TRAIN")

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.jsonl", "{", "line 1: found no JSON"),
            ("a.jsonl", "\n[1]", "line 2: found \\[1\\], expected an object a line"),
            ("a.jsonl", '{"sentence1": "a"}', "line 1: found no sentence2 and no gold_label, expected an object with"),
            (
                "a.jsonl",
                '{"sentence1": 1, "sentence2": "b", "gold_label": "x"}',
                "line 1, sentence 1: found 1, expected",
            ),
            ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "gold_label": null}', "line 1: found the label None"),
            ("a.jsonl", "", "has no pair with a label in it"),
            (
                "a.jsonl",
                '{"sentence1": "a", "sentence2": "b", "gold_label": "\\udc00"}',
                r"line 1: found half a surrogate pair \('\\udc00'\)",
            ),
            ("a.tsv", "", "line 1: found '', expected a line of names"),
            ("a.tsv", "one\ttwo\n", "line 1: found 'one two', expected a line of names, with tabs, that has sentence1"),
            ("a.tsv", TABLE + "a\tb\n", "line 2: found 2 columns, expected 3"),
            ("a.tsv", TABLE + "a\tb\tx\nc\td\t\n", "line 3: found the label '', expected a name"),
            ("a.tsv", TABLE + "a\t \tx\n", "line 2, sentence 2: found ' ', expected a text with words in it"),
            ("a.tsv", TABLE + "a\tb\t-\n", "has no pair with a label in it"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path: Path, name: str, text: str, message: str) -> None:
        path = write(tmp_path / name, text)
        with pytest.raises(ElmoError, match=message) as error:
            read_pairs(path)
        assert path in str(error.value)


TOY = [
    pair("A man runs in a park.", "A man runs.", "entailment"),
    pair("A man runs in a park.", "A man sleeps.", "contradiction"),
    pair("A man runs in a park.", "A tall man runs.", "neutral"),
    pair("Two dogs play", "Dogs play", "entailment"),
    pair("Two dogs play", "Dogs sleep", "contradiction"),
    pair("Two dogs play", "Big dogs play", "neutral"),
    pair("She reads.", "She reads.", "entailment"),
    pair("She reads.", "She doesn't read.", "contradiction"),
    pair("She reads.", "She reads a long book about the sea and its many old ships.", "neutral"),
    pair("Yes", "No", "contradiction"),
]
SMALL = InferenceSettings(hidden=12, dropout=0.0)


class TestModel:
    @pytest.mark.parametrize("place", ["none", "both"])
    def test_it_learns_ten_pairs_to_the_end(self, tmp_path: Path, place: Place) -> None:
        task = Inference()
        frozen = frozen_layers(tmp_path, task, TOY)
        model = toy_model(task, TOY, SMALL, frozen, place)
        losses = learn(model, TOY, frozen, steps=40)
        assert losses[-1] < 0.2 * losses[0]
        assert task.scores(TOY, answer(model, TOY, frozen)) == {"accuracy": 1.0}

    @pytest.mark.parametrize("place", PLACES)
    def test_a_pair_s_answer_does_not_depend_on_the_other_rows(self, tmp_path: Path, place: Place) -> None:
        task = Inference()
        frozen = frozen_layers(tmp_path, task, TOY)
        assert_rows_are_alone(toy_model(task, TOY, SMALL, frozen, place), TOY, frozen)

    def test_elmo_widens_what_it_stands_beside(self, tmp_path: Path) -> None:
        frozen = frozen_layers(tmp_path, Inference(), TOY)
        models = [toy_model(Inference(), TOY, SMALL, frozen, place) for place in PLACES]
        widths = [(m.reading.lstms[0].input_size, m.project.in_features) for m in models]  # type: ignore[union-attr,index]
        assert widths == [(40, 96), (50, 96), (40, 136), (50, 136)]

    def test_a_pair_without_a_label_is_answered(self) -> None:
        model = toy_model(Inference(), TOY, SMALL, None)
        found = answer(model, Inference().parse(["Yes\tNo", '{"sentence1": "a b", "sentence2": "c"}']), None)
        assert set(found) <= {"contradiction", "entailment", "neutral"}

    def test_dropout_makes_no_difference_between_a_sentence_and_itself(self) -> None:
        same = [pair(text, text, "entailment") for text in ("A man runs in a park.", "Yes")]
        model = toy_model(Inference(), same, InferenceSettings(hidden=12, dropout=0.5), None).train()
        assert isinstance(model, InferenceModel)
        sentences = model.collate(same, None).sentences
        premise, hypothesis = model._composed(sentences).chunk(2)
        assert torch.equal(premise, hypothesis)
        assert not torch.equal(premise, model._composed(sentences).chunk(2)[0])

    def test_tokens_are_aligned_with_those_like_them_and_never_with_none(self) -> None:
        one, two, none = [20.0, 0.0], [0.0, 20.0], [0.0, 0.0]
        read = torch.tensor([[one, two, one], [two, one, none]])
        mask = torch.tensor([[True, True, True], [True, True, False]])
        torch.testing.assert_close(aligned(read, mask)[:, :2], torch.tensor([[one, two], [two, one]]))
        alone = aligned(torch.tensor([[one], [two]]), torch.ones(2, 1, dtype=torch.bool))
        assert alone.tolist() == [[two], [one]]  # one token has nothing else to be like

    @pytest.mark.parametrize("settings", [{"hidden": 0}, {"dropout": 1.0}])
    def test_sizes_that_cannot_be_are_refused(self, settings: Any) -> None:
        with pytest.raises(ElmoError, match=r"model\.hidden must be 1 or more"):
            InferenceSettings(**settings)


class TestTask:
    def test_all_pairs_are_for_training(self) -> None:
        assert Inference().for_training(TOY, SMALL) == TOY

    def test_labels_are_those_of_training_and_another_is_never_right(self) -> None:
        task = Inference()
        assert task.labels(TOY) == ("contradiction", "entailment", "neutral")
        model = toy_model(task, TOY, SMALL, None)
        assert isinstance(model, InferenceModel)
        unseen = [pair("a", "b", "unheard of")]
        assert task.scores(unseen, answer(model, unseen, None)) == {"accuracy": 0.0}

    def test_an_answer_for_programs_and_for_people(self) -> None:
        example = pair("A ball.", "Round.")
        assert Inference().record(example, "neutral") == {
            "sentence1": "A ball.",
            "sentence2": "Round.",
            "label": "neutral",
        }
        assert Inference().show(example, "neutral") == "A ball. | Round. | neutral"
