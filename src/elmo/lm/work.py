"""The folder beside an output where everything lies until it is whole, and from where a run that was cut goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmo.config import read_json
from elmo.errors import ElmoError, TextError
from elmo.files import cannot_write, locked, new_file
from elmo.lm.parts import part_paths

_KNOWN = re.compile(r"reading\.json|lock|counts|words|numbers|assembled|old|part-\d+-\d+\.npz|\..*")


class Work:
    """`OUT.partial`: the parts, and how they were read."""

    def __init__(self, out: Path) -> None:
        """Name the folder beside `out`; nothing is written yet."""
        self.out = out.resolve()  # a link stays one: what it points to is written
        self.folder = self.out.with_name(self.out.name + ".partial")
        self._assembled = self.folder / "assembled"

    @contextmanager
    def locked(self, reading: Mapping[str, Any], *, overwrite: bool) -> Iterator[None]:
        """Make the folder, or go on with it where `reading` is what made its parts, and keep other runs out of it.

        It stays where the run is cut after some parts were written, for then another run can go on with them; not so
        where the text is at fault.
        """
        try:
            self._refuse_strange_files()
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / "lock", f"another run is writing into {self.folder}: wait until it has ended"):
                try:
                    self._begin(json.loads(json.dumps(reading)), overwrite=overwrite)
                    yield
                except TextError:
                    self.clear()
                    raise
                finally:
                    if not part_paths(self.folder):
                        shutil.rmtree(self.folder)
        except OSError as error:
            raise cannot_write(self.out, error) from error

    def assemble(self, write: Callable[[Path], None]) -> None:
        """Let a folder be filled and put it into the place of `out`; the parts are of no use any more."""
        shutil.rmtree(self._assembled, ignore_errors=True)
        self._assembled.mkdir()
        write(self._assembled)
        for path in self._assembled.iterdir():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        if self.out.exists():
            shutil.rmtree(self.folder / "old", ignore_errors=True)
            self.out.rename(self.folder / "old")
        self._assembled.rename(self.out)
        self.clear()

    def clear(self) -> None:
        """Remove everything; first what says how it was read, lest half of it be taken for a run that was cut."""
        (self.folder / "reading.json").unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    def _begin(self, reading: Mapping[str, Any], *, overwrite: bool) -> None:
        path = self.folder / "reading.json"
        if not overwrite and path.exists():
            compare(reading, read_json(path), self.folder)
        else:
            self.clear()
            with new_file(path) as beside:
                beside.write_text(json.dumps(reading, indent=1) + "\n", encoding="utf-8")
        for torn in self.folder.glob(".*"):
            torn.unlink()

    def _refuse_strange_files(self) -> None:
        if self.folder.exists():
            strange = [path.name for path in self.folder.iterdir() if not _KNOWN.fullmatch(path.name)]
            if strange:
                raise ElmoError(f"{self.folder} holds something else than a run that was cut ({min(strange)})")


def compare(now: Mapping[str, Any], then: Mapping[str, Any], where: Path) -> None:
    """Refuse to go on with what was made with other settings."""
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) != then.get(name):
            was = f"was {then.get(name)!r} and is {now.get(name)!r} now" if name != "text" else "has changed since"
            raise ElmoError(
                f"{where} was made with other settings: {name} {was}; give the same, or --overwrite to start again"
            )
