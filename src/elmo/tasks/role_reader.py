"""Semantic roles as published: JSON lines, or the columns of CoNLL 2012. A mistake is an error with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elmo.errors import ElmoError
from elmo.tasks.files import json_lines, lines, plain, wrong

_WORD, _FIRST_ROLES = 3, 11  # columns of CoNLL 2012; the last one of all is coreference
_CELL = re.compile(r"(?:\(([^()*]+))?\*(\)?)")

_Row = tuple[int, list[str]]
"""A line's number and its columns."""


@dataclass(frozen=True)
class Proposition:
    """A predicate in a sentence."""

    tokens: tuple[str, ...]
    predicate: int
    """Which of the tokens, from 0."""
    tags: tuple[str, ...] = ()
    """What each token is to the predicate: `B-ARG0`, `I-ARG0`, ..., `O`, and `B-V` for itself; none if not known."""


def read_propositions(path: str) -> list[Proposition]:
    """Propositions of a file, `.jsonl` (also `.gz`, `.xz`) or else as in CoNLL 2012.

    A JSON line is a sentence: `{"words": [...], "predicates": [{"index": 1, "tags": ["O", "B-V", ...]}, ...]}`,
    whatever else it has. In CoNLL 2012, a token has a line, its word in column 4, and from column 12 to the last but
    one the roles that it has for each of the sentence's predicates. A sentence without predicates is passed over.
    """
    is_json = path.removesuffix(".gz").removesuffix(".xz").endswith((".jsonl", ".json"))
    found = list(_of_json(path) if is_json else _of_columns(path))
    if not found:
        raise ElmoError(f"{path} has no predicate in it")
    return found


def _of_json(path: str) -> Iterator[Proposition]:
    for number, record in json_lines(path):
        words, predicates = record.get("words"), record.get("predicates")
        if not (isinstance(words, list) and words and all(isinstance(word, str) and word.strip() for word in words)):
            raise wrong(path, number, f"words {words!r:.40}", "a list of words")
        for word in words:
            if word.splitlines() != [word]:
                raise wrong(path, number, f"a line break in the word {word!r:.40}", "none")
        if not isinstance(predicates, list):
            raise wrong(path, number, f"predicates {predicates!r:.40}", "a list, which may be empty")
        for place, predicate in enumerate(predicates):
            yield _of_object(path, number, words, f"predicates[{place}]", predicate)


def _of_object(path: str, number: int, words: list[str], place: str, predicate: Any) -> Proposition:
    if not isinstance(predicate, dict):
        raise wrong(path, number, f"{place} {predicate!r:.40}", "an object with index and tags")
    index, tags = predicate.get("index"), predicate.get("tags")
    if type(index) is not int or not 0 <= index < len(words):
        raise wrong(path, number, f"{place}.index {index!r:.40}", f"a number from 0 to {len(words) - 1}")
    if not isinstance(tags, list) or len(tags) != len(words):
        count = f"{len(tags)} tags" if isinstance(tags, list) else f"{tags!r:.40}"
        raise wrong(path, number, f"{place}.tags with {count}", f"one for each of the {len(words)} words")
    for before, tag in zip(["O", *tags], tags, strict=False):
        if not isinstance(tag, str) or not (tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)):
            raise wrong(path, number, f"the tag {tag!r:.40} in {place}.tags", "O, B-ROLE or I-ROLE")
        if tag.startswith("I-") and before[2:] != tag[2:]:
            raise wrong(path, number, f"{tag} behind {before} in {place}.tags", f"B-{tag[2:]} or I-{tag[2:]} before it")
    return Proposition(tuple(words), index, tuple(tags))


def _of_columns(path: str) -> Iterator[Proposition]:
    rows: list[_Row] = []
    for number, line in [*lines(path), (0, "")]:
        if line.startswith("#"):
            continue
        if line.strip():
            rows.append((number, line.split()))
            continue
        if rows:
            yield from _of_rows(path, rows)
        rows = []


def _of_rows(path: str, rows: Sequence[_Row]) -> Iterator[Proposition]:
    width = max(len(rows[0][1]), _FIRST_ROLES + 1)
    for number, fields in rows:
        if len(fields) != width:
            raise wrong(path, number, f"{len(fields)} columns", f"{width}, as CoNLL 2012 has them")
    tokens = tuple(plain(fields[_WORD]) for _, fields in rows)
    for column in range(_FIRST_ROLES, width - 1):
        tags = _tags(path, rows, column)
        if "B-V" not in tags:
            raise wrong(path, rows[0][0], f"no predicate in column {column + 1} of the sentence", "(V*) at one token")
        yield Proposition(tokens, tags.index("B-V"), tags)


def _tags(path: str, rows: Sequence[_Row], column: int) -> tuple[str, ...]:
    """BIO tags of a column of brackets such as `(ARG1*`, `*`, `*)`."""
    role: str | None = None
    tags = []
    for number, fields in rows:
        cell = _CELL.fullmatch(fields[column])
        if cell is None:
            raise wrong(path, number, f"{fields[column]!r} in column {column + 1}", "(ROLE*, *, *) or (ROLE*)")
        begun, ended = cell.groups()
        if begun and role:
            raise wrong(path, number, f"{begun} within {role} in column {column + 1}", "roles one after the other")
        role = begun or role
        if ended and not role:
            raise wrong(path, number, f"the end of a role in column {column + 1}", "its beginning before it")
        tags.append(f"{'B' if begun else 'I'}-{role}" if role else "O")
        role = None if ended else role
    if role:
        raise wrong(path, rows[-1][0], f"the sentence's end within {role} in column {column + 1}", "*) before it")
    return tuple(tags)
