"""Questions about paragraphs: the JSON of SQuAD 1.1 (Rajpurkar et al. 2016)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from elmo.errors import ElmoError
from elmo.tasks.files import read_bytes
from elmo.tasks.texts import Text, text_at


@dataclass(frozen=True)
class Question:
    """A question, and the paragraph that has the answer in it."""

    text: Text
    paragraph: Text
    """The same object for all questions about it."""
    answers: tuple[str, ...] = ()
    """What each annotator answered; none where it is not known."""
    span: tuple[int, int] | None = None
    """The first and the last token of the paragraph that the first answer has a character of."""

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Every place in the paragraph where the tokens of the first answer stand; none if it is not known."""
        if self.span is None:
            return ()
        tokens, (first, last) = self.paragraph.tokens, self.span
        answer = tokens[first : last + 1]
        starts = range(len(tokens) - len(answer) + 1)
        return tuple((start, start + last - first) for start in starts if tokens[start : start + len(answer)] == answer)


def read_squad(path: str) -> list[Question]:
    """Questions of a file with their answers, each of which stands in the paragraph."""
    try:
        document = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ElmoError(f"{path}: found no JSON ({error}), expected an object as in SQuAD 1.1") from None
    if not isinstance(document, dict):
        raise ElmoError(f"{path}: found {document!r:.40}, expected an object as in SQuAD 1.1")
    questions: list[Question] = []
    for article_place, article in _objects(document, "data", f"{path}, "):
        for place, paragraph in _objects(article, "paragraphs", f"{article_place}."):
            questions += _paragraph_questions(paragraph, place)
    if not questions:
        raise ElmoError(f"{path} has no question in it")
    return questions


def _paragraph_questions(record: Mapping[str, Any], place: str) -> Iterator[Question]:
    paragraph = text_at(record.get("context"), f"{place}.context")
    for question_place, question in _objects(record, "qas", f"{place}."):
        answers = [_answer(answer, paragraph, at) for at, answer in _objects(question, "answers", f"{question_place}.")]
        if not answers:
            raise ElmoError(f"{question_place}.answers: found none, expected one: every question must have an answer")
        text = text_at(question.get("question"), f"{question_place}.question")
        yield Question(text, paragraph, tuple(answer for answer, _ in answers), answers[0][1])


def _answer(record: Mapping[str, Any], paragraph: Text, place: str) -> tuple[str, tuple[int, int]]:
    """An answer and its tokens."""
    text, start = record.get("text"), record.get("answer_start")
    if not isinstance(text, str) or type(start) is not int:
        raise ElmoError(f"{place}: found {record!r:.60}, expected a text and its answer_start, a whole number")
    there = paragraph.raw[start : start + len(text)] if start >= 0 else ""
    if there != text:
        raise ElmoError(f"{place}: found {there!r:.40} at character {start} of the paragraph, expected {text!r:.40}")
    span = paragraph.covering(start, start + len(text))
    if span is None:
        raise ElmoError(f"{place}: found the answer {text!r:.40}, expected one with words in it")
    return text, span


def _objects(record: Mapping[str, Any], name: str, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list in an object, each with its place in the file."""
    items = record.get(name)
    if not isinstance(items, list):
        raise ElmoError(f"{place}{name}: found {items!r:.40}, expected a list")
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise ElmoError(f"{place}{name}[{number}]: found {item!r:.40}, expected an object")
        yield f"{place}{name}[{number}]", item
