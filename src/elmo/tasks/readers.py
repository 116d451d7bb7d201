"""Task data as published. Every mistake in a file is an error with its name and line; see `files.py` for paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from elmo.errors import ElmoError
from elmo.tasks.files import lines, wrong

TagColumn = Literal["upos", "xpos"]

_TAG_COLUMNS: Mapping[TagColumn, int] = {"upos": 3, "xpos": 4}

_Row = tuple[int, list[str]]
"""A line's number and its columns."""


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence with a tag for each token."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


def read_conllu(path: str, column: TagColumn = "upos") -> list[TaggedSentence]:
    """Sentences of a CoNLL-U file with one of its tag columns; multiword ranges and empty nodes are left out."""
    if column not in get_args(TagColumn):
        raise ElmoError(f"tags is {column!r}: give one of {', '.join(get_args(TagColumn))}")
    sentences: list[TaggedSentence] = []
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in lines(path):
        if not line.strip():
            if tokens:
                sentences.append(TaggedSentence(tuple(tokens), tuple(tags)))
            tokens, tags = [], []
            continue
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 10:
            raise wrong(path, number, f"{len(fields)} columns", "10, with tabs between them, as CoNLL-U has them")
        if "-" in fields[0] or "." in fields[0]:
            continue
        if fields[0] != str(len(tokens) + 1):
            raise wrong(path, number, f"token number {fields[0]!r}", str(len(tokens) + 1))
        if not fields[1].strip():
            raise wrong(path, number, "no word", "one in column 2")
        tag = fields[_TAG_COLUMNS[column]]
        if tag in ("", "_"):
            raise wrong(path, number, f"no {column} tag", "one")
        tokens.append(fields[1])
        tags.append(tag)
    if tokens:
        sentences.append(TaggedSentence(tuple(tokens), tuple(tags)))
    if not sentences:
        raise ElmoError(f"{path} has no sentence in it")
    return sentences


def read_columns(path: str) -> list[TaggedSentence]:
    """Sentences of a file with a token a line, its entity tag in the last column; a blank line ends a sentence.

    Columns have tabs or else spaces between them. The token is the first. In Universal NER its number stands in front
    of it, and behind the tag there may be columns of the annotation; a file has numbers if they count from 1 in most
    sentences of several tokens, and then all must. Lines before a sentence that begin with `#` and are no row of the
    file are comments; `-DOCSTART-` begins a document and is no token. Tags are `O`, `B-KIND` and `I-KIND`; where an
    entity begins with `I-`, as in CoNLL 2003, it is made a `B-`.
    """
    blocks = _blocks(path)
    if not blocks:
        raise ElmoError(f"{path} has no sentence in it")
    numbered = _are_numbered(blocks)
    _, first = blocks[0][0]
    column = 2 if numbered and not _is_tag(first[-1]) else -1
    return [_tagged(path, rows, column, numbered=numbered) for rows in blocks]


def _blocks(path: str) -> list[list[_Row]]:
    """The rows of each sentence, all with the same number of columns."""
    given = [(number, line.rstrip()) for number, line in lines(path)]
    no_comment = (line for _, line in given if line and not line.startswith(("#", "-DOCSTART-")))
    model = next(no_comment, "")
    width = len(_fields(model))
    blocks: list[list[_Row]] = [[]]
    for number, line in given:
        fields = _fields(line)
        if not line or fields[0] == "-DOCSTART-":
            blocks.append([])
            continue
        is_row = len(fields) == width and ("\t" in line) == ("\t" in model) and _is_tag(fields[-1])
        if line.startswith("#") and not is_row and not blocks[-1]:
            continue
        if len(fields) != width or width < 2:
            raise wrong(path, number, f"{len(fields)} columns", f"{max(width, 2)}: a token, and a tag in the last")
        blocks[-1].append((number, fields))
    return [rows for rows in blocks if rows]


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.split("\t")] if "\t" in line else line.split()


def _are_numbered(blocks: list[list[_Row]]) -> bool:
    """Whether the first column has row numbers, and not tokens, some of which are numbers, too."""
    if len(blocks[0][0][1]) < 3:
        return False
    several = [rows for rows in blocks if len(rows) > 1]
    counting = sum(all(fields[0] == str(place) for place, (_, fields) in enumerate(rows, start=1)) for rows in several)
    return 2 * counting > len(several)


def _is_tag(field: str) -> bool:
    return field == "O" or (field[:2] in ("B-", "I-") and len(field) > 2)


def _tagged(path: str, rows: list[_Row], column: int, *, numbered: bool) -> TaggedSentence:
    """A sentence of its rows, the tag in a certain column."""
    word = 1 if numbered else 0
    for place, (number, fields) in enumerate(rows, start=1):
        if numbered and fields[0] != str(place):
            raise wrong(path, number, f"row number {fields[0]!r}", str(place))
        if not _is_tag(fields[column]):
            raise wrong(path, number, f"the tag {fields[column]!r}", "O, B-KIND or I-KIND")
        if not fields[word]:
            raise wrong(path, number, "no token", f"one in column {word + 1}")
    return TaggedSentence(tuple(fields[word] for _, fields in rows), _iob2([fields[column] for _, fields in rows]))


def _iob2(tags: list[str]) -> tuple[str, ...]:
    """An entity that begins with `I-`, or with none of its kind before it, begins with `B-`."""
    fixed = []
    for before, tag in zip(["O", *tags], tags, strict=False):
        fixed.append(f"B-{tag[2:]}" if tag.startswith("I-") and before[2:] != tag[2:] else tag)
    return tuple(fixed)
