"""Raw text in tasks: tokens, and where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import ElmoError
from elmo.tasks import texts
from elmo.tasks.texts import Text, read_tokens, text_at, tokenise, two_texts, write_tokens


def test_tokens_of_all_sentences_with_their_places() -> None:
    text = tokenise("A dog runs.  It's fast!")
    assert text.tokens == ("A", "dog", "runs", ".", "It", "'s", "fast", "!")
    assert text.between(1, 2) == "dog runs"
    assert text.between(3, 4) == ".  It"


@pytest.mark.parametrize(
    ("part", "tokens"),
    [("dog", (1, 1)), ("og ru", (1, 2)), (" dog ", (1, 1)), ("A", (0, 0)), ("runs.", (2, 3)), (" ", None), ("", None)],
)
def test_a_part_is_widened_to_the_tokens_that_have_it(part: str, tokens: tuple[int, int] | None) -> None:
    text = tokenise("A dog runs.")
    start = text.raw.index(part)
    assert text.covering(start, start + len(part)) == tokens


@given(st.text(alphabet="ab .,-", max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_covering_tokens_are_those_that_share_a_character(raw: str, start: int, length: int) -> None:
    text = tokenise(raw)
    shared = [
        number
        for number, (token, begin) in enumerate(zip(text.tokens, text.starts, strict=True))
        if set(range(begin, begin + len(token))) & set(range(start, start + length))
    ]
    assert text.covering(start, start + length) == ((shared[0], shared[-1]) if shared else None)


def test_nothing_covers_a_part_of_an_empty_text() -> None:
    assert Text("", (), ()).covering(0, 1) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "here: found None, expected a text"),
        (7, "here: found 7, expected a text"),
        (" \n", "expected a text with words in it"),
        ("a \ud800", "here: found half a surrogate pair"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(value: object, message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        text_at(value, "here")


def test_two_texts_stand_in_a_line_with_a_tab_or_in_an_object() -> None:
    lines = ["Who ran?\tA dog ran.\n", "", '{"context": "Cats\\tsleep.", "question": "Who?", "id": 3}']
    found = [(first.raw, second.raw) for first, second in two_texts(lines, ("question", "context"))]
    assert found == [("Who ran?", "A dog ran."), ("Who?", "Cats\tsleep.")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "Who ran?",
            'line 2: found \'Who ran\\?\', expected two texts with a tab between them, or {"q": ..., "c": ...}',
        ),
        ("a\tb\tc", "line 2: found"),
        ('{"q": "Who?"}', "line 2, c: found None, expected a text"),
        ("Who?\t ", "line 2, c: found ' ', expected a text with words in it"),
        ("[" * 100_000, "line 2: found"),
        ('["a", "b"]', "line 2: found"),
    ],
)
def test_a_line_without_two_texts_is_named(line: str, message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        list(two_texts(["a\tb", line], ("q", "c")))


def test_tokens_that_were_written_are_known_without_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tokenise("A dog runs.")
    write_tokens(tmp_path / "tokens.xz", [text, text])
    monkeypatch.setattr(texts, "_KNOWN", {})
    monkeypatch.setattr(texts, "_tokenizer", lambda: pytest.fail("spaCy was asked"))
    read_tokens(str(tmp_path / "tokens.xz"))
    assert tokenise("A dog runs.") == text
    for bad in ('["a", [0]]', '[["a"], [0], [1]]'):
        (tmp_path / "bad").write_text(bad + "\n")
        with pytest.raises(ElmoError, match="line 1"):
            read_tokens(str(tmp_path / "bad"))
