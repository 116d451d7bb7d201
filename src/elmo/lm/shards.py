"""The second half of preparing text: parts become a training and a held-out part, of one numbering, in shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.chars import BOS, EOS, words_to_ids
from elmo.errors import TextError
from elmo.lm.corpus import MANIFEST, N_BOUNDARIES, VERSION, checksum, manifest_text
from elmo.lm.merge import WordTable
from elmo.lm.parts import load_part
from elmo.vocab import Vocabulary

_SHARD_TOKENS = 2**24  # a longer sentence has a shard of its own


@dataclass(frozen=True)
class Sides:
    """Which sentences are held out. Shapes, for each part: S sentences, D documents that start in it."""

    starts: list[NDArray[np.int64]]
    """(D,) for each part: the first sentence of each document."""
    held_out: list[NDArray[np.bool_]]
    """(D + 1,) for each part: for the sentences before its first document, then for each document."""
    n_documents: dict[str, int]
    """Of `train` and of `valid`."""

    def sentences(self, number: int, count: int) -> NDArray[np.bool_]:
        """Which of the `count` sentences of a part are held out: (S,)."""
        return np.repeat(self.held_out[number], np.diff(self.starts[number], prepend=0, append=count))


def choose_held_out(parts: Sequence[Path], *, share: float, seed: int) -> Sides:
    """Hold out a share of the documents, one at least.

    A document is chosen by a hash of the seed and its words, so that copies of a document are all on the same side, and
    it is the same one wherever it stands.
    """
    starts, sums = _find_documents(parts)
    mixed = _mix(sums ^ _mix(np.array([seed], np.uint64)))
    wanted = max(1, round(share * len(mixed)))
    chosen = mixed < np.sort(mixed)[min(wanted, len(mixed) - 1)]
    if not chosen.any():
        chosen = mixed == mixed.min()
    if chosen.all():
        what = "one document" if len(chosen) == 1 else f"{len(chosen):,} documents of the same words"
        raise TextError(
            f"the text is {what}, so none can be held out: put blank lines between documents, or give --valid"
        )
    before = np.cumsum([0, *map(len, starts)])
    shifted = np.concatenate([[False], chosen])  # a part's first entry is for the last document of the parts before
    held_out = [shifted[first : last + 1] for first, last in pairwise(before)]
    return Sides(starts, held_out, {"train": int((~chosen).sum()), "valid": int(chosen.sum())})


def given_held_out(parts: Sequence[Path], is_valid: Sequence[bool]) -> Sides:
    """Hold out the documents of some of the parts."""
    starts, _ = _find_documents(parts)
    n_documents = {"train": 0, "valid": 0}
    for ours, valid in zip(starts, is_valid, strict=True):
        n_documents["valid" if valid else "train"] += len(ours)
    for name, text in (("train", "text"), ("valid", "held-out text")):
        if not n_documents[name]:
            raise TextError(f"there is no word in the {text}")
    held_out = [np.full(len(ours) + 1, valid) for ours, valid in zip(starts, is_valid, strict=True)]
    return Sides(starts, held_out, n_documents)


def count_words(parts: Sequence[Path], sides: Sides | None, counts: Path) -> None:
    """Write how often each part's words occur in what is not held out, as `merge_words` takes it."""
    with counts.open("wb") as file:
        for number, path in enumerate(parts):
            part = load_part(path, "ids", "keys", "lengths")
            ids, lengths = part["ids"], part["lengths"]
            if sides is not None:
                ids = ids[~np.repeat(sides.sentences(number, len(lengths)), lengths)]
            file.write(np.bincount(ids, minlength=len(part["keys"])).astype(np.int64).tobytes())


def write_corpus(
    folder: Path,
    parts: Sequence[Path],
    sides: Sides,
    table: WordTable,
    vocab: Vocabulary,
    *,
    max_characters: int,
    settings: Mapping[str, Any],
    report: Callable[[int], None],
) -> None:
    """Fill a folder with what `elmo.lm.corpus` describes; `report` hears the number of tokens written so far."""
    order = table.by_frequency()
    vocab.write(folder / "vocab.txt")
    counts = _write_types(folder, table, order, vocab, max_characters)
    types = np.empty(len(table), np.uint32)
    types[order] = np.arange(N_BOUNDARIES, N_BOUNDARIES + len(table), dtype=np.uint32)
    del order
    writers = {name: _ShardWriter(folder, name) for name in ("train", "valid")}
    for number, path in enumerate(parts):
        part = load_part(path, "ids", "lengths")
        tokens, lengths = types[table.of_part(number)][part["ids"]], part["lengths"]
        valid = sides.sentences(number, len(lengths))
        is_valid_token = np.repeat(valid, lengths)
        writers["train"].add(tokens[~is_valid_token], lengths[~valid])
        writers["valid"].add(tokens[is_valid_token], lengths[valid])
        report(writers["train"].n_tokens + writers["valid"].n_tokens)
    splits = {name: {"n_documents": sides.n_documents[name]} | writer.close() for name, writer in writers.items()}
    counts[vocab.ids([BOS, EOS])] = splits["train"]["n_sentences"]
    _save(folder / "counts.npy", counts)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": checksum(path)} for path in sorted(folder.iterdir())}
    facts = {
        "format": "elmo corpus",
        "version": VERSION,
        "n_types": N_BOUNDARIES + len(table),
        "max_characters": max_characters,
        "splits": splits,
        "settings": settings,
        "files": files,
    }
    (folder / MANIFEST).write_text(manifest_text(facts), encoding="utf-8")


class _ShardWriter:
    """Gathers the sentences of a split and writes them a shard at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._shards = 0
        self._tokens: list[NDArray[np.uint32]] = []
        self._lengths: list[NDArray[np.uint32]] = []
        self._size = 0  # tokens gathered since the last shard
        self.n_tokens = 0
        self._n_sentences = 0

    def add(self, tokens: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> None:
        """Add sentences."""
        self.n_tokens += len(tokens)
        self._n_sentences += len(lengths)
        while len(lengths):
            ends = np.cumsum(lengths, dtype=np.int64)
            fit = int(np.searchsorted(ends, _SHARD_TOKENS - self._size, side="right"))
            if fit == 0 and self._size == 0:
                fit = 1
            if fit:
                end = int(ends[fit - 1])
                self._tokens.append(tokens[:end])
                self._lengths.append(lengths[:fit])
                self._size += end
                tokens, lengths = tokens[end:], lengths[fit:]
            if len(lengths):
                self._write()

    def close(self) -> dict[str, int]:
        """Write the last shard; what the split holds."""
        if self._size:
            self._write()
        return {"n_sentences": self._n_sentences, "n_tokens": self.n_tokens, "shards": self._shards}

    def _write(self) -> None:
        stem = f"{self._name}-{self._shards:05d}"
        starts = np.concatenate([[0], np.cumsum(np.concatenate(self._lengths), dtype=np.uint64)]).astype(np.uint64)
        _save(self._folder / f"{stem}.tokens.npy", np.concatenate(self._tokens))
        _save(self._folder / f"{stem}.starts.npy", starts)
        self._tokens, self._lengths, self._size = [], [], 0
        self._shards += 1


def _write_types(
    folder: Path, table: WordTable, order: NDArray[np.int64], vocab: Vocabulary, max_characters: int
) -> NDArray[np.int64]:
    """Write characters and targets of the types in `order`; how often each word of the vocabulary is a target."""
    counts = np.zeros(len(vocab), np.int64)
    n_types = N_BOUNDARIES + len(table)
    with (
        _new_array(folder / "characters.npy", "<i2", (n_types, max_characters)) as characters,
        _new_array(folder / "targets.npy", "<i4", (n_types,)) as targets,
    ):
        done = 0
        for words in _blocks(table, order):
            characters.write(words_to_ids(words, max_characters).astype("<i2").tobytes())
            ids = np.array(vocab.ids(words), "<i4")
            targets.write(ids.tobytes())
            if done:  # the boundaries are counted with the sentences
                start = done - N_BOUNDARIES
                np.add.at(counts, ids, table.counts[order[start : start + len(ids)]])
            done += len(ids)
    return counts


def _new_array(path: Path, dtype: str, shape: tuple[int, ...]) -> BinaryIO:
    """An .npy file that has its header; numpy's own way to write would crash, or not say why, where a disk is full."""
    file = path.open("wb")
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file


def _save(path: Path, array: NDArray[Any]) -> None:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    with _new_array(path, little.dtype.str, array.shape) as file:
        file.write(little.data)


def _blocks(table: WordTable, order: NDArray[np.int64]) -> Iterator[list[str]]:
    yield [BOS, EOS]
    yield from table.words(order)


def _find_documents(parts: Sequence[Path]) -> tuple[list[NDArray[np.int64]], NDArray[np.uint64]]:
    """For each part the first sentences of its documents, and the hash of every document."""
    starts: list[NDArray[np.int64]] = []
    sums = [np.zeros(1, np.uint64)]
    boundary = False
    for path in parts:
        part = load_part(path, "documents", "sums", "lengths", "place")
        documents, ours = part["documents"].astype(np.int64), part["sums"]
        if boundary and len(part["lengths"]) and not (len(documents) and documents[0] == 0):
            # The blank line was the last line of the piece before, so the part could not know of it.
            documents, ours = np.insert(documents, 0, 0), np.insert(ours, 0, 0)
        starts.append(documents)
        sums[-1][-1:] += ours[:1]
        if len(documents):
            sums.append(ours[1:])
        boundary = part["place"].boundary or (boundary and not len(part["lengths"]))
    return starts, np.concatenate(sums)[1:]


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread numbers evenly over all 64 bits (the last step of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
