"""The word vocabulary: one word a line, `<S>`, `</S>` and `<UNK>` among them, then by falling frequency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

from elmo.errors import ElmoError

SPECIAL_WORDS = ("<S>", "</S>", "<UNK>")
NOT_A_WORD = "!!!MAXTERMID"  # a line that the 1 Billion Word Benchmark's vocabulary carries; bilm-tf skips it


def read_words(path: str | PathLike[str], *, exact: bool = False) -> list[str]:
    """The words of a vocabulary file, in its order, whichever they are.

    Like bilm-tf, without white space around them and without one line that its vocabulary carries; unless all of a
    line is the word (`exact`), as in a native folder.
    """
    try:
        return words_in(Path(path).read_text(encoding="utf-8"), exact=exact)
    except OSError as error:
        raise ElmoError(f"cannot read the vocabulary {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ElmoError(f"the vocabulary {path} is not UTF-8 (byte {error.start})") from error


def words_in(text: str, *, exact: bool = False) -> list[str]:
    """The words of a vocabulary file's text, as `read_words` has them."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return lines if exact else [word for word in map(str.strip, lines) if word != NOT_A_WORD]


class Vocabulary:
    """Words and their ids, in the order of the file."""

    def __init__(self, words: Iterable[str]) -> None:
        """Number `words` from 0; the three special words must be among them. Of a repeated word the last counts."""
        self.words: tuple[str, ...] = tuple(words)
        self._ids: dict[str, int] = {word: i for i, word in enumerate(self.words)}
        missing = [word for word in SPECIAL_WORDS if word not in self._ids]
        if missing:
            raise ElmoError(f"the vocabulary lacks {', '.join(missing)}: its first lines should be <S>, </S>, <UNK>")
        self._unknown = self._ids["<UNK>"]

    @classmethod
    def read(cls, path: str | PathLike[str], *, exact: bool = False) -> Vocabulary:
        """Read a vocabulary file, as `read_words` does."""
        return cls.named(read_words(path, exact=exact), str(path))

    @classmethod
    def named(cls, words: Iterable[str], name: str) -> Vocabulary:
        """A vocabulary that an error calls by `name`."""
        try:
            return cls(words)
        except ElmoError as error:
            raise ElmoError(f"{name}: {error}") from error

    def write(self, path: Path, *, exact: bool = False) -> None:
        """Write the vocabulary file; words that `read_words` would not read again as they are, are refused."""
        if torn := next((word for word in self.words if "\n" in word or "\r" in word), None):
            raise ElmoError(f"the word {torn!r} has a line break: a vocabulary file has one word a line")
        lost = None if exact else next((word for word in self.words if words_in(word + "\n") != [word]), None)
        if lost is not None:
            raise ElmoError(f"the word {lost!r} would be another one, or none, in a vocabulary of bilm-tf's")
        path.write_text("".join(f"{word}\n" for word in self.words), encoding="utf-8", newline="\n")

    def ids(self, words: Sequence[str]) -> list[int]:
        """Ids of words; one that is not here is `<UNK>`."""
        return [self._ids.get(word, self._unknown) for word in words]

    def __len__(self) -> int:
        """Number of words."""
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        """Words in order."""
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        """Whether the word has a row of its own."""
        return word in self._ids
