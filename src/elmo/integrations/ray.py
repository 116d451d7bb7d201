"""Embed a corpus by a pool of workers under Ray, on one machine or many, so that a run that is cut can go on.

Ray Data hands out parts of the corpus, starts a worker again that died, and gives its part to another. The vectors do
not pass through it: each worker reads its part where the corpus lies and writes one file (see `folder.py`). What comes
back is a line a part. A part made twice, by a worker that was thought dead, takes the same place.

A cluster is found as Ray finds it (`RAY_ADDRESS`); without one, Ray starts on this machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from elmo.api import Model
from elmo.embed import Embedder, EmbedSettings
from elmo.errors import ElmoError, MissingExtraError
from elmo.integrations.corpus import Part, Reading, Record, RecordsDigest, count, find_parts, numbered, read
from elmo.integrations.folder import Folder, begin, check, finish
from elmo.sinks import About, write_records
from elmo.sinks import Record as Row
from elmo.text import Tokenizer

_BLOCKS_A_WORKER = 64  # units that Ray hands out: enough for the last worker not to be waited for


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Who embeds."""

    workers: int | None = None
    """Processes with the model; as many as the cluster has CPUs (GPUs) if not given."""
    gpus: bool = False
    """Each on a GPU of its own, else on a CPU core."""

    def __post_init__(self) -> None:
        """Refuse a pool of nobody."""
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise ElmoError(f"workers is {self.workers!r}: give a whole number, 1 or more")


@dataclass(frozen=True)
class Done:
    """How far a run has come."""

    parts: int = 0
    records: int = 0
    words: int = 0

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Done:
        """With some parts."""
        known = list(parts)
        return cls(len(known), sum(part.records for part in known), sum(part.words for part in known))

    def and_(self, part: Part) -> Done:
        """With one more."""
        return Done(self.parts + 1, self.records + part.records, self.words + part.words)


def embed_corpus(
    model: Model,
    texts: list[str],
    out: str,
    *,
    settings: EmbedSettings,
    reading: Reading | None = None,
    pool: Pool | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report: Callable[[Done, Done], None] = lambda done, all_of_them: None,
) -> Done:
    """Embed a corpus into a folder of Parquet files, in the order of the corpus.

    A row has `index` (the number of its line or record in the corpus), `id` (where `reading` has one), `tokens` and
    `vectors`; of raw text, whose records may be several sentences, also `sentence` (its number in the record).

    Args:
        model: what `elmo.load` returns; workers are given it, and need no file of it.
        texts: files, folders, globs or URLs of text, `.jsonl` or `.parquet`, where all workers find them.
        out: a folder or URL that all workers can write to.
        settings: what to compute. The state is not carried, for parts are embedded in any order.
        reading: how the corpus is read.
        pool: who embeds.
        resume: go on with a run that was cut; start where there was none.
        overwrite: remove what an earlier run left.
        report: told how much is done, and of how much.

    Returns:
        All that the folder holds.
    """
    reading, pool = reading or Reading(), pool or Pool()
    _check(settings)
    ray, folder = _import_ray(), Folder(out)
    check(folder, resume=resume, overwrite=overwrite)
    pieces = find_parts(texts, reading.part_bytes, [Path(folder.name)] if folder.is_local else [])
    with _cluster(ray), folder.locked():
        workers = _workers(ray, pool)
        parts = numbered(list(_count_all(ray, pieces, reading)))
        manifest = _manifest(model, settings, reading, pool, parts)
        there = begin(folder, manifest, resume=resume, overwrite=overwrite)
        todo = [part for part in parts if part.file not in there]
        done, whole = Done.of(part for part in parts if part.file in there), Done.of(parts)
        report(done, whole)
        if todo:
            work = _Work(ray.put(replace(model, head=None)), settings, reading, folder, pool.gpus)
            for part in _embed_all(ray, todo, work, workers):
                done = done.and_(part)
                report(done, whole)
        finish(folder, manifest)
    return whole


def _check(settings: EmbedSettings) -> None:
    if settings.state == "carry":
        raise ElmoError("state is 'carry': parts are embedded in any order, so no state is carried; give zero or warm")
    if settings.precision == "auto":
        raise ElmoError("precision is 'auto', which may differ from machine to machine: give fp32, bf16 or int8")


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers of each run
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it calls Ray Data's own way of starting workers an error
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError("Embedding with Ray", "ray") from error
    return ray


@contextmanager
def _cluster(ray: Any) -> Iterator[None]:
    """Join the cluster there is, or start Ray here for as long as it is needed; a caller's Ray is left alone."""
    if ray.is_initialized():
        yield
        return
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _quietly(ray: Any) -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _count_all(ray: Any, pieces: list[Part], reading: Reading) -> Iterator[Part]:
    """Read the whole corpus once, in the cluster: its parts, with what they hold, in their order.

    That costs little beside embedding, and says on resuming, whatever a store tells of its files, that they are the
    same.
    """
    if not pieces:
        return
    _quietly(ray)

    def count_one(row: dict[str, Any]) -> dict[str, Any]:
        return _answer(row, lambda: count(_part(row), reading).to_json())

    items = [{"number": number, "part": piece.to_json()} for number, piece in enumerate(pieces)]
    rows = ray.data.from_items(items).map(count_one).iter_rows()
    answers = sorted(((row["number"], _unless_error(row)) for row in rows), key=lambda pair: pair[0])
    for _, answer in answers:
        yield Part(**json.loads(answer))


def _embed_all(ray: Any, parts: list[Part], work: _Work, workers: int) -> Iterator[Part]:
    """Have parts embedded: each as it is done."""
    _quietly(ray)
    items = [{"number": part.number, "part": part.to_json()} for part in parts]
    blocks = min(len(items), workers * _BLOCKS_A_WORKER)
    rows = ray.data.from_items(items, override_num_blocks=blocks).map_batches(
        _Worker,
        fn_constructor_args=([work],),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(parts))),
        num_cpus=1,
        num_gpus=1 if work.gpu else None,
    )
    known = {part.number: part for part in parts}
    for row in rows.iter_rows():
        _unless_error(row)
        yield known[row["number"]]


def _workers(ray: Any, pool: Pool) -> int:
    kind = "GPU" if pool.gpus else "CPU"
    there = int(ray.cluster_resources().get(kind, 0))
    if there < 1:
        raise ElmoError(f"Ray's cluster has no {kind}: leave --gpus out, or give it a machine with one")
    return pool.workers or there


@dataclass(frozen=True)
class _Work:
    """What a worker is told once."""

    model: Any
    """Where Ray keeps it."""
    settings: EmbedSettings
    reading: Reading
    folder: Folder
    gpu: bool


class _Worker:
    """Embeds part after part; Ray makes as many as the pool has."""

    def __init__(self, work: list[_Work]) -> None:
        """Know what to do; what can fail is made with the first part, which can be answered with an error."""
        (self._work,) = work

    @cached_property
    def _embedder(self) -> Embedder:
        model: Model = _import_ray().get(self._work.model)
        return Embedder(model, self._work.settings, device="cuda" if self._work.gpu else "cpu")

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        language = self._work.reading.language
        return None if language is None else Tokenizer(language)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Embed one part, given as a batch of one row."""
        row = {name: values[0] for name, values in batch.items()}
        return {name: [value] for name, value in _answer(row, lambda: self._embed(_part(row))).items()}

    def _embed(self, part: Part) -> str:
        folder = self._work.folder
        if folder.has(part.file):  # a task that Ray gives out again may have done it before its worker was lost
            return ""
        self._embedder.cache.clear()  # so that a part has the same bytes whatever was embedded before it
        about = {"first": part.first, "records": part.records, "digest": part.digest}
        digest = RecordsDigest()
        with folder.new(part.file) as path:
            write_records(path, self._rows(part, digest), format="parquet", about=about)
            if digest.hex() != part.digest:
                raise ElmoError(f"{part.source} has changed since the run began: start again (--overwrite)")
        return ""

    def _rows(self, part: Part, digest: RecordsDigest) -> Iterator[list[Row]]:
        """The rows of a part, a window in memory at a time."""
        read_ahead: deque[tuple[int, dict[str, str | int]]] = deque()

        def sentences() -> Iterator[list[str]]:
            for number, record in enumerate(read(part, self._work.reading), start=part.first):
                digest.add(record)
                for place, tokens in enumerate(self._split(record)):
                    columns: dict[str, str | int] = {} if record.id is None else {"id": record.id}
                    read_ahead.append((number, columns | ({} if self._tokenizer is None else {"sentence": place})))
                    yield tokens

        for window in self._embedder.windows(sentences()):
            yield [
                Row(number, tokens, vectors, columns)
                for tokens, vectors in zip(window.sentences, window.vectors, strict=True)
                for number, columns in [read_ahead.popleft()]
            ]

    def _split(self, record: Record) -> list[list[str]]:
        """The sentences of a record; of one without a word, an empty one, so that no record is lost."""
        if self._tokenizer is None or not isinstance(record.text, str):
            return [record.tokens]
        return [sentence.tokens for sentence in self._tokenizer(record.text)] or [[]]


def _part(row: dict[str, Any]) -> Part:
    return Part(**json.loads(row["part"]))


def _answer(row: dict[str, Any], make: Callable[[], str]) -> dict[str, Any]:
    """What a worker says of a part. A user's mistake is an answer: as an exception, Ray would wrap and repeat it."""
    try:
        return {"number": row["number"], "answer": make(), "error": ""}
    except ElmoError as error:
        return {"number": row["number"], "answer": "", "error": str(error)}


def _unless_error(row: dict[str, Any]) -> str:
    if row["error"]:
        raise ElmoError(row["error"])
    return str(row["answer"])


def _manifest(model: Model, settings: EmbedSettings, reading: Reading, pool: Pool, parts: list[Part]) -> About:
    """All that the vectors depend on, and the parts."""
    known = asdict(settings)
    del known["batch_size"]  # of no effect
    inputs = hashlib.sha256("\n".join(part.digest for part in parts).encode()).hexdigest()
    # The reference computes nothing here: it is the cheapest engine to make.
    digest = Embedder(model, replace(settings, precision="fp32", engine="reference")).digest()
    about = known | asdict(reading) | {"model": digest, "inputs": inputs, "gpus": pool.gpus}
    listed = [
        {"file": part.file, "source": part.source, "first": part.first, "records": part.records} for part in parts
    ]
    manifest = {"complete": False, "records": Done.of(parts).records, "settings": about, "parts": listed}
    result: About = json.loads(json.dumps(manifest))  # as it reads when it comes back from a file
    return result
