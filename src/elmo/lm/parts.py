"""The first half of preparing text, on many cores: pieces of text become parts, which are files of word ids.

A part holds some 2 million tokens at most and numbers the words by itself, so no worker waits for another. It is
written whole or not at all; a run that was cut goes on after the last part of each piece. Where parts end has no
effect on what is made of them.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import threading
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ElmoError
from elmo.files import new_file
from elmo.lines import Errors
from elmo.lm.reading import Lines, Piece

_BOUNDARIES = frozenset({"<S>", "</S>"})
_PART = re.compile(r"part-(\d+)-(\d+)\.npz")
_SECONDS_BETWEEN_REPORTS = 0.2


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How text is read: what a part depends on, beside the text."""

    language: str | None = None
    """Split raw text into words and sentences by the rules of this language; None: it is one sentence a line."""
    field: str = "text"
    """Where the text is in a record of JSON lines, or the column of Parquet."""
    errors: Errors = "strict"
    """What is not text is an error, or replaced."""
    part_tokens: int = 2**21
    """A part ends after so many tokens."""


@dataclass(frozen=True)
class Progress:
    """How far the reading has come."""

    bytes: int = 0
    """Of the sources as they are stored."""
    sentences: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Place:
    """Where in its piece a part ends."""

    parts: int = 0
    lines: int = 0
    bytes: int = 0
    boundary: bool = False
    """Whether a document ends here, so that the next sentence starts one."""
    complete: bool = False
    """Whether the piece ends here."""


@dataclass(frozen=True)
class Part:
    """Sentences of words that are numbered by themselves.

    Shapes: N tokens, S sentences, D documents that start here, K different words.
    """

    ids: NDArray[np.uint32]
    """(N,): each token's word."""
    lengths: NDArray[np.uint32]
    """(S,): tokens of each sentence; none is empty."""
    documents: NDArray[np.uint32]
    """(D,): the first sentence of each document; what comes before the first belongs to the part before."""
    sums: NDArray[np.uint64]
    """(D + 1,): for the sentences before the first document, then for each document, its words' hashes together."""
    keys: NDArray[np.uint32]
    """(K,): CRC-32 of each word; the words are in the order of their keys, and of themselves where these are equal."""
    words: list[bytes]
    """(K,): the words in UTF-8."""


class _Numbers(dict[str, int]):
    """Numbers words as they come."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def key_of(word: bytes) -> tuple[int, bytes]:
    """The order of words in a part."""
    return zlib.crc32(word), word


def read_pieces(
    pieces: Sequence[Piece], folder: Path, reading: Reading, *, workers: int, report: Callable[[Progress], None]
) -> None:
    """Read pieces into parts in `folder`, except for those which are there."""
    places = _places(folder, len(pieces))
    done = _done(folder, places)
    report(done)
    todo = [number for number, place in enumerate(places) if not place.complete]
    jobs = [(number, pieces[number], folder, reading, places[number]) for number in todo]
    workers = min(workers, len(jobs))
    if workers > 1 and all(pieces[number].source.can_reopen for number in todo):
        _read_in_processes(jobs, workers, done, report)
        return
    split = _splitter(reading.language)
    for job in jobs:
        for more in _read_piece(*job, split):
            done = _add(done, more)
            report(done)


def part_paths(folder: Path) -> list[Path]:
    """The parts in the order of the text."""
    return [path for _, path in sorted(_numbered(folder))]


def piece_of(path: Path) -> int:
    """The number of the piece that a part comes from."""
    match = _PART.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def load_part(path: Path, *names: str) -> dict[str, Any]:
    """Arrays of a part by their names in `Part`, and `place`; the words as a list."""
    try:
        # Opened here: numpy leaves a file that it cannot read open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ElmoError(f"{path} is damaged ({error}): --overwrite starts again") from error
    if "words" in arrays:
        arrays["words"] = arrays["words"].tobytes().split(b"\n") if arrays["words"].size else []
    if "place" in arrays:
        arrays["place"] = Place(**json.loads(arrays["place"].tobytes()))
    return arrays


def _numbered(folder: Path) -> Iterator[tuple[tuple[int, int], Path]]:
    for path in folder.iterdir():
        if match := _PART.fullmatch(path.name):
            yield (int(match[1]), int(match[2])), path


def _places(folder: Path, pieces: int) -> list[Place]:
    last: dict[int, Path] = {}
    for (piece, _), path in sorted(_numbered(folder)):
        last[piece] = path
    return [load_part(last[n], "place")["place"] if n in last else Place() for n in range(pieces)]


def _done(folder: Path, places: Iterable[Place]) -> Progress:
    done = Progress(bytes=sum(place.bytes for place in places))
    for path in part_paths(folder):
        lengths = load_part(path, "lengths")["lengths"]
        done = _add(done, Progress(0, len(lengths), int(lengths.sum(dtype=np.int64))))
    return done


def _add(done: Progress, more: Progress) -> Progress:
    return Progress(done.bytes + more.bytes, done.sentences + more.sentences, done.tokens + more.tokens)


def _splitter(language: str | None) -> Callable[[str], list[list[str]]]:
    if language is None:
        return lambda line: [line.split()]
    from elmo.text import Tokenizer

    tokenizer = Tokenizer(language)
    return lambda line: [sentence.tokens for sentence in tokenizer(line)]


def _read_piece(
    number: int, piece: Piece, folder: Path, reading: Reading, place: Place, split: Callable[[str], list[list[str]]]
) -> Iterator[Progress]:
    """Write the parts of a piece from `place` on; yield after each what came with it."""
    lines = Lines(piece, field=reading.field, errors=reading.errors)
    rest = islice(iter(lines), place.lines, None)
    while not place.complete:
        part, after = _read_part(rest, place, reading.part_tokens, split)
        size = piece.source.size if piece.end is None else min(piece.end, piece.source.size) - piece.start
        after = replace(after, bytes=size if after.complete else min(lines.bytes_done, size))
        _save_part(folder / f"part-{number:06d}-{place.parts:06d}.npz", part, after)
        yield Progress(after.bytes - place.bytes, len(part.lengths), len(part.ids))
        place = after


def _read_part(
    lines: Iterator[str], place: Place, part_tokens: int, split: Callable[[str], list[list[str]]]
) -> tuple[Part, Place]:
    numbers = _Numbers()
    ids, lengths, documents = array("I"), array("I"), array("I")
    boundary, count, complete = place.boundary, place.lines, True
    for line in lines:
        count += 1
        if not line or line.isspace():
            boundary = True
            continue
        for tokens in split(line):
            if "S>" in line:  # boundaries are put around each sentence in training: in the text they are mark-up
                tokens = [token for token in tokens if token not in _BOUNDARIES]
            if not tokens:
                continue
            if boundary:
                documents.append(len(lengths))
                boundary = False
            ids.extend(map(numbers.__getitem__, tokens))
            lengths.append(len(tokens))
        if len(ids) >= part_tokens:
            complete = False
            break
    after = Place(place.parts + 1, count, boundary=boundary, complete=complete)
    return _sorted_part(numbers, *(np.frombuffer(a, dtype=np.uint32) for a in (ids, lengths, documents))), after


def _sorted_part(
    numbers: _Numbers, ids: NDArray[np.uint32], lengths: NDArray[np.uint32], documents: NDArray[np.uint32]
) -> Part:
    """Number the words in the order of their keys instead of that in which they came."""
    words = [word.encode() for word in numbers]
    keyed = sorted((*key_of(word), number) for number, word in enumerate(words))
    order = np.fromiter((number for _, _, number in keyed), dtype=np.int64, count=len(keyed))
    new_numbers = np.empty(len(keyed), dtype=np.uint32)
    new_numbers[order] = np.arange(len(keyed), dtype=np.uint32)
    digests = b"".join(hashlib.blake2b(word, digest_size=8).digest() for _, word, _ in keyed)
    ids = new_numbers[ids]
    # Sums of hashes, modulo 2^64: they can be put together where a document goes on in the next part.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(np.frombuffer(digests, dtype="<u8")[ids])])
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    edges = np.concatenate([[0], offsets[documents], [len(ids)]])
    return Part(
        ids=ids,
        lengths=lengths,
        documents=documents,
        sums=running[edges[1:]] - running[edges[:-1]],
        keys=np.fromiter((key for key, _, _ in keyed), dtype=np.uint32, count=len(keyed)),
        words=[word for _, word, _ in keyed],
    )


def _save_part(path: Path, part: Part, place: Place) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "ids": part.ids,
        "lengths": part.lengths,
        "documents": part.documents,
        "sums": part.sums,
        "keys": part.keys,
        "words": np.frombuffer(b"\n".join(part.words), dtype=np.uint8),
        "place": np.frombuffer(json.dumps(asdict(place)).encode(), dtype=np.uint8),
    }
    with new_file(path) as beside, beside.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


_Job = tuple[int, Piece, Path, Reading, Place]

# What a worker process has for all its pieces.
_worker: dict[str, Any] = {}


def _read_in_processes(jobs: Sequence[_Job], workers: int, done: Progress, report: Callable[[Progress], None]) -> None:
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    counters = context.Array("q", 3)
    alive, lifeline = context.Pipe(duplex=False)
    rest = iter(jobs)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (counters, alive))
    try:
        waiting = {pool.submit(_work, job) for job in islice(rest, 2 * workers)}
        while waiting:
            ended, waiting = wait(waiting, _SECONDS_BETWEEN_REPORTS, FIRST_COMPLETED)
            for future in ended:
                future.result()
            waiting |= {pool.submit(_work, job) for job in islice(rest, len(ended))}
            report(_add(done, Progress(*counters[:])))
    except BrokenProcessPool as error:
        raise ElmoError(
            "a worker process was killed, perhaps for want of memory: --resume goes on, --workers 1 needs least"
        ) from error
    except BaseException:
        lifeline.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        lifeline.close()
        alive.close()


def _start_worker(counters: Any, alive: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and says what to do
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    _worker["counters"] = counters


def _end_with_parent(alive: Connection) -> None:
    """End at once when the parent gives up or is killed: a pool's process would wait for work for ever.

    The pipe is never written to; it becomes readable when the parent's end of it is closed.
    """
    alive.poll(None)
    os._exit(1)


def _work(job: _Job) -> None:
    if "split" not in _worker:
        _worker["split"] = _splitter(job[3].language)
    for more in _read_piece(*job, _worker["split"]):
        with _worker["counters"].get_lock():
            for place, value in enumerate((more.bytes, more.sentences, more.tokens)):
                _worker["counters"][place] += value
