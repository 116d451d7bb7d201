"""A folder of parts that many processes write, on a disk or in a store that fsspec knows, and what made them.

A part is there whole or not at all, under a name that follows from its number. So a part that was made twice is there
once, and to go on after whatever happened is to make the parts that are not there. `_manifest.json` is written before
the first part: what the vectors are made of, and which parts there are to be. Its `complete` becomes true at the end.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elmo.config import parse_json
from elmo.errors import ElmoError
from elmo.files import cannot_write, locked, new_file
from elmo.jobs import compare_settings
from elmo.lm.reading import file_system
from elmo.sinks import About

MANIFEST = "_manifest.json"  # readers of Parquet pass over names that begin so
_LOCK = "_lock"
_OURS = re.compile(r"_lock|_manifest\.json|part-\d+\.parquet|\.(_manifest\.json|part-\d+\.parquet)\.new-.*")


class Folder:
    """Named files, each of which appears whole. Another process may be given it."""

    def __init__(self, name: str) -> None:
        """Name the folder, a path or a URL; nothing is made yet."""
        self.name = name if "://" in name else str(Path(name).resolve())

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk."""
        return "://" not in self.name

    def names(self) -> set[str]:
        """Of all files in it."""
        if self.is_local:
            path = Path(self.name)
            if path.exists() and not path.is_dir():
                raise ElmoError(f"{self.name} is a file: parts are written into a folder")
            return {file.name for file in path.iterdir()} if path.exists() else set()
        files, path_in = file_system(self.name)
        with self._store_errors():
            files.invalidate_cache()
            return {Path(name).name for name in files.ls(path_in, detail=False)} if files.exists(path_in) else set()

    def has(self, name: str) -> bool:
        """Whether a file is in it."""
        if self.is_local:
            return (Path(self.name) / name).exists()
        files, path = file_system(f"{self.name}/{name}")
        with self._store_errors():
            files.invalidate_cache()
            return bool(files.exists(path))

    def read(self, name: str) -> str:
        """The text of a file."""
        if self.is_local:
            return (Path(self.name) / name).read_text(encoding="utf-8")
        files, path = file_system(f"{self.name}/{name}")
        with self._store_errors():
            text: str = files.cat_file(path).decode("utf-8")
            return text

    @contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Yield a path to write to; it becomes the file `name` when the block ends well."""
        if self.is_local:
            with new_file(Path(self.name) / name) as beside:
                beside.parent.mkdir(parents=True, exist_ok=True)
                yield beside
            return
        with tempfile.TemporaryDirectory() as here:
            path = Path(here) / name
            yield path
            files, target = file_system(f"{self.name}/{name}")
            aside = f"{target.removesuffix(name)}.{name}.new-{Path(here).name}"  # some stores show what is half there
            with self._store_errors():
                files.makedirs(target.removesuffix(f"/{name}"), exist_ok=True)
                files.put_file(str(path), aside)
                files.mv(aside, target)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            if self.is_local:
                (Path(self.name) / name).unlink(missing_ok=True)
                continue
            files, path = file_system(f"{self.name}/{name}")
            with self._store_errors(), suppress(FileNotFoundError):
                files.rm_file(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs on this machine out; a store has no locks."""
        if not self.is_local:
            yield
            return
        try:
            Path(self.name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(Path(self.name), error) from error
        with locked(Path(self.name) / _LOCK, f"another run is writing into {self.name}: wait until it has ended"):
            yield

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each kind of store has its own
            raise ElmoError(f"cannot use the folder {self.name}: {error}") from error


def check(folder: Folder, *, resume: bool, overwrite: bool) -> set[str]:
    """Refuse a folder that a run must not write into, before there is any work: else the files that are there."""
    if resume and overwrite:
        raise ElmoError("resume and overwrite contradict each other: give one of them")
    there = folder.names() - {_LOCK}
    if strange := sorted(name for name in there if not _OURS.fullmatch(name)):
        raise ElmoError(f"{folder.name} holds something else than embedded parts ({strange[0]}): give another folder")
    if there and MANIFEST not in there and not overwrite:
        raise ElmoError(f"{folder.name} has parts but no {MANIFEST} that says what made them: --overwrite starts again")
    if there and not resume and not overwrite:
        raise ElmoError(f"{folder.name} has parts of a run: --resume goes on with it, --overwrite starts again")
    return there


def begin(folder: Folder, manifest: About, *, resume: bool, overwrite: bool) -> set[str]:
    """Write the manifest, or find that of a run that was cut, made with the same settings: the files that are there."""
    there = check(folder, resume=resume, overwrite=overwrite)
    if overwrite:
        folder.remove(there & {MANIFEST})  # first: without it, nobody takes the rest for a run that was cut
        folder.remove(there - {MANIFEST})
        there = set()
    if MANIFEST in there:
        then = parse_json(folder.read(MANIFEST), f"{folder.name}/{MANIFEST}")
        compare_settings(manifest["settings"], then.get("settings", {}), folder.name)
    else:
        write_manifest(folder, manifest)
    folder.remove(name for name in there if name.startswith("."))  # half-written when their writer was killed
    return there


def write_manifest(folder: Folder, manifest: About) -> None:
    """Write what made the parts and which there are."""
    with folder.new(MANIFEST) as path:
        path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def finish(folder: Folder, manifest: dict[str, Any]) -> None:
    """Check that every part is there, and no other, and say so."""
    expected = {part["file"] for part in manifest["parts"]}
    there = folder.names()
    found = {name for name in there if name.startswith("part-")}
    if expected != found:
        raise ElmoError(
            f"{folder.name} has {len(found & expected):,} of {len(expected):,} parts and {len(found - expected):,} "
            "others: the same command with --resume makes what is missing"
        )
    # Of workers that were killed in this run.
    folder.remove(name for name in there if name.startswith(".") and _OURS.fullmatch(name))
    write_manifest(folder, manifest | {"complete": True})
