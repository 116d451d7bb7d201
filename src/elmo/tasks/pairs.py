"""Pairs of sentences with a label: natural language inference as published.

Three forms are read: objects a line (SNLI's and MultiNLI's `.jsonl`), tables with the same names in their first line,
and SICK's table. Where a table has all parts in one file, `SICK.txt#TRAIN` is the path of one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from elmo.errors import ElmoError
from elmo.tasks.files import json_lines, lines, wrong
from elmo.tasks.texts import Text, text_at

_NAMES = ("sentence1", "sentence2", "gold_label")
_SICK_NAMES = ("sentence_A", "sentence_B", "entailment_label")
_PART = "SemEval_set"
_NO_AGREEMENT = "-"  # SNLI's label where the annotators had none
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


@dataclass(frozen=True)
class Pair:
    """A premise, a hypothesis, and how the second follows from the first."""

    premise: Text
    hypothesis: Text
    label: str | None = None
    """In lower case; None where it is not known."""


@dataclass(frozen=True)
class _Row:
    """A line of a file, in whatever form: the three values."""

    line: int
    values: tuple[object, object, object]


def read_pairs(path: str) -> list[Pair]:
    """Pairs of a file, without those whose label is `-`; labels are made lower case.

    Args:
        path: `.jsonl`, or else a table with tabs; see above for `#`, and `files.py` for archives.
    """
    file, part = _part_of(path)
    is_json = ".jsonl" in PurePosixPath(file).suffixes
    if is_json and part:
        raise ElmoError(f"{file} has no parts: give it without #{part}")
    rows = _json_rows(file) if is_json else _table_rows(file, part)
    pairs = [_pair(file, row) for row in rows if row.values[2] != _NO_AGREEMENT]
    if not pairs:
        raise ElmoError(f"{path} has no pair with a label in it")
    return pairs


def _part_of(path: str) -> tuple[str, str]:
    """File and part; a `#` in the name of a file that is there means nothing."""
    if Path(path).exists():
        return path, ""
    file, _, part = path.rpartition("#")
    return (file, part) if file else (path, "")


def _pair(file: str, row: _Row) -> Pair:
    first, second, label = row.values
    if not isinstance(label, str) or not label.strip():
        raise wrong(file, row.line, f"the label {label!r:.40}", "a name such as entailment, or - for none")
    place = f"{file}, line {row.line}, sentence"
    return Pair(text_at(first, f"{place} 1"), text_at(second, f"{place} 2"), label.strip().lower())


def _json_rows(file: str) -> Iterator[_Row]:
    for number, record in json_lines(file):
        missing = [name for name in _NAMES if name not in record]
        if missing:
            raise wrong(file, number, f"no {' and no '.join(missing)}", f"an object with {', '.join(_NAMES)}")
        yield _Row(number, (record[_NAMES[0]], record[_NAMES[1]], record[_NAMES[2]]))


def _table_rows(file: str, part: str) -> list[_Row]:
    numbered = lines(file)
    header = next(numbered)[1].split("\t")
    first, second, label = _columns(file, header)
    place = header.index(_PART) if _PART in header else None
    rows: list[_Row] = []
    parts: dict[str, None] = {}
    for number, line in numbered:
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != len(header):
            raise wrong(file, number, f"{len(fields)} columns", f"{len(header)}, as the first line has")
        mine = "" if place is None else fields[place].strip()
        parts[mine] = None
        if mine == part:
            rows.append(_Row(number, (_unquoted(fields[first]), _unquoted(fields[second]), fields[label].strip())))
    _check_part(file, part, list(parts))
    return rows


def _columns(file: str, header: list[str]) -> list[int]:
    for names in (_NAMES, _SICK_NAMES):
        if set(names) <= set(header):
            return [header.index(name) for name in names]
    expected = f"a line of names, with tabs, that has {', '.join(_NAMES)} (or {', '.join(_SICK_NAMES)})"
    raise wrong(file, 1, f"{' '.join(header)!r:.60}", expected)


def _check_part(file: str, part: str, parts: list[str]) -> None:
    if part and parts == [""]:
        raise ElmoError(f"{file} has no column {_PART}, and so no parts: give it without #{part}")
    if parts and part not in parts:
        choice = ", ".join(f"{file}#{name}" for name in parts)
        raise ElmoError(f"{file} has no part {part!r} in its column {_PART}: give one of {choice}")


def _unquoted(field: str) -> str:
    """A field as programs for tables write it if it has quotes in it: in quotes, and those inside twice."""
    found = _QUOTED.fullmatch(field)
    return found[1].replace('""', '"') if found else field
