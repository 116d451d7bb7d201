"""Questions about paragraphs: SQuAD's JSON, its scores, and BiDAF with self-attention."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import ElmoError
from elmo.tasks.encoder import Place
from elmo.tasks.question_metrics import exact_match, normalised, question_scores, word_f1
from elmo.tasks.questions import (
    QuestionAttention,
    QuestionBatch,
    Questions,
    QuestionSettings,
    Relevance,
    SelfAttention,
    best_spans,
    surprise,
)
from elmo.tasks.squad import Question, read_squad
from elmo.tasks.texts import tokenise
from test_tasks_readers import write
from toy_tasks import PLACES, answer, assert_rows_are_alone, frozen_layers, learn, toy_model

CONTEXT = "In May 1815 the King's army, 40,000 men, marched to Waterloo."


def document(**answer: Any) -> dict[str, Any]:
    """A file with one question, whose first answer may be changed."""
    first = {"text": "40,000", "answer_start": CONTEXT.index("40,000")} | answer
    question = {"id": "1", "question": "How many men?", "answers": [first, {"text": "40,000 men", "answer_start": 29}]}
    return {"version": "1.1", "data": [{"title": "War", "paragraphs": [{"context": CONTEXT, "qas": [question]}]}]}


def changed(path: str, value: Any) -> dict[str, Any]:
    """That file with another value at a place, or with none there."""
    found = document()
    *way, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
    inner: Any = found
    for step in way:
        inner = inner[step]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return found


class TestSquad:
    def test_questions_share_their_paragraph_and_have_all_answers(self, tmp_path: Path) -> None:
        data = document()
        questions = data["data"][0]["paragraphs"][0]["qas"]
        questions.append(deepcopy(questions[0]) | {"question": "Where?"})
        one, two = read_squad(write(tmp_path / "a.json", json.dumps(data)))
        assert one.answers == ("40,000", "40,000 men")
        assert one.span is not None
        assert one.paragraph.between(*one.span) == "40,000"
        assert two.text.tokens == ("Where", "?")
        assert two.paragraph is one.paragraph

    @pytest.mark.parametrize(
        ("text", "widened"),
        [("King", "King"), ("King'", "King's"), (" army", "army"), ("ray", None), ("815 the K", "1815 the King")],
    )
    def test_an_answer_is_widened_to_whole_tokens(self, tmp_path: Path, text: str, widened: str | None) -> None:
        path = write(tmp_path / "a.json", json.dumps(document(text=text, answer_start=CONTEXT.find(text))))
        if widened is None:
            with pytest.raises(ElmoError, match=r"answers\[0\]: found '' at character -1"):
                read_squad(path)
            return
        (found,) = read_squad(path)
        assert found.span is not None
        assert found.answers[0] == text
        assert found.paragraph.between(*found.span) == widened

    def test_line_ends_of_windows_and_a_byte_order_mark_change_nothing(self, tmp_path: Path) -> None:
        expected = read_squad(write(tmp_path / "a.json", json.dumps(document(), indent=1)))
        (tmp_path / "a.json").write_bytes(json.dumps(document(), indent=1).replace("\n", "\r\n").encode("utf-8-sig"))
        assert read_squad(str(tmp_path / "a.json")) == expected

    def test_an_answer_stands_wherever_its_tokens_do(self) -> None:
        paragraph = tokenise("Ann saw Ann, and Ann saw Bob saw Ann saw.")
        found = Question(tokenise("Who?"), paragraph, ("Ann saw",), (0, 1))
        assert [paragraph.between(*span) for span in found.spans] == ["Ann saw"] * 3
        assert found.spans[0] == found.span
        assert Question(tokenise("Who?"), paragraph).spans == ()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "found no JSON"),
            ("{", "found no JSON"),
            ("[" * 100_000, "found no JSON"),
            ("[]", "found \\[\\], expected an object as in SQuAD 1.1"),
            ("{}", ", data: found None, expected a list"),
            ('{"data": []}', "has no question in it"),
            ('{"data": [7]}', "data\\[0\\]: found 7, expected an object"),
            (changed("data.0.paragraphs", 1), "data\\[0\\].paragraphs: found 1, expected a list"),
            (changed("data.0.paragraphs.0.context", None), "paragraphs\\[0\\].context: found None, expected a text"),
            (
                changed("data.0.paragraphs.0.context", " "),
                "paragraphs\\[0\\].context: found ' ', expected a text with words",
            ),
            (changed("data.0.paragraphs.0.qas", {}), "paragraphs\\[0\\].qas: found {}, expected a list"),
            (changed("data.0.paragraphs.0.qas.0.question", 3), "qas\\[0\\].question: found 3, expected a text"),
            (changed("data.0.paragraphs.0.qas.0.answers", []), "qas\\[0\\].answers: found none, expected one"),
            (document(text=5), "qas\\[0\\].answers\\[0\\]: found {.*}, expected a text and its answer_start"),
            (document(answer_start="29"), "expected a text and its answer_start, a whole number"),
            (document(answer_start=True), "expected a text and its answer_start, a whole number"),
            (document(answer_start=30), "answers\\[0\\]: found '0,000 ' at character 30 .*, expected '40,000'"),
            (document(answer_start=-6), "answers\\[0\\]: found '' at character -6"),
            (document(text=" ", answer_start=2), "found the answer ' ', expected one with words in it"),
            (document(text=""), "found the answer '', expected one with words in it"),
        ],
    )
    def test_a_mistake_is_named_with_its_place(self, tmp_path: Path, content: Any, message: str) -> None:
        path = write(tmp_path / "bad.json", content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ElmoError, match=message) as error:
            read_squad(path)
        assert path in str(error.value)


class TestScores:
    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ("The  Eiffel-Tower, in Paris!", ["eiffeltower", "in", "paris"]),
            ("a an the A An THE", []),
            ("theatre of a man", ["theatre", "of", "man"]),
            ("the-a", ["thea"]),  # punctuation goes before articles
            ("“Ça” — 5 €", ["“ça”", "—", "5", "€"]),  # only ASCII's punctuation is punctuation
        ],
    )
    def test_case_punctuation_articles_and_spaces_do_not_count(self, answer: str, words: list[str]) -> None:
        assert normalised(answer) == words

    @pytest.mark.parametrize(
        ("gold", "answer", "em", "f1"),
        [
            ("the Eiffel Tower", "Eiffel Tower!", 1, 1),
            ("a cat sat", "The cat sat down", 0, 0.8),
            ("very very big", "very big", 0, 0.8),  # a word counts as often as it comes
            ("Tower Eiffel", "Eiffel Tower", 0, 1),
            ("1815", "Waterloo", 0, 0),
            ("1815", "", 0, 0),
            ("the", "...", 1, 0),  # as the official script has it: nothing is the same as nothing, but shares no word
        ],
    )
    def test_a_pair_scores_as_by_hand(self, gold: str, answer: str, em: float, f1: float) -> None:
        assert exact_match(gold, answer) == em
        assert word_f1(gold, answer) == pytest.approx(f1)
        assert word_f1(answer, gold) == pytest.approx(f1)

    def test_the_best_gold_answer_counts_for_each_of_the_two(self) -> None:
        golds = [("40,000", "40,000 men"), ("in May", "May 1815")]
        assert question_scores(golds, ["men", "may 1815"]) == {"em": 0.5, "f1": pytest.approx((2 / 3 + 1) / 2)}

    @pytest.mark.parametrize(("golds", "given"), [([("a",)], []), ([], []), ([()], ["a"])])
    def test_there_must_be_something_to_compare(self, golds: Any, given: Any) -> None:
        with pytest.raises(ElmoError, match="there must be one for each"):
            question_scores(golds, given)


class TestParts:
    def test_relevance_is_w_times_the_vector_and_its_product_with_the_other(self) -> None:
        relevance = Relevance(3)
        a, b = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
        pairs = torch.cat([b[:, None].expand(2, 4, 5, 3), a[:, :, None] * b[:, None]], dim=-1)
        torch.testing.assert_close(relevance(a, b), pairs @ relevance.weights.flatten())

    def test_a_paragraph_learns_of_the_question_and_of_where_it_is_near_it(self) -> None:
        attention = QuestionAttention(2, 2, 0.0)
        paragraph, question = torch.randn(1, 3, 2), torch.randn(1, 2, 2)
        masks = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)
        h, u = paragraph[0], question[0]
        scores = attention.relevance(paragraph, question)[0]
        asked = torch.stack([scores[t].softmax(dim=0) @ u for t in range(3)])
        near = (scores.max(dim=1).values + h @ attention.own.weight[0]).softmax(dim=0) @ h
        expected = torch.relu(attention.merge(torch.cat([h, asked, h * asked, near * asked], dim=1)))
        torch.testing.assert_close(attention(paragraph, question, *masks)[0], expected)

    def test_the_question_s_padding_says_nothing(self) -> None:
        attention = QuestionAttention(3, 4, 0.0)
        paragraph, question = torch.randn(1, 4, 3), torch.randn(1, 5, 3)
        whole, kept = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[True, True, True, False, False]])
        expected = attention(paragraph, question[:, :3], whole, kept[:, :3])
        torch.testing.assert_close(attention(paragraph, question, whole, kept), expected)

    def test_a_token_alone_has_no_other_to_attend_to(self) -> None:
        attention = SelfAttention(2, 0.0)
        x = torch.randn(1, 1, 4)
        own = attention.lstm(x, (1,))
        expected = x + torch.relu(attention.merge(torch.cat([own, torch.zeros(1, 1, 8)], dim=-1)))
        torch.testing.assert_close(attention(x, torch.ones(1, 1, dtype=torch.bool), (1,)), expected)

    def test_the_surprise_is_that_of_all_right_tokens_together(self) -> None:
        scores = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]]).log() + torch.tensor([[3.0], [-7.0]])
        right = torch.tensor([[True, False, True], [False, True, False]])
        expected = -(torch.tensor([0.4, 0.25]).log().mean())
        torch.testing.assert_close(surprise(scores, right), expected)

    @given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 1000))
    def test_the_best_span_is_the_best_of_all(self, tokens: int, longest: int, seed: int) -> None:
        first, last = torch.randn(2, 3, tokens, generator=torch.Generator().manual_seed(seed))
        spans = [(i, j) for i in range(tokens) for j in range(i, min(tokens, i + longest))]
        best = [
            max(spans, key=lambda span: float(one[span[0]] + two[span[1]]))
            for one, two in zip(first, last, strict=True)
        ]
        assert list(map(tuple, best_spans(first, last, longest).tolist())) == best


def ask(question: str, paragraph: str, answer: str) -> Question:
    text, start = tokenise(paragraph), paragraph.index(answer)
    return Question(tokenise(question), text, (answer,), text.covering(start, start + len(answer)))


TOY = [
    ask("Who marched?", CONTEXT, "the King's army"),
    ask("When?", CONTEXT, "May 1815"),
    ask("How many men marched in that year?", CONTEXT, "40,000"),
    ask("Where did they go?", CONTEXT, "Waterloo"),
    ask("Who sings?", "A bird sings in the old tree.", "A bird"),
    ask("Where does it sing?", "A bird sings in the old tree.", "in the old tree"),
    ask("What does it do?", "A bird sings in the old tree.", "sings"),
    ask("Who?", "Anna", "Anna"),
    ask("What is blue?", "The sea is blue, the sun is red.", "The sea"),
    ask("What is red?", "The sea is blue, the sun is red.", "the sun"),
]
SMALL = QuestionSettings(hidden=12, dropout=0.0)


class TestModel:
    @pytest.mark.parametrize("place", ["none", "both"])
    def test_it_learns_ten_questions_to_the_end(self, tmp_path: Path, place: Place) -> None:
        task = Questions()
        frozen = frozen_layers(tmp_path, task, TOY)
        model = toy_model(task, TOY, SMALL, frozen, place)
        losses = learn(model, TOY, frozen, steps=80)
        assert losses[-1] < 0.2 * losses[0]
        assert task.scores(TOY, answer(model, TOY, frozen)) == {"em": 1.0, "f1": 1.0}

    @pytest.mark.parametrize(("anywhere", "places"), [(False, [0]), (True, [0, 3])])
    def test_one_place_is_right_or_all_that_have_the_answer_s_words(self, anywhere: bool, places: list[int]) -> None:
        settings = QuestionSettings(hidden=4, anywhere=anywhere)
        example = Question(tokenise("Who?"), tokenise("Ann saw that Ann ran"), ("Ann",), (0, 0))
        model = toy_model(Questions(), [*TOY, example], settings, None)
        batch = model.collate([example, Question(tokenise("Who?"), tokenise("Bob"))], None)
        assert isinstance(batch, QuestionBatch)
        assert batch.firsts[0].nonzero().flatten().tolist() == places
        assert torch.equal(batch.firsts, batch.lasts)
        assert not batch.firsts[1].any()

    @pytest.mark.parametrize("place", PLACES)
    def test_an_answer_does_not_depend_on_the_other_rows(self, tmp_path: Path, place: Place) -> None:
        task = Questions()
        frozen = frozen_layers(tmp_path, task, TOY)
        assert_rows_are_alone(toy_model(task, TOY, SMALL, frozen, place), TOY, frozen)

    def test_an_answer_has_at_most_so_many_tokens_and_stands_in_the_paragraph(self) -> None:
        settings = QuestionSettings(hidden=4, longest_answer=2)
        model = toy_model(Questions(), TOY, settings, None)
        asked = Questions().parse(["Who?\tA bird  sings", '{"question": "Where?", "context": "in the old, old tree"}'])
        for example, found in zip(asked, answer(model, asked, None), strict=True):
            assert found in example.paragraph.raw
            assert 1 <= len(tokenise(found).tokens) <= 2

    def test_all_weights_learn(self, tmp_path: Path) -> None:
        frozen = frozen_layers(tmp_path, Questions(), TOY)
        model = toy_model(Questions(), TOY, SMALL, frozen, "both")
        model.loss(model.collate(TOY, frozen)).backward()  # type: ignore[no-untyped-call]
        still = [
            name for name, weight in model.named_parameters() if weight.grad is None or weight.grad.abs().max() < 1e-6
        ]
        assert still == []

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"hidden": 0}, "model.hidden is 0"),
            ({"longest_answer": 0}, "model.longest_answer is 0"),
            ({"longest_paragraph": -1}, "model.longest_paragraph is -1"),
            ({"dropout": 1.0}, "model.dropout is 1.0"),
        ],
    )
    def test_sizes_that_cannot_be_are_refused(self, settings: Any, message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            QuestionSettings(**settings)


class TestTask:
    def test_long_paragraphs_are_for_answering_only(self) -> None:
        kept = Questions().for_training(TOY, QuestionSettings(longest_paragraph=10))
        assert {one.paragraph.raw for one in TOY} - {one.paragraph.raw for one in kept} == {CONTEXT}

    def test_an_answer_for_programs_and_for_people(self) -> None:
        example = ask("Who?", "Anna runs", "Anna")
        assert Questions().record(example, "Anna") == {"question": "Who?", "context": "Anna runs", "answer": "Anna"}
        assert Questions().show(example, "Anna") == "Anna"
