"""Files and folders that are there whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmo.errors import ElmoError


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; it takes `path`'s place when the block ends well, and is removed when it does not."""
    beside = _beside(path)
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a folder to fill; it takes `path`'s place when the block ends well, and is removed when it does not."""
    if path.exists() and not overwrite:
        raise ElmoError(f"{path} exists: give another path, or say to overwrite it")
    if path.exists() and not path.is_dir():
        raise ElmoError(f"{path} is a file: a folder is to be written there")
    beside, old = _beside(path), _beside(path, "old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        yield beside
        if path.exists():
            path.rename(old)
        beside.rename(path)
    except OSError as error:
        if old.exists() and not path.exists():
            old.rename(path)
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def cannot_write(path: Path, error: Exception) -> ElmoError:
    """What to tell a user whose disk is full or whose folder is not theirs."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ElmoError(f"cannot write {path}: {reason}")


def _beside(path: Path, what: str = "new") -> Path:
    return path.with_name(f".{path.name}.{what}-{os.getpid()}")
