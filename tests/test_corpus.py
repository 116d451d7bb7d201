"""Prepared text as training opens it: whole, or refused with the name of what is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import ElmoError
from elmo.lm.corpus import Corpus, checksum, manifest_text
from elmo.lm.prepare import PrepareConfig, prepare

FILES = [
    "characters.npy",
    "counts.npy",
    "targets.npy",
    "train-00000.starts.npy",
    "train-00000.tokens.npy",
    "valid-00000.starts.npy",
    "valid-00000.tokens.npy",
    "vocab.txt",
]


def make(folder: Path, text: str = "a b a\nb c\n\na d\n\nb b\n") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "in.txt").write_text(text)
    prepare([str(folder / "in.txt")], folder / "out", PrepareConfig(min_count=1, valid_share=0.4), workers=1)
    return folder / "out"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path)


def change_array(folder: Path, name: str, change: Any) -> None:
    """Change an array and let the manifest agree, as a program with a fault would."""
    array = np.load(folder / name)
    array = change(array)
    np.save(folder / name, array)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["digest"]
    path = folder / name
    manifest["files"][name] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
    (folder / "manifest.json").write_text(manifest_text(manifest))


def test_the_folder_holds_what_its_manifest_names(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "manifest.json"])
    assert sorted(json.loads((folder / "manifest.json").read_text())["files"]) == FILES


def test_the_digest_tells_one_text_from_another(folder: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    assert Corpus.open(make(same)).digest == Corpus.open(folder).digest
    assert Corpus.open(make(other, "a b a\nb c\n\na d\n\nb d\n")).digest != Corpus.open(folder).digest


def test_an_array_cannot_be_written_to(folder: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        Corpus.open(folder).targets()[0] = 3


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_anywhere_is_found(
    tmp_path_factory: pytest.TempPathFactory, name: str, where: float, flip: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flipped"
    path = (folder / "out" if folder.exists() else make(folder)) / name
    data = bytearray(path.read_bytes())
    whole = bytes(data)
    data[int(where * len(data))] ^= flip
    path.write_bytes(data)
    try:
        if name == "manifest.json" and as_json(data) == as_json(whole):
            return  # white space: nothing is said that was not said before
        with pytest.raises(ElmoError, match=rf"{name} "):
            Corpus.open(path.parent)
    finally:
        path.write_bytes(whole)
    assert Corpus.open(path.parent).n_types == 6


def as_json(data: bytes | bytearray) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_cut_file_is_found_without_reading_all(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1])
    with pytest.raises(ElmoError, match=rf"{name} is damaged: it has .* bytes and should have"):
        Corpus.open(folder, verify=False)
    (folder / name).unlink()
    with pytest.raises(ElmoError, match=rf"cannot read .*{name}: No such file"):
        Corpus.open(folder, verify=False)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-00000.tokens.npy", lambda a: a + np.uint32(4), "its ids go from"),
        ("valid-00000.tokens.npy", lambda a: a * np.uint32(0), "its ids go from 0 to 0; 2 to 5 are allowed"),
        ("targets.npy", lambda a: a + np.int32(2), "its ids go from 2 to"),
        ("targets.npy", lambda a: a - np.int32(1), "its ids go from -1 to"),
        ("train-00000.starts.npy", lambda a: a[::-1].copy(), "its sentences do not fit"),
        ("train-00000.starts.npy", lambda a: a * np.uint64(2), "its sentences do not fit"),
        ("targets.npy", lambda a: a[:-1], r"its shape is \(5,\) and should be \(6,\)"),
        ("characters.npy", lambda a: a[:, :-1], r"its shape is \(6, 49\) and should be \(6, 50\)"),
        ("counts.npy", lambda a: a[1:], "its shape is"),
        ("targets.npy", lambda a: a.astype(np.float32), "it holds float32 in 1 dimensions"),
    ],
)
def test_arrays_that_cannot_be_right_are_refused_whatever_the_checksum(
    folder: Path, name: str, change: Any, message: str
) -> None:
    change_array(folder, name, change)
    with pytest.raises(ElmoError, match=rf"{name} is damaged: {message}"):
        Corpus.open(folder)


def test_counts_that_are_not_those_of_the_shards_are_refused(folder: Path) -> None:
    change_array(folder, "train-00000.tokens.npy", lambda a: a[:-1])
    with pytest.raises(ElmoError, match="its counts are not those of the shards of train"):
        Corpus.open(folder)


def test_what_is_no_prepared_text_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match=r"no manifest\.json: see `elmo prepare`"):
        Corpus.open(tmp_path)
    with pytest.raises(ElmoError, match=r"no manifest\.json"):
        Corpus.open(tmp_path / "nowhere")
    manifest = json.loads((folder / "manifest.json").read_text())
    for change, message in (
        ({"format": "mp3"}, "does not describe prepared text"),
        ({"version": 2}, "is of version 2; this elmo reads version 1"),
        ({"n_types": 7}, "its digest does not fit"),
    ):
        (folder / "manifest.json").write_text(json.dumps(manifest | change))
        with pytest.raises(ElmoError, match=message):
            Corpus.open(folder)


def test_a_split_has_one_of_two_names(folder: Path) -> None:
    name: Any = "test"
    with pytest.raises(ElmoError, match="split is 'test': give 'train' or 'valid'"):
        Corpus.open(folder).split(name)
