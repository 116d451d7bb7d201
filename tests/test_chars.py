import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.chars import batch_to_ids, boundary_row, words_to_ids
from elmo.errors import ElmoError
from reference64 import char_row


def test_a_word_is_begin_bytes_end_and_padding() -> None:
    row = words_to_ids(["cat"])[0]
    assert row.tolist() == [259, ord("c") + 1, ord("a") + 1, ord("t") + 1, 260] + [261] * 45


def test_sentence_boundaries_have_rows_of_their_own() -> None:
    begin, end = words_to_ids(["<S>", "</S>"])
    assert begin.tolist() == [259, 257, 260] + [261] * 47
    assert end.tolist() == [259, 258, 260] + [261] * 47


def test_unknown_has_no_special_row() -> None:
    assert words_to_ids(["<UNK>"])[0, 1:6].tolist() == [byte + 1 for byte in b"<UNK>"]


def test_a_long_word_is_cut_by_bytes_even_inside_a_character() -> None:
    row = words_to_ids(["a" + "é" * 100_000])[0]
    assert row[48] == 0xC3 + 1  # the first half of an é
    assert row[49] == 260


def test_an_empty_word_is_legal() -> None:
    assert words_to_ids([""])[0].tolist() == [259, 260] + [261] * 48


def test_surrogates_are_dropped() -> None:
    assert np.array_equal(words_to_ids(["a\ud800b"]), words_to_ids(["ab"]))


def test_no_words_make_no_rows() -> None:
    assert words_to_ids([]).shape == (0, 50)


def test_a_string_is_not_a_list_of_words() -> None:
    with pytest.raises(ElmoError, match="list of words"):
        words_to_ids("hello")


@given(st.lists(st.text(st.characters(), max_size=60), max_size=8), st.integers(3, 60))
def test_any_text_is_encoded_as_the_independent_reference_encodes_it(words: list[str], length: int) -> None:
    expected = [[i + 1 for i in char_row(word, length)] for word in words]
    assert words_to_ids(words, length).tolist() == expected


def test_a_batch_is_padded_with_zeros_to_its_longest_sentence() -> None:
    ids = batch_to_ids([["a", "b"], [], ["a"]])
    assert ids.shape == (3, 2, 50)
    assert np.array_equal(ids[0, 0], ids[2, 0])
    assert not ids[1].any()
    assert not ids[2, 1].any()


def test_a_batch_of_nothing_is_empty() -> None:
    assert batch_to_ids([]).shape == (0, 0, 50)
    assert batch_to_ids([[]]).shape == (1, 0, 50)


class TestAlphabet:
    """Characters of a list instead of bytes: numbered from 1, then one for all others, then the marks."""

    def test_a_word_is_begin_characters_end_and_padding(self) -> None:
        assert words_to_ids(["cäx"], 7, "äc猫")[0].tolist() == [7, 2, 1, 4, 8, 9, 9]

    def test_the_marks_follow_as_they_do_behind_the_bytes(self) -> None:
        assert words_to_ids(["<S>", "</S>"], 5, "ab").tolist() == [[6, 4, 7, 8, 8], [6, 5, 7, 8, 8]]
        assert boundary_row("<S>", 5, "ab").tolist() == [6, 4, 7, 8, 8]

    @given(st.lists(st.text(max_size=20)), st.lists(st.characters(), unique=True, max_size=20), st.integers(3, 12))
    def test_any_words_are_cut_by_characters(self, words: list[str], characters: list[str], length: int) -> None:
        words = [word for word in words if word not in ("<S>", "</S>")]
        rows = words_to_ids(words, length, "".join(characters)).tolist()
        marks = len(characters) + 1
        for word, row in zip(words, rows, strict=True):
            known = [characters.index(c) + 1 if c in characters else marks for c in word[: length - 2]]
            expected = [marks + 3, *known, marks + 4]
            assert row == expected + [marks + 5] * (length - len(expected))
