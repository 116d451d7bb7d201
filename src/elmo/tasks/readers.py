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
