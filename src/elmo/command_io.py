"""What several commands do: load a model, open text and output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from elmo.errors import ElmoError

if TYPE_CHECKING:
    from elmo.api import Model
    from elmo.lines import LineReader


def load_model(model: str | None, options: str | None, vocab: str | None) -> Model:
    """A model by its path and those of its other files; the embedded one for None."""
    from elmo.api import load

    return load(model, options=options, vocab=vocab)


@contextmanager
def open_lines(source: str, errors: str) -> Iterator[tuple[LineReader, int | None]]:
    """Lines of a file or of standard input, and the file's size where it is known."""
    from elmo.lines import LineReader

    checked: Any = errors
    if source == "-":
        if sys.stdin is None:
            raise ElmoError("standard input is closed: give a file")
        yield LineReader(sys.stdin.buffer, "standard input", checked), None
        return
    try:
        file: BinaryIO = open(source, "rb")  # noqa: SIM115 - closed below; an error in the block must not come here
    except OSError as error:
        raise ElmoError(f"cannot read {source}: {error.strerror}") from error
    with file:
        yield LineReader(file, source, checked), os.fstat(file.fileno()).st_size or None


def sentences_of(lines: LineReader, tokenize: bool, language: str) -> Iterator[list[str]]:
    """Lines of tokens, or raw text as sentences."""
    if not tokenize:
        return (line.split() for line in lines)
    from elmo.text import Tokenizer

    tokenizer = Tokenizer(language)
    return (sentence.tokens for line in lines for sentence in tokenizer(line))


@contextmanager
def told_of_resuming(out: str | Path | None, *, overwrite: bool = False) -> Iterator[None]:
    """Say on Ctrl-C how a run that writes to `out` goes on, if it writes anything."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            how = "--resume in the place of --overwrite" if overwrite else "--resume"
            print(f"\ninterrupted; the same command with {how} goes on with {out}", file=sys.stderr)
        raise


@contextmanager
def open_output(out: str, *, overwrite: bool) -> Iterator[Callable[[str], object]]:
    """What writes text to standard output, line by line, or to a file that is there when all is written."""
    from elmo.files import check_new_file, new_file

    if out == "-":
        if sys.stdout is None:
            raise ElmoError("standard output is closed: give a file with -o")

        def write(line: str) -> None:
            print(line, end="", flush=True)  # whoever reads along is answered at once

        yield write
        return
    check_new_file(Path(out), overwrite=overwrite)
    with new_file(Path(out)) as beside, beside.open("w", encoding="utf-8") as file:
        yield file.write
