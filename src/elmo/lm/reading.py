"""Text wherever it lies, as lines: files, globs, folders, URLs; plain, compressed, JSON lines or Parquet.

A blank line stands between two documents. One is also yielded at the start of each file, and of each record of JSON
lines or Parquet: a record is a document, whatever blank lines are in it.
"""

from __future__ import annotations

import glob
import gzip
import io
import json
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from elmo.errors import ElmoError, MissingExtraError, TextError
from elmo.lines import Errors, LineReader

_PIECE_BYTES = 2**23
_LONGEST_LINE = 2**22  # bytes of a sentence or paragraph: its tokens are in memory together
_BLOCK = 2**13  # compressed bytes at a time: they may hold thousands of times as many

Layout = Literal["text", "jsonl", "parquet"]


@dataclass(frozen=True)
class Source:
    """A file, by its path or URL, or standard input (`-`)."""

    name: str
    size: int = 0
    """In bytes as it is stored; 0 where nobody knows."""
    changed: int = 0
    """When it was written, in nanoseconds: tells on resuming whether it is still the same."""
    can_reopen: bool = True
    """Whether another process can read it, and again; not so for standard input and pipes."""

    @property
    def place(self) -> str:
        """What is the same for the same file, by whatever path it was given."""
        return self.name if self.name == "-" or "://" in self.name else os.path.realpath(self.name)

    @property
    def shown(self) -> str:
        """What to call it in a message."""
        return "standard input" if self.name == "-" else self.name


@dataclass(frozen=True)
class Piece:
    """What one worker reads at a time: a source, or the lines of it that start in a range of its bytes."""

    source: Source
    start: int = 0
    end: int | None = None
    """None: to the end of the source."""
    held_out: bool = False
    """Whether it was given as held-out text."""


def find_sources(texts: Iterable[str], made: Sequence[Path] = ()) -> list[Source]:
    """The files that paths, folders, globs and URLs stand for; the files of each by name, a file given twice once.

    Those in `made` are left out, which whoever asks is about to write: a pattern may match them.
    """
    if isinstance(texts, str):
        raise ElmoError(f"a list of texts is expected, not the string {texts[:40]!r}: put it in a list")
    found: dict[str, Source] = {}
    for text in texts:
        for source in _find(text):
            inside = next((folder for folder in made if Path(source.place).is_relative_to(folder.resolve())), None)
            if inside is None:
                found.setdefault(source.place, source)
            elif not _is_pattern(text):
                raise ElmoError(
                    f"{source.shown} is given as text, and is what is to be written ({inside}): leave it out; a "
                    "pattern in quotes, such as 'texts/*', does so"
                )
    return list(found.values())


def cut(sources: Iterable[Source], *, held_out: bool = False) -> list[Piece]:
    """Cut sources into pieces of bounded size where their layout allows it; the same ones whoever reads them."""
    pieces = []
    for source in sources:
        if not source.can_reopen or "://" in source.name or layout_of(source.name) != ("text", ""):
            pieces.append(Piece(source, held_out=held_out))
            continue
        starts = range(0, max(source.size, 1), _PIECE_BYTES)
        pieces += [Piece(source, start, start + _PIECE_BYTES, held_out) for start in starts]
    return pieces


def layout_of(name: str) -> tuple[Layout, str]:
    """What a file's name says about it: its layout and its compression (`.gz`, `.xz`, `.zst` or nothing)."""
    path = Path(name.lower())
    compression = path.suffix if path.suffix in (".gz", ".xz", ".zst") else ""
    ending = Path(path.stem).suffix if compression else path.suffix
    if ending == ".parquet":
        return "parquet", ""  # it has its own compression inside
    return ("jsonl" if ending == ".jsonl" else "text"), compression


class Lines:
    """The lines of a piece, as this module's docstring says; `bytes_done` says how far it has come."""

    def __init__(self, piece: Piece, *, field: str = "text", errors: Errors = "strict") -> None:
        """Read a piece; `field` names the text in a record of JSON lines or the column of Parquet."""
        self._piece = piece
        self._name = piece.source.shown
        self._field = field
        self._errors: Errors = errors
        self._tell: Callable[[], int] = lambda: 0

    @property
    def bytes_done(self) -> int:
        """How many of the source's bytes, as they are stored, have been read."""
        return self._tell()

    def __iter__(self) -> Iterator[str]:
        """Yield line after line, without line ends."""
        layout, compression = layout_of(self._piece.source.name)
        with ExitStack() as stack:
            try:
                stored = open_source(self._piece.source, stack)
                if layout == "parquet":
                    yield from self._parquet(stored)
                elif layout == "jsonl":
                    yield from self._json(unpack(stored, compression, stack), stored)
                else:
                    yield from self._plain(unpack(stored, compression, stack), stored)
            except (EOFError, lzma.LZMAError, zlib.error) as error:
                raise ElmoError(f"cannot read {self._name}: {error}") from error
            except OSError as error:
                raise ElmoError(f"cannot read {self._name}: {error.strerror or error}") from error

    def _plain(self, stream: BinaryIO, stored: BinaryIO) -> Iterator[str]:
        start, end = self._piece.start, self._piece.end
        if start == 0:
            reader = LineReader(stream, self._name, self._errors, longest=_LONGEST_LINE)
            yield ""
        else:
            skip_to_line(stream, start, end or start)
            first = stream.tell()
            reader = LineReader(
                stream,
                self._name,
                self._errors,
                longest=_LONGEST_LINE,
                lines_before=lambda: count_lines(self._piece.source, first),
            )
            start = first
        if end is not None and start >= end:
            return
        if end is not None or not self._piece.source.can_reopen:
            self._tell = lambda: reader.bytes_read
        else:
            self._tell = stored.tell
        for line in reader:
            yield line
            if end is not None and start + reader.bytes_read >= end:
                return

    def _json(self, stream: BinaryIO, stored: BinaryIO) -> Iterator[str]:
        if self._piece.source.can_reopen:
            self._tell = stored.tell
        for number, line in enumerate(LineReader(stream, self._name, self._errors), start=1):
            if line and not line.isspace():
                where = f"{self._name}, line {number}"
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise TextError(f"{where}: not JSON: {error}") from error
                if not isinstance(record, dict) or self._field not in record:
                    raise TextError(f"{where}: an object with the field {self._field!r} is expected (--field)")
                yield from self._record(record[self._field], where)

    def _parquet(self, stored: BinaryIO) -> Iterator[str]:
        try:
            import pyarrow
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise MissingExtraError("Reading Parquet", "corpus") from error
        row = 0
        try:
            file = ParquetFile(stored)
            if self._field not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise TextError(f"{self._name} has no column {self._field!r}, but {columns} (--field)")
            size, rows = self._piece.source.size, max(file.metadata.num_rows, 1)
            self._tell = lambda: size * row // rows
            for batch in file.iter_batches(batch_size=256, columns=[self._field]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield from self._record(value, f"{self._name}, row {row}")
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise ElmoError(f"cannot read {self._name}: after row {row}: {error}") from error

    def _record(self, text: object, where: str) -> Iterator[str]:
        if text is None:  # tables have holes
            return
        if not isinstance(text, str):
            raise TextError(f"{where}: {self._field!r} is a {type(text).__name__}; text is expected")
        yield ""
        for line in checked_text(text, where, self._errors).split("\n"):
            if len(line) > _LONGEST_LINE:
                raise TextError(f"{where}: a line of more than {_LONGEST_LINE // 2**20} Mi characters")
            if line and not line.isspace():
                yield line


def _is_pattern(text: str) -> bool:
    """Whether a text stands for all files that are called like it."""
    return "://" not in text and glob.has_magic(text) and not Path(text).exists()


def _find(text: str) -> Sequence[Source]:
    if text == "-":
        return [Source("-", can_reopen=False)]
    if "://" in text:
        return _find_remote(text)
    path = Path(text)
    if _is_pattern(text):
        names = sorted(glob.glob(text, recursive=True))
        if not names:
            raise ElmoError(f"no file is called like {text}")
        found = [
            source for name in names for source in (_inside(Path(name)) if os.path.isdir(name) else [_local(name)])
        ]
        if not found:
            raise ElmoError(f"what is called like {text} is folders with no file in them")
        return found
    if path.is_dir():
        inside = _inside(path)
        if not inside:
            raise ElmoError(f"the folder {text} has no file in it")
        return inside
    return [_local(text)]


def _inside(folder: Path) -> list[Source]:
    """The files of a folder and of those in it, but for what is hidden."""
    inside = sorted(file for file in folder.rglob("*") if file.is_file())
    shown = [file for file in inside if not any(part.startswith(".") for part in file.relative_to(folder).parts)]
    return [_local(str(file)) for file in shown]


def _local(name: str) -> Source:
    try:
        facts = os.stat(name)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ElmoError(f"cannot read {name}: {reason}") from error
    if not stat.S_ISREG(facts.st_mode):
        return Source(name, can_reopen=False)
    return Source(name, facts.st_size, facts.st_mtime_ns)


def _find_remote(url: str) -> list[Source]:
    files, path = file_system(url)
    try:
        if glob.has_magic(path):
            names = sorted(files.glob(path))
        else:
            names = sorted(files.find(path)) if files.isdir(path) else [path]
        sizes = [files.info(name).get("size") for name in names]
    except Exception as error:  # each kind of store has its own
        raise ElmoError(f"cannot read {url}: {error}") from error
    if not names:
        raise ElmoError(f"no file is called like {url}")
    return [Source(files.unstrip_protocol(name), size or 0) for name, size in zip(names, sizes, strict=True)]


def file_system(url: str) -> tuple[Any, str]:
    """The store that a URL is of, as fsspec knows it, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError("Reading a URL", "corpus") from error
    try:
        files, path = url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ElmoError(f"cannot read {url}: {error}") from error
    return files, str(path)


def open_source(source: Source, stack: ExitStack) -> BinaryIO:
    """A source's bytes as they are stored; the stack closes it."""
    if source.name == "-":
        if sys.stdin is None:
            raise ElmoError("standard input is closed: give a file")
        return sys.stdin.buffer
    if "://" not in source.name:
        return stack.enter_context(open(source.name, "rb"))
    files, path = file_system(source.name)
    try:
        opened = files.open(path, "rb")
    except Exception as error:  # each kind of store has its own
        raise ElmoError(f"cannot read {source.name}: {error}") from error
    return stack.enter_context(io.BufferedReader(opened))  # `readline` of a store's own file takes no length


def unpack(stored: BinaryIO, compression: str, stack: ExitStack) -> BinaryIO:
    """The bytes that compressed ones stand for; `compression` is what `layout_of` says."""
    if compression == ".gz":
        return io.BufferedReader(stack.enter_context(gzip.GzipFile(fileobj=stored)))
    if compression == ".xz":
        return io.BufferedReader(stack.enter_context(lzma.LZMAFile(stored)))
    if compression == ".zst":
        return io.BufferedReader(_Zstandard(stored), buffer_size=2**17)
    return stored


class _Zstandard(io.RawIOBase):
    """Unpacks frame after frame; zstandard's own reader takes a file that was cut for one that ends."""

    def __init__(self, stored: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtraError("Reading .zst", "corpus") from error
        self._stored = stored
        self._error = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._packed = b""
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any, /) -> int:
        while not self._unpacked:
            self._packed = self._packed or self._stored.read(_BLOCK)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the file was cut: its last frame has no end")
                return 0
            self._frame = self._frame or self._new_frame()
            try:
                self._unpacked = memoryview(self._frame.decompress(self._packed))
            except self._error as error:
                raise OSError(str(error)) from error
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        size = min(len(target), len(self._unpacked))
        target[:size] = self._unpacked[:size]
        self._unpacked = self._unpacked[size:]
        return size


def skip_to_line(stream: BinaryIO, start: int, end: int) -> None:
    """Go to the first line that starts at `start` or after it, or past `end`."""
    stream.seek(start - 1)
    while stream.tell() <= end and (rest := stream.readline(2**16)) and not rest.endswith(b"\n"):
        pass


def count_lines(source: Source, end: int) -> int:
    """How many lines lie before byte `end`."""
    lines = 0
    with ExitStack() as stack:
        file = open_source(source, stack)
        while end > 0 and (block := file.read(min(2**20, end))):
            lines += block.count(b"\n")
            end -= len(block)
    return lines


def checked_text(text: str, where: str, errors: Errors) -> str:
    """Records may hold what a text file may not: NUL, and halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            raise TextError(f"{where}: half a surrogate pair, which is no text; --errors replace goes on") from error
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if "\0" in text:
        if errors == "strict":
            raise TextError(f"{where}: a NUL character, so this is hardly text; --errors replace goes on")
        text = text.replace("\0", "\ufffd")
    return text
