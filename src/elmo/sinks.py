"""Writers for what `Embedder` yields: a stream of records into one file, in bounded memory.

HDF5 has the layout of bilm-tf and AllenNLP: a dataset for each sentence, named by its number. Where a format has room
for it, the settings that made the file are written into it, so that a later run can tell whether it is the same.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import h5py
import numpy as np

from elmo.embed import Vectors
from elmo.errors import ElmoError, MissingExtraError
from elmo.files import new_hdf5

FileFormat = Literal["hdf5", "npz", "jsonl", "parquet"]
About = dict[str, Any]

_ABOUT = "elmo"  # under this name a file says what made it


@dataclass(frozen=True)
class Record:
    """One embedded sentence."""

    index: int
    tokens: list[str]
    vectors: Vectors
    """`(T, D)`, `(L, T, D)`, or `(D,)`, `(L, D)` where pooled."""
    columns: Mapping[str, str | int] = field(default_factory=dict)
    """What else a Parquet file is to say of it, by column; the same ones for all records of a file."""


def format_of(path: Path) -> FileFormat:
    """The format that a file's name asks for."""
    endings: dict[str, FileFormat] = {
        ".hdf5": "hdf5",
        ".h5": "hdf5",
        ".npz": "npz",
        ".jsonl": "jsonl",
        ".parquet": "parquet",
    }
    if path.suffix not in endings:
        raise ElmoError(f"{path} ends in none of {', '.join(endings)}: say the format (--format)")
    return endings[path.suffix]


class SentenceKeys:
    """Checks, as sentences come, that each can name its own dataset in one HDF5 file.

    A slash in a name makes groups: `f["1 / 2"]` finds what was written so, but no dataset can be named as a group is.
    """

    def __init__(self) -> None:
        self._datasets: set[str] = set()
        self._groups: set[str] = set()

    def check(self, number: int, tokens: list[str]) -> None:
        """Refuse a sentence that cannot be a name, or not beside those before it."""
        name = " ".join(tokens)
        parts = name.split("/")
        groups = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if "\0" in name or any(part in ("", ".") for part in parts):
            problem = "cannot be a name in an HDF5 file"
        elif name in self._datasets:
            problem = "was there before, and a name is given once"
        elif name in self._groups or groups & self._datasets:
            problem = "is a name that begins another one before a slash, or the other way round"
        else:
            self._datasets.add(name)
            self._groups |= groups
            return
        raise ElmoError(f"sentence {number} ({name[:40]!r}) {problem}: name the datasets by number (no sentence keys)")


def check_format(format: str, *, sentence_to_index: bool = False, sentence_keys: bool = False) -> None:
    """Refuse an unknown format, one whose library is missing, or an option it has no place for."""
    if format not in get_args(FileFormat):
        raise ElmoError(f"format is {format!r}: give one of {', '.join(get_args(FileFormat))}")
    for name, given in (("sentence_to_index", sentence_to_index), ("sentence_keys", sentence_keys)):
        if given and format != "hdf5":
            raise ElmoError(f"{name} belongs to HDF5 files; the format is {format}, where each record has its tokens")
    if sentence_to_index and sentence_keys:
        raise ElmoError("sentence_to_index and sentence_keys contradict each other: give one of them")
    if format == "parquet":
        _pyarrow()


def write_records(
    path: Path,
    groups: Iterable[list[Record]],
    *,
    format: FileFormat,
    about: About,
    sentence_to_index: bool = False,
    sentence_keys: bool = False,
) -> None:
    """Write records into a new file, a group in memory at a time.

    Args:
        path: the file.
        groups: the records in order; a group becomes a row group of a parquet file.
        format: of the file.
        about: what made it, to be read again with `read_about`.
        sentence_to_index: add AllenNLP's table from sentences to their numbers, which is held in memory meanwhile.
        sentence_keys: name the datasets of an HDF5 file by their sentences, which `SentenceKeys` has checked.
    """
    if format == "hdf5":
        _write_hdf5(path, groups, about, sentence_to_index, sentence_keys)
    elif format == "npz":
        _write_npz(path, groups, about)
    elif format == "jsonl":
        with path.open("w", encoding="utf-8") as file:
            for group in groups:
                file.writelines(map(json_line, group))
    else:
        _write_parquet(path, groups, about)


def read_about(path: Path, format: FileFormat) -> About | None:
    """What made a file, or None where it does not say (JSON lines have no place for it)."""
    try:
        if format == "hdf5":
            with h5py.File(path, "r") as file:
                text = file.attrs.get(_ABOUT)
        elif format == "npz":
            with zipfile.ZipFile(path) as archive:
                text = archive.comment.decode("utf-8")
        elif format == "parquet":
            metadata = _pyarrow().parquet.read_schema(path).metadata or {}
            text = metadata.get(_ABOUT.encode(), b"").decode("utf-8")
        else:
            return None
        about = json.loads(text) if text else None
    except (OSError, ValueError, zipfile.BadZipFile):  # not a file of ours: it says nothing
        return None
    return about if isinstance(about, dict) else None


def json_line(record: Record) -> str:
    """A record as one line of JSON."""
    fields = {"index": record.index, "tokens": record.tokens, "vectors": record.vectors.tolist()}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _write_hdf5(
    path: Path, groups: Iterable[list[Record]], about: About, sentence_to_index: bool, sentence_keys: bool
) -> None:
    index: dict[str, str] = {}
    with new_hdf5(path) as (file, check):
        file.attrs[_ABOUT] = json.dumps(about)
        for record in chain.from_iterable(groups):
            sentence = " ".join(record.tokens)
            file.create_dataset(sentence if sentence_keys else str(record.index), data=record.vectors)
            check()
            if sentence_to_index:
                index[sentence] = str(record.index)
        if sentence_to_index:
            dataset = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
            dataset[0] = json.dumps(index)


def _write_npz(path: Path, groups: Iterable[list[Record]], about: About) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = json.dumps(about).encode("utf-8")
        for record in chain.from_iterable(groups):
            # A ZipInfo of its own has a fixed date, so the same vectors make the same file.
            with archive.open(zipfile.ZipInfo(f"{record.index}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, record.vectors, allow_pickle=False)


def _write_parquet(path: Path, groups: Iterable[list[Record]], about: About) -> None:
    pa = _pyarrow()
    writer = None
    try:
        for group in groups:
            columns = {
                "index": pa.array([record.index for record in group], pa.int64()),
                **{name: pa.array([record.columns[name] for record in group]) for name in group[0].columns},
                "tokens": pa.array([record.tokens for record in group], pa.list_(pa.string())),
                "vectors": _nested_lists(pa, [record.vectors for record in group]),
            }
            table = pa.table(columns).replace_schema_metadata({_ABOUT: json.dumps(about)})
            if writer is None:
                writer = pa.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer is None:  # not one sentence
            nothing = pa.table({"index": pa.array([], pa.int64()), "tokens": pa.array([], pa.list_(pa.string()))})
            pa.parquet.write_table(nothing.replace_schema_metadata({_ABOUT: json.dumps(about)}), path)
    finally:
        if writer is not None:
            writer.close()


def _nested_lists(pa: Any, arrays: list[Vectors]) -> Any:
    """Arrays as nested lists of vectors of a fixed width, without a Python object a number."""
    numbers = np.concatenate([array.reshape(-1) for array in arrays])
    nested = pa.FixedSizeListArray.from_arrays(pa.array(numbers), arrays[0].shape[-1])
    for axis in reversed(range(arrays[0].ndim - 1)):
        sizes = [array.shape[axis] for array in arrays for _ in range(math.prod(array.shape[:axis]))]
        nested = pa.ListArray.from_arrays(np.cumsum([0, *sizes], dtype=np.int32), nested)
    return nested


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Writing parquet", "parquet") from error
    return pyarrow
