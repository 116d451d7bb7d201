"""Task data as published. Every mistake in a file is an error with its name and line; see `files.py` for paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from elmo.errors import ElmoError
from elmo.tasks.files import lines, wrong

TagColumn = Literal["upos", "xpos"]

_TAG_COLUMNS: Mapping[TagColumn, int] = {"upos": 3, "xpos": 4}


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

    Columns have tabs or else spaces between them. The token is the first; its number may stand in front of it, as in
    Universal NER, and comments, beginning with `# `, before a sentence. Tags are `O`, `B-KIND` and `I-KIND`; where an
    entity begins with `I-`, as in CoNLL 2003, it is made a `B-`.
    """
    sentences: list[TaggedSentence] = []
    rows: list[tuple[str, str]] = []
    width = 0
    for number, line in [*lines(path), (0, "")]:
        if not line.strip():
            if rows and rows[0][0] != "-DOCSTART-":
                sentences.append(TaggedSentence(tuple(token for token, _ in rows), _iob2([tag for _, tag in rows])))
            rows = []
            continue
        if line.startswith("# ") and not rows and "\t" not in line:
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        width = width or len(fields)
        if len(fields) != width or width < 2:
            raise wrong(path, number, f"{len(fields)} columns", f"{max(width, 2)}: a token, and a tag in the last")
        numbered = width > 2 and fields[0] == str(len(rows) + 1)
        token, tag = fields[1 if numbered else 0].strip(), fields[-1].strip()
        if not (tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)):
            raise wrong(path, number, f"the tag {tag!r}", "O, B-KIND or I-KIND")
        if not token:
            raise wrong(path, number, "no token", "one in the first column")
        rows.append((token, tag))
    if not sentences:
        raise ElmoError(f"{path} has no sentence in it")
    return sentences


def _iob2(tags: list[str]) -> tuple[str, ...]:
    """An entity that begins with `I-`, or with none of its kind before it, begins with `B-`."""
    fixed = []
    for before, tag in zip(["O", *tags], tags, strict=False):
        fixed.append(f"B-{tag[2:]}" if tag.startswith("I-") and before[2:] != tag[2:] else tag)
    return tuple(fixed)
