"""Files of a model where they lie: in a folder, in a zip, in a tar. Nothing is ever unpacked to disk.

Archives come from anywhere. A name that leads out of the archive, a link and a device are refused, and so is a member
that would be far larger than what is stored of it: weights hardly compress, bombs do.
"""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from elmo.errors import ElmoError

_MOST_BYTES = 2**33  # of all that is read of an archive: many times the largest published model
_MOST_TEXT = 2**28
_MOST_RATIO = 100  # of what a member holds to what is stored of it
_SMALL = 2**20  # bytes that any member may hold, whatever the ratio
_MOST_MEMBERS = 10_000
_PIECE = 2**20


class Files(Protocol):
    """A place with files in it."""

    @property
    def name(self) -> str:
        """What an error calls it."""

    def names(self) -> list[str]:
        """Names of its files, with `/` between folders."""

    def open(self, name: str) -> IO[bytes]:
        """A file to read and to seek in."""


class Folder:
    """The files directly in a folder."""

    def __init__(self, path: Path) -> None:
        """Look into a folder."""
        self.name = str(path)
        self._path = path

    def names(self) -> list[str]:
        """Names of its files."""
        return sorted(path.name for path in self._path.iterdir() if path.is_file())

    def open(self, name: str) -> IO[bytes]:
        """A file to read and to seek in."""
        try:
            return (self._path / name).open("rb")
        except OSError as error:
            raise ElmoError(f"cannot read {self._path / name}: {error.strerror}") from error


class Members:
    """Members of an archive that were read into memory."""

    def __init__(self, name: str, members: dict[str, bytes]) -> None:
        """Hold them."""
        self.name = name
        self._members = members

    def names(self) -> list[str]:
        """Names of the members."""
        return sorted(self._members)

    def open(self, name: str) -> IO[bytes]:
        """A member to read and to seek in."""
        return io.BytesIO(self._members[name])


def read_text(files: Files, name: str) -> str:
    """A file of text; one that is gzipped, by its name, is unpacked."""
    with files.open(name) as file:
        content = file.read(_MOST_TEXT + 1)
    if len(content) > _MOST_TEXT:
        raise _too_long(f"{files.name}/{name}")
    if name.endswith(".gz"):
        content = _gunzip(content, f"{files.name}/{name}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ElmoError(f"{files.name}/{name} is not UTF-8 (byte {error.start})") from error


def read_zip(path: Path, wanted: tuple[str, ...]) -> Members:
    """Members of a zip whose names end with one of `wanted`; a folder around all of them is taken off."""
    with _damaged(path, "zip"), zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        _check_count(path, len(infos))
        for info in infos:
            if stat.S_ISLNK(info.external_attr >> 16):
                raise ElmoError(f"{path} holds a link ({info.filename!r:.80}): it is not opened")
            _check_name(path, info.filename)
            _check_ratio(f"{path}: {info.filename!r:.80}", info.file_size, info.compress_size)
        taken = [info for info in infos if info.filename.endswith(wanted)]
        _check_total(path, sum(info.file_size for info in taken))
        members = {}
        for info in taken:
            with archive.open(info) as member:
                members[info.filename] = _read(member, info.file_size, f"{path}: {info.filename!r:.80}")
    return Members(str(path), _without_folder(members))


def read_tar(path: Path, wanted: tuple[str, ...]) -> Members:
    """Members of a gzipped tar whose names end with one of `wanted`."""
    most = min(_MOST_BYTES, _SMALL * 64 + _MOST_RATIO * path.stat().st_size)
    with _damaged(path, "tar.gz"), gzip.open(path) as unzipped:
        bounded = _Bounded(unzipped, most, path)
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            members = dict(_tar_members(archive, path, wanted))
    return Members(str(path), members)


def _tar_members(archive: tarfile.TarFile, path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for count, info in enumerate(archive):
        _check_count(path, count)
        if info.isdir():
            continue
        if not info.isreg() or info.issparse():  # a file with holes is as large as it says, whatever is stored of it
            raise ElmoError(f"{path} holds a link, a device or a file with holes ({info.name!r:.80}): it is not opened")
        _check_name(path, info.name)
        if info.name.endswith(wanted):
            _check_total(path, info.size)
            member = archive.extractfile(info)
            assert member is not None  # it is a plain file
            yield info.name.removeprefix("./"), _read(member, info.size, f"{path}: {info.name!r:.80}")


class _Bounded(io.RawIOBase):
    """Passes on what is unzipped, up to a limit."""

    def __init__(self, file: gzip.GzipFile, most: int, path: Path) -> None:
        self._file, self._left, self._path = file, most, path

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Some bytes, refused where there are more than any model has."""
        piece = self._file.read(_PIECE if size < 0 else min(size, self._left + 1))
        self._left -= len(piece)
        if self._left < 0:
            raise _bomb(str(self._path))
        return piece


def _read(member: IO[bytes], size: int, what: str) -> bytes:
    """A member of the size that its archive says; what says less than it holds is refused."""
    pieces, left = [], size + 1
    while left and (piece := member.read(min(left, _PIECE))):
        pieces.append(piece)
        left -= len(piece)
    content = b"".join(pieces)
    if len(content) != size:
        raise ElmoError(f"{what} is not of the size that the archive says: the file is damaged")
    return content


def _gunzip(content: bytes, what: str) -> bytes:
    most = min(_MOST_TEXT, _SMALL + _MOST_RATIO * len(content))
    with _damaged(what, "gzip"), gzip.open(io.BytesIO(content)) as file:
        plain = file.read(most + 1)
    if len(plain) == _MOST_TEXT + 1:
        raise _too_long(what)
    if len(plain) > most:
        raise _bomb(what)
    return plain


@contextmanager
def _damaged(path: object, kind: str) -> Iterator[None]:
    try:
        yield
    except ElmoError:
        raise
    except Exception as error:  # zipfile, tarfile and zlib meet damage with errors of a dozen types
        raise ElmoError(f"{path} is a damaged {kind} file: {error}") from error


def _check_name(path: Path, name: str) -> None:
    if name.startswith(("/", "\\")) or ":" in name or ".." in name.replace("\\", "/").split("/"):
        raise ElmoError(f"{path} holds {name!r:.80}, a name that leads out of the archive: it is not opened")


def _check_count(path: Path, count: int) -> None:
    if count > _MOST_MEMBERS:
        raise ElmoError(f"{path} holds more than {_MOST_MEMBERS:,} files: it is no model")


def is_bomb(size: int, stored: int) -> bool:
    """Whether so many bytes are far more than what is stored of them, as those of no model are."""
    return size > _SMALL + _MOST_RATIO * stored


def _check_ratio(what: str, size: int, stored: int) -> None:
    if is_bomb(size, stored):
        raise _bomb(what)


def _check_total(path: Path, size: int) -> None:
    if size > _MOST_BYTES:
        raise ElmoError(f"{path} holds {size:,} bytes; more than {_MOST_BYTES:,} are not read into memory")


def _too_long(what: str) -> ElmoError:
    return ElmoError(f"{what} holds more than {_MOST_TEXT:,} bytes, as no such file of a model does")


def _bomb(what: str) -> ElmoError:
    return ElmoError(f"{what} unpacks to more than {_MOST_RATIO} times its size, as no model does: it is not opened")


def _without_folder(members: dict[str, bytes]) -> dict[str, bytes]:
    folders = {name.rpartition("/")[0] for name in members}
    if len(folders) != 1:
        return members
    return {name.rpartition("/")[2]: content for name, content in members.items()}
