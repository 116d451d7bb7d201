"""Raw text of tasks: its tokens with their places, and lines with two texts each."""

from __future__ import annotations

import json
import lzma
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from elmo.errors import ElmoError
from elmo.files import new_file
from elmo.tasks.files import lines, wrong
from elmo.text import Tokenizer


@dataclass(frozen=True)
class Text:
    """Raw text and its tokens, all of its sentences together."""

    raw: str
    tokens: tuple[str, ...]
    starts: tuple[int, ...]
    """Where each token begins in the raw text."""

    def between(self, first: int, last: int) -> str:
        """The raw text from the first character of a token to the last one of another."""
        return self.raw[self.starts[first] : self.starts[last] + len(self.tokens[last])]

    def covering(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token that have a character of `raw[start:end]`; None if none has."""
        first = max(0, bisect_right(self.starts, start) - 1)
        if self.starts and self.starts[first] + len(self.tokens[first]) <= start:
            first += 1  # it begins in the space behind that token
        last = bisect_left(self.starts, end) - 1
        return (first, last) if start < end and first <= last else None


_KNOWN: dict[str, Text] = {}


def tokenise(raw: str) -> Text:
    """Split raw text, as `elmo.Tokenizer` does for English."""
    if (known := _KNOWN.get(raw)) is not None:
        return known
    sentences = _tokenizer()(raw)
    tokens = tuple(token for sentence in sentences for token in sentence.tokens)
    return Text(raw, tokens, tuple(start for sentence in sentences for start, _ in sentence.spans))


def write_tokens(path: Path, texts: Iterable[Text]) -> None:
    """Write where the tokens of texts are, for `read_tokens`: xz, a JSON list of text, starts and lengths a line."""
    with new_file(path) as beside, lzma.open(beside, "wt", encoding="utf-8") as file:
        for text in {text.raw: text for text in texts}.values():
            file.write(json.dumps([text.raw, text.starts, [len(token) for token in text.tokens]]) + "\n")


def read_tokens(path: str) -> None:
    """Know the tokens of some texts from now on, so that a machine without spaCy can read their files."""
    for number, line in lines(path):
        if not line:
            continue
        try:
            raw, starts, lengths = json.loads(line)
            tokens = tuple(raw[start : start + length] for start, length in zip(starts, lengths, strict=True))
            _KNOWN[raw] = Text(raw, tokens, tuple(starts))
        except (TypeError, ValueError, RecursionError) as error:
            raise wrong(path, number, f"{error}", "a text, where its tokens start, and how long they are") from None


@cache
def _tokenizer() -> Tokenizer:
    """One for all texts: it remembers how it split a word."""
    return Tokenizer()


def text_at(value: object, place: str) -> Text:
    """The text that a file has at a place.

    Raises:
        ElmoError: it is not a text, or there is no word in it; the message begins with the place.
    """
    if not isinstance(value, str):
        raise ElmoError(f"{place}: found {value!r:.40}, expected a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ElmoError(f"{place}: found half a surrogate pair in {value!a:.40}, expected valid Unicode") from None
    text = tokenise(value)
    if not text.tokens:
        raise ElmoError(f"{place}: found {value!r:.40}, expected a text with words in it")
    return text


def two_texts(given: Sequence[str], names: tuple[str, str]) -> Iterator[tuple[Text, Text]]:
    """Two texts of each line: a JSON object that has them by their names, or the two with a tab between them.

    Blank lines are passed over.
    """
    for number, line in enumerate(given, start=1):
        if line.strip():
            first, second = _split(line, names, number)
            yield text_at(first, f"line {number}, {names[0]}"), text_at(second, f"line {number}, {names[1]}")


def _split(line: str, names: tuple[str, str], number: int) -> tuple[object, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict):
        return record.get(names[0]), record.get(names[1])
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 2:
        raise ElmoError(
            f"line {number}: found {line.strip()!r:.60}, expected two texts with a tab between them, "
            f'or {{"{names[0]}": ..., "{names[1]}": ...}}'
        )
    return fields[0], fields[1]
