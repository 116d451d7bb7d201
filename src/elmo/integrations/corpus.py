"""A corpus cut into parts that many machines embed apart: what a part holds depends on the corpus alone.

A line of text is a record, and so is an object of JSON lines or a row of Parquet. Text and JSON lines are cut at bytes
(a part has the lines that start in its range), Parquet at its row groups; a compressed file is one part.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from elmo.embed import as_tokens
from elmo.errors import ElmoError, MissingExtraError, TextError
from elmo.lines import Errors, LineReader
from elmo.lm.reading import (
    Source,
    checked_text,
    count_lines,
    find_sources,
    layout_of,
    open_source,
    skip_to_line,
    unpack,
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a corpus becomes records and parts; other settings make other parts."""

    field: str = "text"
    """Where the text is in an object of JSON lines, or the column of Parquet: a string, or a list of tokens."""
    id: str | None = None
    """The field or column with a record's key, which is put out beside its vectors."""
    errors: Errors = "strict"
    """What is not text is an error, or replaced."""
    language: str | None = None
    """Split raw text into sentences and words by the rules of this language; None: split at white space."""
    part_bytes: int = 2**20
    """Size of a part, as stored."""

    def __post_init__(self) -> None:
        """Refuse parts of no size."""
        if self.part_bytes < 1:
            raise ElmoError(f"a part of {self.part_bytes} bytes: give a size above 0 (--part-mb)")


@dataclass(frozen=True)
class Record:
    """A sentence, or raw text."""

    text: str | list[str]
    id: str | None = None

    @property
    def tokens(self) -> list[str]:
        """Its words; a string is split at white space."""
        return as_tokens(self.text)


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker embeds at a time, into one file."""

    source: str
    start: int = 0
    """A byte; of Parquet, a row group."""
    end: int | None = None
    """None: to the end of the source."""
    number: int = 0
    first: int = 0
    """The number of its first record in the corpus."""
    records: int = 0
    words: int = 0
    """Of its records, split at white space."""
    digest: str = ""
    """Of its records."""

    @property
    def file(self) -> str:
        """The name of what is made of it."""
        return f"part-{self.number:07d}.parquet"

    def to_json(self) -> str:
        """As text, for another process."""
        return json.dumps(asdict(self))


def find_parts(texts: list[str], part_bytes: int, made: Sequence[Path] = ()) -> list[Part]:
    """Cut files, folders, globs and URLs into ranges, without those in `made`; what they hold is not counted yet."""
    sources = [_anywhere(source) for source in find_sources(texts, made)]
    return [part for source in sources for part in _cut(source, part_bytes)]


def numbered(counted: list[Part]) -> list[Part]:
    """Parts in the order of the corpus, with their records counted, as they are embedded: none is empty."""
    parts: list[Part] = []
    first = 0
    for part in counted:
        if part.records:
            parts.append(replace(part, number=len(parts), first=first))
            first += part.records
    return parts


def count(part: Part, reading: Reading) -> Part:
    """Read a range: the part with the number of its records and words and their digest."""
    digest, number, words = RecordsDigest(), 0, 0
    for record in read(part, reading):
        digest.add(record)
        number, words = number + 1, words + len(record.tokens)
    return replace(part, records=number, words=words, digest=digest.hex())


class RecordsDigest:
    """A fingerprint of records in their order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, record: Record) -> None:
        """Add one."""
        self._digest.update(json.dumps([record.id, record.text]).encode() + b"\n")

    def hex(self) -> str:
        """Of those so far."""
        return self._digest.hexdigest()


def read(part: Part, reading: Reading) -> Iterator[Record]:
    """The records of a part, one in memory at a time (of Parquet, some rows)."""
    layout, compression = layout_of(part.source)
    if layout == "text" and reading.id is not None:
        raise TextError(
            f"{part.source} is plain text, whose lines have no key: leave --id out, or give .jsonl or .parquet"
        )
    with ExitStack() as stack:
        try:
            stored = open_source(Source(part.source), stack)
            if layout == "parquet":
                yield from _parquet(part, stored, reading)
                return
            for number, line in enumerate(_lines(part, unpack(stored, compression, stack), reading.errors), start=1):
                if layout == "text":
                    yield Record(line)
                elif line and not line.isspace():
                    yield _parse(line, f"{part.source}, line {number} from byte {part.start:,}", reading)
        except (EOFError, lzma.LZMAError, zlib.error) as error:
            raise ElmoError(f"cannot read {part.source}: {error}") from error
        except OSError as error:
            raise ElmoError(f"cannot read {part.source}: {error.strerror or error}") from error


def _anywhere(source: Source) -> Source:
    """A source that other processes find too."""
    if not source.can_reopen:
        raise ElmoError(f"{source.shown} can be read by one process alone: give a file")
    return source if "://" in source.name else replace(source, name=str(Path(source.name).resolve()))


def _cut(source: Source, part_bytes: int) -> list[Part]:
    layout, compression = layout_of(source.name)
    if layout == "parquet":
        return [Part(source=source.name, start=group, end=group + 1) for group in range(_row_groups(source))]
    if compression or not source.size:
        return [Part(source=source.name)]
    starts = range(0, source.size, part_bytes)
    return [Part(source=source.name, start=start, end=start + part_bytes) for start in starts]


def _lines(part: Part, stream: Any, errors: Errors) -> Iterator[str]:
    """The lines that start in a part's range."""
    start, source = part.start, Source(part.source)
    if start:
        skip_to_line(stream, start, part.end or start)
        start = stream.tell()
    before = (lambda: count_lines(source, start)) if start else None
    reader = LineReader(stream, source.name, errors, lines_before=before)
    if part.end is not None and start >= part.end:
        return
    for line in reader:
        yield line
        if part.end is not None and start + reader.bytes_read >= part.end:
            return


def _parse(line: str, where: str, reading: Reading) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{where}: not JSON: {error}") from error
    wanted = [reading.field] if reading.id is None else [reading.field, reading.id]
    for name in wanted:
        if not isinstance(record, dict) or name not in record:
            raise TextError(f"{where}: an object with the field {name!r} is expected (--field, --id)")
    return _record(*(record[name] for name in wanted), where=where, reading=reading)


def _record(text: object, id: object = None, *, where: str, reading: Reading) -> Record:
    """A record of what stands in a file; nothing, as tables have it, is an empty sentence."""
    key = None
    if reading.id is not None:
        if type(id) not in (str, int):
            raise TextError(f"{where}: the id {reading.id!r} is {id!r:.50}: text or a whole number is expected")
        key = checked_text(str(id), where, reading.errors)
    if text is None:
        return Record("", key)
    if isinstance(text, str):
        return Record(checked_text(text, where, reading.errors), key)
    if isinstance(text, list) and all(isinstance(token, str) for token in text):
        if reading.language is not None:
            raise TextError(f"{where}: {reading.field!r} is a list of tokens: leave --tokenize out")
        return Record([checked_text(token, where, reading.errors) for token in text], key)
    raise TextError(f"{where}: {reading.field!r} is a {type(text).__name__}; text or a list of tokens is expected")


def _row_groups(source: Source) -> int:
    with ExitStack() as stack:
        groups: int = _open_parquet(open_source(source, stack), source.name).num_row_groups
        return groups


def _parquet(part: Part, stored: Any, reading: Reading) -> Iterator[Record]:
    file = _open_parquet(stored, part.source)
    wanted = [reading.field] if reading.id is None else [reading.field, reading.id]
    for name in wanted:
        if name not in file.schema_arrow.names:
            columns = ", ".join(file.schema_arrow.names)
            raise TextError(f"{part.source} has no column {name!r}, but {columns} (--field, --id)")
    row, where = 0, f"{part.source}, row group {part.start}"
    try:
        for batch in file.iter_batches(batch_size=256, row_groups=[part.start], columns=wanted):
            for values in zip(*(batch.column(name).to_pylist() for name in wanted), strict=True):
                row += 1
                yield _record(*values, where=f"{where}, row {row}", reading=reading)
    except (_arrow().ArrowException, UnicodeDecodeError) as error:
        raise ElmoError(f"cannot read {where}, after row {row}: {error}") from error


def _open_parquet(stored: Any, name: str) -> Any:
    try:
        return _arrow().parquet.ParquetFile(stored)
    except _arrow().ArrowException as error:
        raise ElmoError(f"cannot read {name}: {error}") from error


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Reading Parquet", "parquet") from error
    return pyarrow
