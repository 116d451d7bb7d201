"""Files and folders that are there whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from elmo.errors import ElmoError

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


def check_new_file(path: Path, *, overwrite: bool) -> None:
    """Refuse, before any work is done, to write where a folder or a device is, or a file that is to stay."""
    if path.exists() and not path.is_file():
        raise ElmoError(f"{path} is {'a folder' if path.is_dir() else 'no plain file'}: give the name of a file")
    if path.exists() and not overwrite:
        raise ElmoError(f"{path} exists: --overwrite replaces it")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; it takes `path`'s place when the block ends well, and is removed when it does not."""
    target = path.resolve()  # a link stays one: what it points to is written
    beside = _beside(target)
    try:
        yield beside
        with beside.open("r+b") as written:  # Windows brings to the disk what is open for writing
            os.fsync(written.fileno())
        beside.replace(target)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; it takes `path`'s place when the block ends well, and is removed when it does not."""
    path = path.resolve()
    beside, old = _beside(path), _beside(path, "old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        yield beside
        if path.exists():
            path.rename(old)
        beside.rename(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


class CheckedFile(io.FileIO):
    """A file for HDF5 to write into, which it must not see fail: it crashes where a disk is full.

    The first error is kept and nothing more is written; `check` raises it.
    """

    def __init__(self, path: Path) -> None:
        """Make the file."""
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write all of `data`, or keep the error and say that it was."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self._error is None and rest:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None, /) -> int:
        """Change the size, or keep the error."""
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._error is not None:
            raise self._error


@contextmanager
def new_hdf5(path: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Make an HDF5 file; yield it and a function that raises when a write has failed, to be called now and then."""
    with CheckedFile(path) as raw:
        with h5py.File(raw, "w") as file:
            yield file, raw.check
        raw.check()


@contextmanager
def locked(path: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold a lock file for this process alone; where another has it, refuse, or wait if there is no `refusal`.

    Some systems have no such locks, and some file systems that are shared by machines.
    """
    with path.open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX if refusal is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass
        except BlockingIOError as error:
            raise ElmoError(refusal or f"cannot lock {path}: {error.strerror}") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise ElmoError(f"cannot lock {path}: {error.strerror}") from error
        yield


def cannot_write(path: Path, error: Exception) -> ElmoError:
    """What to tell a user whose disk is full or whose folder is not theirs."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ElmoError(f"cannot write {path}: {reason}")


def _beside(path: Path, what: str = "new") -> Path:
    return path.with_name(f".{path.name}.{what}-{os.getpid()}")
