"""Bytes to lines of text, checked: what is not text is an error that names the line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal, get_args

from elmo.errors import ElmoError, TextError

Errors = Literal["strict", "replace"]

_LONGEST_LINE = 2**26  # bytes; a line is held in memory, so it must have an end
_BOM = b"\xef\xbb\xbf"


class LineReader:
    """The lines of a UTF-8 stream without their line ends; `bytes_read` says how far it has come."""

    def __init__(
        self,
        stream: BinaryIO,
        name: str,
        errors: Errors = "strict",
        *,
        longest: int | None = None,
        lines_before: Callable[[], int] | None = None,
    ) -> None:
        """Read `stream`, called `name` in errors; `errors="replace"` puts U+FFFD for what is not text.

        No line has more than `longest` bytes (64 MiB if not given). Where the stream starts inside a file,
        `lines_before` counts the lines before it: it is called for the sake of an error message alone.
        """
        if errors not in get_args(Errors):
            raise ElmoError(f"errors is {errors!r}: give 'strict' or 'replace'")
        self._stream = stream
        self._name = name
        self._errors = errors
        self._longest = longest or _LONGEST_LINE
        self._lines_before = lines_before
        self.bytes_read = 0

    def __iter__(self) -> Iterator[str]:
        """Yield line after line."""
        number = 0
        while line := self._readline():
            number += 1
            self.bytes_read += len(line)
            if len(line) > self._longest:
                raise TextError(
                    f"{self._where(number)}: longer than {self._longest // 2**20} MiB; one sentence a line is expected"
                )
            if number == 1 and self._lines_before is None:
                line = line.removeprefix(_BOM)
            yield self._decode(line, number).rstrip("\r\n")

    def _readline(self) -> bytes:
        try:
            return self._stream.readline(self._longest + 1)
        except OSError as error:
            raise ElmoError(f"cannot read {self._name}: {error.strerror or error}") from error

    def _where(self, number: int) -> str:
        return f"{self._name}, line {number + (self._lines_before() if self._lines_before else 0)}"

    def _decode(self, line: bytes, number: int) -> str:
        hint = "--errors replace goes on with U+FFFD in its place"
        try:
            text = line.decode("utf-8", self._errors)
        except UnicodeDecodeError as error:
            raise TextError(
                f"{self._where(number)}: not UTF-8 at byte {error.start} (0x{line[error.start]:02x}); {hint}"
            ) from error
        if "\0" in text:
            if self._errors == "strict":
                raise TextError(f"{self._where(number)}: a NUL byte, so this is hardly text; {hint}")
            text = text.replace("\0", "\ufffd")
        return text
