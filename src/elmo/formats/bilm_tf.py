"""bilm-tf's and AllenNLP's format: `options.json` and an HDF5 file of weights, with TensorFlow's names and layouts.

One table says how each of their weights is named, shaped and laid out in ours; it is read both ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch
from torch import Tensor

from elmo.config import N_BYTES_AND_MARKS, ModelConfig, read_json
from elmo.errors import ElmoError
from elmo.files import new_hdf5
from elmo.formats.bundle import (
    VOCAB_FILE,
    Bundle,
    Network,
    Stored,
    check_finite,
    check_names,
    check_shape,
    empty_bilm,
    fill_bilm,
    vocab_in,
)
from elmo.formats.stored import Place, StoredWeights
from elmo.vocab import Vocabulary

OPTIONS = "options.json"
WEIGHTS = "weights.hdf5"

Layout = Literal["same", "transposed", "convolution", "table"]


@dataclass(frozen=True)
class Row:
    """One weight: its name and shape in the HDF5 file, its name in our network, and how the two are laid out."""

    theirs: str
    ours: str
    shape: tuple[int, ...]
    layout: Layout = "same"


def table(config: ModelConfig) -> list[Row]:
    """Every weight of a model, in the order of the network."""
    return [*_encoder_rows(config), *_lstm_rows(config)]


def _encoder_rows(config: ModelConfig) -> Iterator[Row]:
    cnn, width = config.char_cnn, config.lstm.projection_dim
    if cnn is None:
        assert config.n_words is not None
        yield Row("embedding", "encoder.weight", (config.n_words, width), "table")
        return
    yield Row("char_embed", "encoder.characters.weight", (N_BYTES_AND_MARKS, cnn.embedding_dim), "table")
    for i, (size, number) in enumerate(cnn.filters):
        ours = f"encoder.convolutions.{i}"
        yield Row(f"CNN/W_cnn_{i}", f"{ours}.weight", (1, size, cnn.embedding_dim, number), "convolution")
        yield Row(f"CNN/b_cnn_{i}", f"{ours}.bias", (number,))
    for k in range(cnn.n_highway):
        for gate in ("carry", "transform"):
            theirs, ours = f"CNN_high_{k}", f"encoder.highways.{k}.{gate}"
            yield Row(f"{theirs}/W_{gate}", f"{ours}.weight", (cnn.n_filters, cnn.n_filters), "transposed")
            yield Row(f"{theirs}/b_{gate}", f"{ours}.bias", (cnn.n_filters,))
    if cnn.n_filters != width:
        yield Row("CNN_proj/W_proj", "encoder.projection.weight", (cnn.n_filters, width), "transposed")
        yield Row("CNN_proj/b_proj", "encoder.projection.bias", (width,))


def _lstm_rows(config: ModelConfig) -> Iterator[Row]:
    lstm = config.lstm
    for direction, stack in enumerate(("forwards", "backwards")):
        for k in range(lstm.n_layers):
            # TensorFlow wraps the cells in a MultiRNNCell only when there are several.
            cell = f"MultiRNNCell/Cell{k}/" if lstm.n_layers > 1 else ""
            theirs, ours = f"RNN_{direction}/RNN/{cell}LSTMCell", f"{stack}.{k}"
            yield Row(f"{theirs}/W_0", f"{ours}.kernel", (2 * lstm.projection_dim, 4 * lstm.dim))
            yield Row(f"{theirs}/B", f"{ours}.bias", (4 * lstm.dim,))
            if lstm.has_projection:
                yield Row(f"{theirs}/W_P_0", f"{ours}.projection", (lstm.dim, lstm.projection_dim))


def to_ours(weight: Tensor, *, layout: Layout) -> Tensor:
    """Lay a weight of theirs out as ours."""
    if layout == "transposed":
        return weight.t()
    if layout == "convolution":  # (1, width, characters, number) to (number, characters, width)
        return weight[0].permute(2, 1, 0)
    if layout == "table":  # row 0 is the mask's
        return torch.cat([torch.zeros_like(weight[:1]), weight])
    return weight


def to_theirs(tensor: Tensor, layout: Layout) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Lay a weight of ours out as theirs."""
    array = tensor.detach().float().cpu().numpy()
    if layout == "transposed":
        return array.T
    if layout == "convolution":
        return array.transpose(2, 1, 0)[None]
    return array[1:] if layout == "table" else array


def is_ours(name: str) -> bool:
    """Whether a file of this name belongs to this format."""
    return name in (OPTIONS, VOCAB_FILE) or name.endswith((".hdf5", ".h5"))


def read(weights: Path, options: Path, vocab: Path | None = None) -> Bundle:
    """Read a model from its two or three files; a `vocab.txt` beside the weights is found by itself."""
    raw_options = read_json(options)
    with open_hdf5(weights) as file:
        try:
            config = ModelConfig.from_options(raw_options, n_words=_rows_of_word_table(file))
        except ElmoError as error:
            raise ElmoError(f"{options}: {error}") from error
        network = _read_network(file, config, weights)
        dtype = ", ".join(sorted({str(file[name].dtype) for name in _datasets(file)}))
    words = vocab_in(weights.parent, config) if vocab is None else Vocabulary.read(vocab)
    stored = Stored(dtype, weights.stat().st_size + options.stat().st_size)
    return Bundle(network=network, vocab=words, source="bilm-tf", stored=stored)


def write(bundle: Bundle, folder: Path) -> None:
    """Write `options.json`, `weights.hdf5` and, where there is one, `vocab.txt` into an existing folder."""
    config = bundle.config
    (folder / OPTIONS).write_text(json.dumps(config.to_options(), indent=2) + "\n", encoding="utf-8")
    with new_hdf5(folder / WEIGHTS) as (file, check):
        for row in table(config):
            file.create_dataset(row.theirs, data=to_theirs(bundle.network.read(row.ours), row.layout), dtype="float32")
            check()
    if bundle.vocab is not None:
        bundle.vocab.write(folder / VOCAB_FILE)


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; whatever is wrong with it, then or later, is an error that names it."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error.strerror}") from error
    if not h5py.is_hdf5(path):
        raise ElmoError(f"{path} is not an HDF5 file")
    try:
        with h5py.File(path, "r") as opened:
            yield opened
    except ElmoError:
        raise
    except Exception as error:  # h5py meets a damaged file with errors of a dozen types
        raise ElmoError(f"{path} is a damaged HDF5 file: {error}") from error


def _rows_of_word_table(file: h5py.File) -> int | None:
    words = file.get("embedding")
    return words.shape[0] if isinstance(words, h5py.Dataset) and words.ndim == 2 else None


def _read_network(file: h5py.File, config: ModelConfig, path: Path) -> Network:
    """Check every weight, and leave those that are stored plainly, as all published ones are, where they are."""
    rows = table(config)
    check_names(set(_datasets(file)), {row.theirs for row in rows}, path)
    places: dict[str, Place] = {}
    for row in rows:
        dataset = file[row.theirs]
        check_shape(row.theirs, dataset.shape, row.shape, path)
        if dataset.dtype.kind != "f" or dataset.external or dataset.is_virtual:
            raise ElmoError(f"{path}: {row.theirs} is not a plain table of floating-point numbers")
        offset = dataset.id.get_offset()  # None where it is compressed or in pieces
        if offset is not None and dataset.dtype == np.dtype("<f4"):
            layout = None if row.layout == "same" else partial(to_ours, layout=row.layout)
            places[row.ours] = Place(offset, row.shape, torch.float32, layout)
    if len(places) < len(rows):
        weights = {row.ours: to_ours(_whole(file[row.theirs]), layout=row.layout).contiguous() for row in rows}
        for row in rows:
            check_finite(row.theirs, weights[row.ours], path)
        return Network(config, bilm=fill_bilm(empty_bilm(config), weights))
    stored = StoredWeights(path, places)
    for row in rows:
        for piece in stored.pieces(row.ours):
            check_finite(row.theirs, piece, path)
    return Network(config, stored=stored)


def _whole(dataset: h5py.Dataset) -> Tensor:
    return torch.from_numpy(dataset[...].astype(np.float32, copy=False))


def _datasets(file: h5py.File) -> list[str]:
    """Names of all datasets that are in the file itself: links to elsewhere are not followed."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names
