"""Prepared text, as training reads it: a folder of arrays that are mapped into memory, never loaded whole.

    manifest.json             what there is, how it was made, and the checksum of each file
    vocab.txt                 the words of the language model, special words first
    characters.npy            (W, C) int16: characters of each different word of the text, its type
    targets.npy               (W,) int32: each type's id in the vocabulary
    counts.npy                (V,) int64: how often each word of the vocabulary is a target in the training part
    train-00000.tokens.npy    (N,) uint32: the type of each token, sentence after sentence
    train-00000.starts.npy    (S + 1,) uint64: where in the tokens each sentence starts, and where the last one ends
    valid-00000. ...

Shapes: W types, C characters a word, V words in the vocabulary; in a shard N tokens and S sentences. Types 0 and 1 are
`<S>` and `</S>`: training puts them around each sentence, and no shard holds them. The other types come by falling
frequency in the training part, so what is often read lies together. `elmo prepare` writes such a folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.config import read_json
from elmo.errors import ElmoError
from elmo.vocab import SPECIAL_WORDS, Vocabulary

SplitName = Literal["train", "valid"]

MANIFEST = "manifest.json"
VERSION = 1
N_BOUNDARIES = 2
"""Types before those of the text: `<S>` and `</S>`."""


@dataclass(frozen=True)
class Shard:
    """Some of a split's sentences, in the order of the text."""

    tokens: NDArray[np.uint32]
    """(N,), mapped: the type of each token."""
    starts: NDArray[np.uint64]
    """(S + 1,), mapped: sentence i is `tokens[starts[i] : starts[i + 1]]`, and never empty."""


@dataclass(frozen=True)
class Split:
    """The part for training, or the one held out."""

    n_documents: int
    n_sentences: int
    n_tokens: int
    """Without sentence boundaries."""
    shards: Sequence[Shard]


class Corpus:
    """A folder of prepared text; make one with `Corpus.open`."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], vocab: Vocabulary) -> None:
        """Take what `open` has checked."""
        self.folder = folder
        self.vocab = vocab
        self.digest: str = manifest["digest"]
        """Fingerprint of the whole folder: of the manifest, which has the checksum of each file."""
        self.n_types: int = manifest["n_types"]
        self.max_characters: int = manifest["max_characters"]
        self.settings: Mapping[str, Any] = manifest["settings"]
        """How the text was prepared."""
        self._splits: Mapping[str, Any] = manifest["splits"]

    @classmethod
    def open(cls, folder: Path, *, verify: bool = True) -> Corpus:
        """Open a folder that `elmo prepare` has written.

        Args:
            folder: where it is.
            verify: compare each file with its checksum and look for ids out of range, which reads all of it; without,
                only names and sizes are compared.

        Raises:
            ElmoError: a file is missing, damaged or not what the manifest says; the message names it.
        """
        manifest = _read_manifest(folder)
        for name, facts in manifest["files"].items():
            _check_file(folder / name, facts, verify=verify)
        corpus = cls(folder, manifest, Vocabulary.read(folder / "vocab.txt"))
        corpus._check_shapes()
        if verify:
            corpus._check_ids()
        return corpus

    def characters(self) -> NDArray[np.int16]:
        """Character ids of the types as `elmo.chars` numbers them: `(W, C)`, mapped, read-only."""
        return self._map("characters.npy", np.int16, 2)

    def targets(self) -> NDArray[np.int32]:
        """Each type's id in the vocabulary, that of `<UNK>` where it is not there: `(W,)`, mapped, read-only."""
        return self._map("targets.npy", np.int32, 1)

    def counts(self) -> NDArray[np.int64]:
        """How often each word of the vocabulary is a target in the training part: `(V,)`, mapped, read-only.

        `<UNK>` has all words that are not in the vocabulary. `<S>` and `</S>` have the number of sentences each, being
        the last target of the backward and of the forward direction.
        """
        return self._map("counts.npy", np.int64, 1)

    def split(self, name: SplitName) -> Split:
        """The training part (`train`) or the held-out one (`valid`)."""
        if name not in get_args(SplitName):
            raise ElmoError(f"split is {name!r}: give 'train' or 'valid'")
        facts = self._splits[name]
        shards = [self._shard(name, number) for number in range(facts["shards"])]
        return Split(facts["n_documents"], facts["n_sentences"], facts["n_tokens"], shards)

    def _shard(self, name: SplitName, number: int) -> Shard:
        return Shard(
            self._map(f"{name}-{number:05d}.tokens.npy", np.uint32, 1),
            self._map(f"{name}-{number:05d}.starts.npy", np.uint64, 1),
        )

    def _map(self, name: str, dtype: type[np.generic], n_dims: int) -> NDArray[Any]:
        path = self.folder / name
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError) as error:
            raise _damaged(path, str(error)) from error
        if array.dtype != dtype or array.ndim != n_dims:
            raise _damaged(path, f"it holds {array.dtype} in {array.ndim} dimensions")
        return array

    def _check_shapes(self) -> None:
        V = len(self.vocab)
        for name, found, expected in (
            ("characters.npy", self.characters().shape, (self.n_types, self.max_characters)),
            ("targets.npy", self.targets().shape, (self.n_types,)),
            ("counts.npy", self.counts().shape, (V,)),
        ):
            if found != expected:
                raise _damaged(self.folder / name, f"its shape is {found} and should be {expected}")
        for name in get_args(SplitName):
            split = self.split(name)
            tokens = sum(len(shard.tokens) for shard in split.shards)
            sentences = sum(len(shard.starts) - 1 for shard in split.shards)
            if (tokens, sentences) != (split.n_tokens, split.n_sentences):
                raise _damaged(self.folder / MANIFEST, f"its counts are not those of the shards of {name}")

    def _check_ids(self) -> None:
        _check_range(self.folder / "targets.npy", self.targets(), 0, len(self.vocab))
        for name in get_args(SplitName):
            for number in range(self._splits[name]["shards"]):
                shard = self._shard(name, number)  # one map at a time: what is read through it counts as held
                path = self.folder / f"{name}-{number:05d}.tokens.npy"
                _check_range(path, shard.tokens, N_BOUNDARIES, self.n_types)
                edges = (int(shard.starts[0]), int(shard.starts[-1]))
                if edges != (0, len(shard.tokens)) or np.any(shard.starts[1:] <= shard.starts[:-1]):
                    raise _damaged(self.folder / f"{name}-{number:05d}.starts.npy", "its sentences do not fit")


def manifest_text(facts: Mapping[str, Any]) -> str:
    """A manifest as it is written, with its digest."""
    return json.dumps({**facts, "digest": _digest(facts)}, indent=1) + "\n"


def check_vocabulary(vocab: Vocabulary, name: str) -> Vocabulary:
    """Refuse a vocabulary that training cannot use: special words elsewhere than first, words twice, empty ones."""
    if vocab.words[: len(SPECIAL_WORDS)] != SPECIAL_WORDS:
        raise ElmoError(f"{name}: its first lines are {', '.join(vocab.words[:3])} and should be <S>, </S>, <UNK>")
    seen = set()
    for line, word in enumerate(vocab.words, start=1):
        if word in seen or not word:
            raise ElmoError(f"{name}: {f'the word {word!r} is there twice' if word else 'an empty line'}, line {line}")
        seen.add(word)
    return vocab


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ElmoError(f"{folder} is not a folder of prepared text, for it has no {MANIFEST}: see `elmo prepare`")
    manifest = read_json(path)
    if manifest.get("format") != "elmo corpus":
        raise ElmoError(f"{path} does not describe prepared text")
    if manifest.get("version") != VERSION:
        raise ElmoError(f"{path} is of version {manifest.get('version')!r}; this elmo reads version {VERSION}")
    digest = manifest.pop("digest", None)
    if digest != _digest(manifest):
        raise _damaged(path, "its digest does not fit")
    return {**manifest, "digest": digest}


def _check_file(path: Path, facts: Mapping[str, Any], *, verify: bool) -> None:
    try:
        size = path.stat().st_size
        if size != facts["bytes"]:
            raise _damaged(path, f"it has {size:,} bytes and should have {facts['bytes']:,}")
        if verify and checksum(path) != facts["sha256"]:
            raise _damaged(path, "its checksum is not the one in the manifest")
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error.strerror}") from error


def _check_range(path: Path, ids: NDArray[Any], low: int, high: int) -> None:
    if len(ids) and not low <= ids.min() <= ids.max() < high:
        raise _damaged(path, f"its ids go from {ids.min()} to {ids.max()}; {low} to {high - 1} are allowed")


def _damaged(path: Path, what: str) -> ElmoError:
    return ElmoError(f"{path} is damaged: {what}; `elmo prepare` makes it again")
