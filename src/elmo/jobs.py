"""Embed a stream of sentences into a file, in bounded memory, so that a run that is cut can go on.

While a run lasts, what it has embedded lies beside its output, in `OUT.partial`: a file for each window, written whole
or not at all, and the settings. When the last window is there they are put together into one file, which takes the
place of OUT, and the folder goes. So a process killed at any moment loses one window, a full disk loses nothing, and
OUT is never half-written. The price is disk space for the vectors twice while the file is put together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmo.chars import refuse_string
from elmo.config import read_json
from elmo.embed import Embedder, Sentence, Window, as_tokens
from elmo.errors import ElmoError
from elmo.files import cannot_write, locked, new_file
from elmo.model import State
from elmo.sinks import (
    About,
    FileFormat,
    Record,
    SentenceKeys,
    check_format,
    format_of,
    read_about,
    write_records,
)

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Progress:
    """How far a job has come."""

    windows: int = 0
    sentences: int = 0
    tokens: int = 0
    digest: str = hashlib.sha256().hexdigest()
    """Of the sentences so far: says whether an input is the one that was begun with."""


def embed_file(
    embedder: Embedder,
    sentences: Iterable[Sentence],
    out: str | PathLike[str],
    *,
    format: FileFormat | None = None,
    sentence_to_index: bool = False,
    sentence_keys: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    about_input: About | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Embed sentences into a file.

    Args:
        embedder: the model and the settings.
        sentences: each a list of tokens, or a string that is split at white space; on resuming, the same ones from
            the start.
        out: the file to write.
        format: of the file; by its ending if not given.
        sentence_to_index: add AllenNLP's table from sentences to their numbers (HDF5 only).
        sentence_keys: name the datasets by their sentences instead of their numbers, as AllenNLP can (HDF5 only).
        resume: go on where an earlier run with the same settings was cut; start where there was none.
        overwrite: replace `out`, and what is left of an earlier run.
        about_input: how the sentences were made, to be compared on resuming.
        report: called after each window.

    Returns:
        How many sentences and tokens the file holds.
    """
    refuse_string(sentences)
    path = Path(out).resolve()  # a link stays one: what it points to is written
    chosen = format_of(path) if format is None else format
    check_format(chosen, sentence_to_index=sentence_to_index, sentence_keys=sentence_keys)
    if resume and overwrite:
        raise ElmoError("resume and overwrite contradict each other: give one of them")
    if path.exists() and not path.is_file():
        raise ElmoError(f"{out} is {'a folder' if path.is_dir() else 'no plain file'}: give the name of a file")
    embedder.cache.clear()  # what it holds already would change the last bits of the result
    about = (about_input or {}) | ({"sentence_keys": True} if sentence_keys else {})
    settings = _settings(embedder, chosen, sentence_to_index, about)
    parts = Parts(path)
    keys = SentenceKeys() if sentence_keys else None
    tokens = (_checked(as_tokens(sentence), number, keys) for number, sentence in enumerate(sentences))
    if parts.exist() and not resume and not overwrite:
        raise ElmoError(
            f"{parts.folder} is left of a run that was cut, or of one that still goes on: "
            "--resume goes on with it, --overwrite starts again"
        )
    if path.exists() and not parts.exist() and not overwrite:
        if not resume:
            raise ElmoError(f"{out} exists: --overwrite replaces it, --resume goes on with a run that was cut")
        if parts.folder.exists():
            with parts.locked():  # what was being removed when the run was killed goes
                pass
        return _check_complete(path, chosen, settings, tokens)
    try:
        with parts.locked():
            if overwrite:
                parts.clear()
            done = _embed_parts(parts, settings, embedder, tokens, report)
            write_records(
                parts.assembled,
                parts.groups(done.windows),
                format=chosen,
                about=settings | _about(done),
                sentence_to_index=sentence_to_index,
                sentence_keys=sentence_keys,
            )
            parts.finish(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    return done


def _embed_parts(
    parts: Parts,
    settings: About,
    embedder: Embedder,
    sentences: Iterator[list[str]],
    report: Callable[[Progress], None],
) -> Progress:
    done = parts.open(settings)
    groups = embedder.groups(sentences)
    digest = hashlib.sha256()
    for number in range(1, done.windows + 1):
        group = next(groups, [])
        _add_to(digest, group)
        if digest.hexdigest() != parts.progress(number).digest:
            raise ElmoError(
                f"the input does not begin with the {done.sentences} sentences that {parts.folder} was made from: "
                "give the same input, or --overwrite to start again"
            )
        embedder.remember(group, parts.new_words(number))
    report(done)
    state = parts.state(done)
    for group in groups:
        window = embedder.embed_group(group, state)
        state = window.state
        _add_to(digest, group)
        done = Progress(
            windows=done.windows + 1,
            sentences=done.sentences + len(group),
            tokens=done.tokens + sum(map(len, group)),
            digest=digest.hexdigest(),
        )
        parts.add(window, done, pooled=embedder.settings.pool is not None)
        report(done)
    return done


class Parts:
    """The windows that were embedded so far, a file each, in a folder beside the output."""

    def __init__(self, out: Path) -> None:
        """Name the folder beside `out`; nothing is written yet."""
        self.folder = out.with_name(out.name + ".partial")
        self.assembled = self.folder / ".assembled"
        self._garbage = self.folder / "garbage"  # while it is there, the rest may be removed and must not be read

    def exist(self) -> bool:
        """Whether there is something to go on with."""
        return self.folder.exists() and not self._garbage.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and keep other runs out of it; it goes at the end if it has no window in it."""
        if self.folder.exists():
            known = re.compile(r"settings\.json|lock|garbage|(part|state)-\d+\.npz|\..*")
            strange = [path.name for path in self.folder.iterdir() if not known.fullmatch(path.name)]
            if strange:
                raise ElmoError(f"{self.folder} holds something else than a run that was cut ({min(strange)})")
        self.folder.mkdir(exist_ok=True)
        with locked(self.folder / "lock", f"another run is writing into {self.folder}: wait until it has ended"):
            try:
                if self._garbage.exists():
                    self.clear()
                yield
            finally:
                if not any(self.folder.glob("part-*.npz")):
                    self._remove()

    def open(self, settings: About) -> Progress:
        """Note the settings, or check that they are those of the run that was cut: how far it came."""
        count = len(list(self.folder.glob("part-*.npz")))
        path = self.folder / "settings.json"
        if path.exists():
            compare_settings(settings, read_json(path), self.folder)
        elif count:
            raise ElmoError(f"{path} is missing, so nobody can tell what made the rest: --overwrite starts again")
        else:
            with new_file(path) as beside:
                beside.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        for torn in self.folder.glob(".*"):
            torn.unlink()
        return self.progress(count)

    def finish(self, out: Path) -> None:
        """Put the assembled file into its place; the parts are of no use any more."""
        with self.assembled.open("r+b") as file:
            os.fsync(file.fileno())
        self.assembled.replace(out)
        self.clear()

    def clear(self) -> None:
        """Remove all parts; a mark says so first, lest half of them be taken for a run that was cut."""
        self._garbage.touch()
        for path in self.folder.iterdir():
            if path.name not in ("lock", "garbage"):
                path.unlink()
        self._garbage.unlink()

    def _remove(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()

    def progress(self, number: int) -> Progress:
        """How far the run had come with window `number`."""
        if number == 0:
            return Progress()
        return Progress(**json.loads(bytes(self._load(self._part(number), "progress")["progress"])))

    def new_words(self, number: int) -> Tensor:
        """The word vectors that had to be encoded for window `number`."""
        return torch.from_numpy(self._load(self._part(number), "new_words")["new_words"])

    def add(self, window: Window, done: Progress, *, pooled: bool) -> None:
        """Keep a window; `done` says what there is with it."""
        if window.state is not None:
            # Before its part, so that a part that is there has its state; after it, the one before is of no use.
            state = {"m": window.state.m.cpu().numpy(), "c": window.state.c.cpu().numpy()}
            self._save(self._state(done.windows), state)
        vectors = np.stack(window.vectors) if pooled else np.concatenate(window.vectors, axis=-2)
        self._save(
            self._part(done.windows),
            {
                "progress": _as_bytes(asdict(done)),
                "tokens": _as_bytes(window.sentences),
                "new_words": window.new_words.cpu().numpy(),
                "vectors": vectors,
                "pooled": np.asarray(pooled),
            },
        )
        self._state(done.windows - 1).unlink(missing_ok=True)

    def state(self, done: Progress) -> State | None:
        """What the window after `done` starts from, where the state is carried."""
        path = self._state(done.windows)
        if not path.exists():
            return None
        arrays = self._load(path, "m", "c")
        return State(torch.from_numpy(arrays["m"]), torch.from_numpy(arrays["c"]))

    def groups(self, count: int) -> Iterator[list[Record]]:
        """The records of all windows in order, a window in memory at a time."""
        index = 0
        for number in range(1, count + 1):
            arrays = self._load(self._part(number), "tokens", "vectors", "pooled")
            sentences: list[list[str]] = json.loads(bytes(arrays["tokens"]))
            vectors, start, records = arrays["vectors"], 0, []
            for row, tokens in enumerate(sentences):
                end = start + len(tokens)
                mine = vectors[row] if arrays["pooled"] else vectors[..., start:end, :]
                records.append(Record(index, tokens, mine))
                start, index = end, index + 1
            yield records

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:08d}.npz"

    def _state(self, number: int) -> Path:
        return self.folder / f"state-{number:08d}.npz"

    @staticmethod
    def _save(path: Path, arrays: Arrays) -> None:
        with new_file(path) as beside, beside.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @staticmethod
    def _load(path: Path, *names: str) -> Arrays:
        try:
            # Opened here: numpy leaves a file that it cannot read open.
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return {name: file[name] for name in names}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ElmoError(f"{path} is damaged ({error}): --overwrite starts again") from error


def _settings(embedder: Embedder, format: FileFormat, sentence_to_index: bool, about_input: About) -> About:
    known = replace(embedder.settings, precision=embedder.precision, batch_tokens=embedder.batch_tokens)
    settings = asdict(known)
    if embedder.device.type != "cpu":
        settings["device"] = embedder.device.type  # it decides how large windows are, and the last bits
    if embedder.settings.state != "carry":
        del settings["batch_size"]  # of no effect
    about = settings | {"model": embedder.digest(), "format": format, "sentence_to_index": sentence_to_index}
    result: About = json.loads(json.dumps(about | about_input))  # as it reads when it comes back from a file
    return result


def _about(done: Progress) -> About:
    return {"sentences": done.sentences, "tokens": done.tokens, "input": done.digest}


def compare_settings(now: About, then: About, where: Path | str) -> None:
    """Refuse to go on with what was made with other settings, by the name of the first that differs."""
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) != then.get(name):
            raise ElmoError(
                f"{where} was made with other settings: {name} was {then.get(name)!r} and is {now.get(name)!r} now; "
                "give the same settings, or --overwrite to start again"
            )


def _check_complete(out: Path, format: FileFormat, settings: About, sentences: Iterable[list[str]]) -> Progress:
    """There is nothing to resume: the file must be what a run would make of this input."""
    then = read_about(out, format)
    if then is None:
        raise ElmoError(f"{out} exists and does not say what made it: --overwrite replaces it")
    compare_settings(settings, {name: value for name, value in then.items() if name not in _about(Progress())}, out)
    digest, count, tokens = hashlib.sha256(), 0, 0
    for sentence in sentences:
        _add_to(digest, [sentence])
        count, tokens = count + 1, tokens + len(sentence)
    done = Progress(sentences=count, tokens=tokens, digest=digest.hexdigest())
    compare_settings(_about(done), {name: then.get(name) for name in _about(done)}, out)
    return done


def _checked(tokens: list[str], number: int, keys: SentenceKeys | None) -> list[str]:
    """Refuse now what a file could not hold when all is embedded."""
    try:
        "".join(tokens).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ElmoError(f"sentence {number} has half a surrogate pair, which is no text") from error
    if keys is not None:
        keys.check(number, tokens)
    return tokens


def _add_to(digest: hashlib._Hash, group: Iterable[list[str]]) -> None:
    for sentence in group:
        digest.update("\0".join(sentence).encode("utf-8") + b"\n")


def _as_bytes(value: object) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(json.dumps(value).encode("utf-8"), dtype=np.uint8)
