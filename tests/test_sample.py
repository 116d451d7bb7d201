"""The sentences that come with the package."""

from __future__ import annotations

from importlib import resources

import pytest

from elmo.explore.sample import WORDS, Sourced, Use, held_out, spread, uses_of


def test_every_offered_word_is_used_often_enough_for_a_map() -> None:
    assert {word: len(uses_of(word, held_out())) >= 20 for word in WORDS} == dict.fromkeys(WORDS, True)


def test_sentences_are_distinct_and_of_tokens() -> None:
    sentences = [sentence.tokens for sentence in held_out()]
    assert 3000 <= len(sentences) == len(set(sentences))
    assert all(token and not token.isspace() for tokens in sentences for token in tokens)


def test_every_source_is_named_with_its_licence() -> None:
    about = (resources.files("elmo") / "explore" / "held_out.md").read_text(encoding="utf-8")
    assert all(f"`{source}`" in about for source in {sentence.source for sentence in held_out()})


def test_a_word_is_found_in_whatever_case_and_once_a_sentence() -> None:
    text = [Sourced("a", ("The", "Bank", "of", "the", "bank")), Sourced("b", ("Banks", "."))]
    assert uses_of("bank", text) == [Use("a", text[0].tokens, 1)]
    assert uses_of("THE", text) == [Use("a", text[0].tokens, 0)]
    assert uses_of("ban", text) == []


@pytest.mark.parametrize(
    ("limit", "chosen"), [(10, [0, 1, 2, 3, 4, 5]), (6, [0, 1, 2, 3, 4, 5]), (3, [0, 2, 4]), (1, [0])]
)
def test_of_many_uses_some_are_taken_from_all_over_the_text(limit: int, chosen: list[int]) -> None:
    uses = [Use("a", ("x",) * 6, position) for position in range(6)]
    assert [use.position for use in spread(uses, limit)] == chosen
