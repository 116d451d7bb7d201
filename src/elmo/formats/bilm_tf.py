"""bilm-tf's and AllenNLP's format: `options.json` and an HDF5 file of weights, with TensorFlow's names and layouts.

One table says how each of their weights is named, shaped and laid out in ours; it is read both ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import h5py
import numpy as np
import torch
from torch import Tensor

from elmo.config import N_BYTES_AND_MARKS, ModelConfig, read_json
from elmo.errors import ElmoError
from elmo.files import new_hdf5
from elmo.formats.archives import is_bomb
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
_MAGIC = b"\x89HDF\r\n\x1a\n"

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
    with open_hdf5(weights, str(weights)) as file:
        config = read_config(read_json(options), file, str(options))
        network = read_network(file, config, str(weights), weights)
        dtype = stored_types(file)
    words = vocab_in(weights.parent, config) if vocab is None else Vocabulary.read(vocab)
    stored = Stored(dtype, weights.stat().st_size + options.stat().st_size)
    return Bundle(network=network, vocab=words, source="bilm-tf", stored=stored)


def read_config(options: Mapping[str, Any], file: h5py.File, name: str) -> ModelConfig:
    """What a model is made of, by its options; a word table's size may be in the file alone."""
    words = file.get("embedding") if "embedding" in datasets(file) else None
    try:
        return ModelConfig.from_options(options, n_words=words.shape[0] if words is not None and words.ndim else None)
    except ElmoError as error:
        raise ElmoError(f"{name}: {error}") from error


def write(bundle: Bundle, folder: Path) -> None:
    """Write `options.json`, `weights.hdf5` and, where there is one, `vocab.txt` into an existing folder."""
    config = bundle.config
    if config.char_cnn is not None and (config.char_cnn.alphabet is not None or config.char_cnn.word_dim):
        raise ElmoError(
            "bilm-tf knows bytes alone, this model has an alphabet or a table of words: give format 'native'"
        )
    (folder / OPTIONS).write_text(json.dumps(config.to_options(), indent=2) + "\n", encoding="utf-8")
    with new_hdf5(folder / WEIGHTS) as (file, check):
        for row in table(config):
            weight = bundle.network.read(row.ours)
            check_finite(row.ours, weight, "the model")
            file.create_dataset(row.theirs, data=to_theirs(weight, row.layout), dtype="float32")
            check()
    if bundle.vocab is not None:
        bundle.vocab.write(folder / VOCAB_FILE)


@contextmanager
def open_hdf5(source: Path | IO[bytes], name: str) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; whatever is wrong with it, then or later, is an error that names it."""
    try:
        with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ElmoError(f"cannot read {name}: {error.strerror}") from error
    if magic != _MAGIC and not (isinstance(source, Path) and h5py.is_hdf5(source)):
        raise ElmoError(f"{name} is not an HDF5 file")
    try:
        with h5py.File(source, "r") as opened:
            _refuse_links(opened, name)
            yield opened
    except ElmoError:
        raise
    except Exception as error:  # h5py meets a damaged file with errors of a dozen types
        raise ElmoError(f"{name} is a damaged HDF5 file: {error}") from error


def stored_types(file: h5py.File) -> str:
    """The types of a file's numbers."""
    return ", ".join(sorted({str(file[name].dtype) for name in datasets(file)}))


def read_network(file: h5py.File, config: ModelConfig, name: str, path: Path | None = None) -> Network:
    """Check every weight of an HDF5 file and make a network of them.

    Args:
        file: the file, opened.
        config: what the model is made of.
        name: what an error calls the file.
        path: where it lies; weights that are stored plainly, as all published ones are, are left there.
    """
    rows = check_rows(file, config, name)
    places = {row.ours: place for row in rows if (place := _place(file, row, name)) is not None}
    if path is None or len(places) < len(rows):
        weights = {row.ours: read_row(file, row, name) for row in rows}
        return Network(config, bilm=fill_bilm(empty_bilm(config), weights))
    stored = StoredWeights(path, places)
    for row in rows:
        for piece in stored.pieces(row.ours):
            check_finite(row.theirs, piece, name)
    return Network(config, stored=stored)


def check_rows(file: h5py.File, config: ModelConfig, name: str) -> list[Row]:
    """The rows of a model, all of which are in the file, and nothing else."""
    rows = table(config)
    check_names(set(datasets(file)), {row.theirs for row in rows}, name)
    return rows


def read_row(file: h5py.File, row: Row, name: str) -> Tensor:
    """A weight in our layout, in memory."""
    _place(file, row, name)  # checks it
    weight = torch.from_numpy(file[row.theirs][...].astype(np.float32, copy=False))
    check_finite(row.theirs, weight, name)
    return to_ours(weight, layout=row.layout).contiguous()


def _place(file: h5py.File, row: Row, name: str) -> Place | None:
    """Where a weight's numbers are in the file; None where they are compressed, in pieces or of another type."""
    dataset = file[row.theirs]
    check_shape(row.theirs, dataset.shape, row.shape, name)
    if dataset.dtype.kind != "f" or dataset.external or dataset.is_virtual:
        raise ElmoError(f"{name}: {row.theirs} is not a plain table of floating-point numbers")
    if is_bomb(dataset.nbytes, dataset.id.get_storage_size()):
        raise ElmoError(f"{name}: {row.theirs} has far more numbers than the file stores: it is not read")
    offset = dataset.id.get_offset()
    if offset is None or dataset.dtype != np.dtype("<f4"):
        return None
    layout = None if row.layout == "same" else partial(to_ours, layout=row.layout)
    return Place(offset, row.shape, torch.float32, layout)


def datasets(file: h5py.File) -> list[str]:
    """Names of all datasets of the file."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def _refuse_links(file: h5py.File, name: str) -> None:
    outside = file.visititems_links(lambda where, link: where if isinstance(link, h5py.ExternalLink) else None)
    if outside is not None:
        raise ElmoError(f"{name}: {outside} is a link to another file: it is not followed")
