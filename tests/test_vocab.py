from pathlib import Path

import pytest

from elmo.errors import ElmoError
from elmo.vocab import Vocabulary


def test_words_are_numbered_in_order_and_unknown_ones_are_unk(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("<S>\n</S>\n<UNK>\nthe\n!!!MAXTERMID\ncat\n", encoding="utf-8")
    vocab = Vocabulary.read(tmp_path / "v")
    assert list(vocab) == ["<S>", "</S>", "<UNK>", "the", "cat"]
    assert vocab.ids(["cat", "dog", "<S>"]) == [4, 2, 0]
    assert "cat" in vocab
    assert "dog" not in vocab


def test_a_vocabulary_survives_a_round_trip(tmp_path: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", "é", "日本", "a\u2028b"]
    Vocabulary(words).write(tmp_path / "v")
    assert list(Vocabulary.read(str(tmp_path / "v"))) == words


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("word", ["a\nb", "a\r"])
def test_a_word_with_a_line_break_is_not_written(tmp_path: Path, word: str, exact: bool) -> None:
    with pytest.raises(ElmoError, match="has a line break"):
        Vocabulary(["<S>", "</S>", "<UNK>", word]).write(tmp_path / "v", exact=exact)


def test_the_special_words_are_needed(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("<S>\nthe\n")
    with pytest.raises(ElmoError, match="lacks </S>, <UNK>"):
        Vocabulary.read(tmp_path / "v")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="No such file"):
        Vocabulary.read(tmp_path / "v")
    (tmp_path / "v").write_bytes(b"\xff")
    with pytest.raises(ElmoError, match="not UTF-8"):
        Vocabulary.read(tmp_path / "v")


def test_white_space_around_a_word_is_kept_where_all_of_a_line_is_the_word(tmp_path: Path) -> None:
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "\u3000", "", "a\u00a0", "a", "!!!MAXTERMID"])
    vocab.write(tmp_path / "v", exact=True)
    assert Vocabulary.read(tmp_path / "v", exact=True).words == vocab.words


@pytest.mark.parametrize("word", ["\u3000", "a\u00a0", " a", "!!!MAXTERMID"])
def test_a_word_that_would_be_read_as_another_is_not_written(tmp_path: Path, word: str) -> None:
    with pytest.raises(ElmoError, match="would be another one, or none"):
        Vocabulary(["<S>", "</S>", "<UNK>", word]).write(tmp_path / "v")
