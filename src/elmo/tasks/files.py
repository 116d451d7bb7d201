"""Files of task data: lines with their numbers, unpacked, out of a tar archive where a path leads into one.

`data.tar.xz/folder/train.conllu` is a path. Members are read where they lie and never written to disk, so their names
cannot lead anywhere. Every mistake in a file is an error with its name and line.
"""

from __future__ import annotations

import gzip
import json
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from elmo.errors import ElmoError

_MOST_BYTES = 2**30  # of one file, unpacked
_PLAIN = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def wrong(path: str, line: int, found: str, expected: str) -> ElmoError:
    """The error for a line that is not as it should be."""
    return ElmoError(f"{path}, line {line}: found {found}, expected {expected}")


def plain(word: str) -> str:
    r"""A word that the Penn Treebank writes its own way (brackets, quotes, `\/` and `\*`) as a text has it.

    Text is what models were trained on.
    """
    return _PLAIN.get(word) or word.replace("\\/", "/").replace("\\*", "*")


def lines(path: str, longest: int | None = None) -> Iterator[tuple[int, str]]:
    """Numbered lines, from 1, without their ends; they are read as they are asked for.

    Args:
        path: a file, packed or not, or a member of an archive.
        longest: bytes that a line may have, in a file of any size; without it, the size of the whole is bounded.
    """
    left = longest or _MOST_BYTES
    with _opened(path) as file:
        for number in count(1):
            data = file.readline(left + 1)
            if len(data) > left:
                raise _too_long(path) if longest is None else wrong(path, number, f"over {left:,} bytes", "a line")
            if longest is None:
                left -= len(data)
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise ElmoError(f"{path}, line {number}: not UTF-8") from None
            yield number, line.removesuffix("\n").removesuffix("\r")
            if not data.endswith(b"\n"):
                return


def json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered objects of a file that has one a line; blank lines are passed over."""
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if "\\ud" in line.lower():  # only by such an escape can half a surrogate pair come in
                json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise wrong(path, number, f"half a surrogate pair ({half!a})", "valid Unicode") from None
        except (ValueError, RecursionError) as error:
            raise wrong(path, number, f"no JSON ({error})", "an object a line") from None
        if not isinstance(record, dict):
            raise wrong(path, number, f"{record!r:.40}", "an object a line")
        yield number, record


def read_bytes(path: str) -> bytes:
    """A file, `.gz` and `.xz` unpacked, or a member of a tar archive."""
    with _opened(path) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _too_long(path)
    return data


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """What `read_bytes` reads, open; whatever is wrong with it is an error with its name."""
    try:
        archive = _archive_in(path)
        with _open(path) if archive is None else _member(*archive) as file:
            yield file
    except tarfile.TarError as error:
        raise ElmoError(f"cannot read {path}: {error}") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ElmoError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _open(path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path))
    return cast(IO[bytes], lzma.open(path)) if path.endswith(".xz") else open(path, "rb")


def _archive_in(path: str) -> tuple[Path, PurePosixPath] | None:
    """The archive on the way of a path and what is asked of it; None if the path is one of the file system."""
    whole = Path(path)
    for parent in whole.parents:
        if parent.is_file():
            return parent, PurePosixPath(whole.relative_to(parent).as_posix())
    return None


@contextmanager
def _member(archive: Path, name: PurePosixPath) -> Iterator[IO[bytes]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if PurePosixPath(member.name) == name and member.isreg():  # a link is never followed
                with cast(IO[bytes], tar.extractfile(member)) as file:
                    yield file
                return
    raise ElmoError(f"{archive} has no file {name}")


def names_below(path: str) -> list[str]:
    """All files below a folder, on the disk or in an archive."""
    folder = Path(path)
    if folder.is_dir():
        return [str(file) for file in folder.rglob("*") if file.is_file()]
    archive = (folder, PurePosixPath(".")) if folder.is_file() else _archive_in(path)
    if archive is None:
        raise ElmoError(f"there is nothing at {path}")
    try:
        with tarfile.open(archive[0]) as tar:
            names = [PurePosixPath(member.name) for member in tar if member.isreg()]
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ElmoError(f"cannot read {archive[0]}: {error}") from error
    return [f"{archive[0]}/{name}" for name in names if name.is_relative_to(archive[1])]


def _too_long(path: str) -> ElmoError:
    return ElmoError(f"{path} has more than {_MOST_BYTES:,} bytes unpacked, which no task's file should")
