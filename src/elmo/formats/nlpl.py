"""The NLPL repository's format: a zip of `model.hdf5`, `options.json` and `vocab.txt`, the last perhaps gzipped.

It is read where it lies; the weights come into memory, since they may be compressed.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from elmo.config import ModelConfig, parse_json
from elmo.errors import ElmoError
from elmo.files import new_file
from elmo.formats import bilm_tf
from elmo.formats.archives import Files, read_text
from elmo.formats.bundle import VOCAB_FILE, Bundle, Stored
from elmo.vocab import Vocabulary, words_in

WEIGHTS = "model.hdf5"
MEMBERS = (WEIGHTS, bilm_tf.OPTIONS, VOCAB_FILE, f"{VOCAB_FILE}.gz")  # how their names end


def read(files: Files, size: int) -> Bundle:
    """Read a model from a zip's members; `size` is that of the zip."""
    names = files.names()
    if bilm_tf.OPTIONS not in names:
        raise ElmoError(f"{files.name} has no {bilm_tf.OPTIONS} beside {WEIGHTS}")
    options = parse_json(read_text(files, bilm_tf.OPTIONS), f"{files.name}: {bilm_tf.OPTIONS}")
    where = f"{files.name}: {WEIGHTS}"
    with files.open(WEIGHTS) as raw, bilm_tf.open_hdf5(raw, where) as file:
        config = bilm_tf.read_config(options, file, f"{files.name}: {bilm_tf.OPTIONS}")
        network = bilm_tf.read_network(file, config, where)
        stored = Stored(bilm_tf.stored_types(file), size)
    return Bundle(network=network, vocab=_vocab(files, config), source="nlpl", stored=stored)


def _vocab(files: Files, config: ModelConfig) -> Vocabulary | None:
    name = next((name for name in files.names() if name.startswith(VOCAB_FILE)), None)
    if name is None:
        return None
    text = read_text(files, name)
    try:
        return Vocabulary.named(words_in(text), f"{files.name}: {name}")
    except ElmoError:
        if config.n_words is not None:
            raise
        return None  # a model that reads characters does without


def write(bundle: Bundle, path: Path) -> None:
    """Write a zip, whole or not at all."""
    members = {bilm_tf.WEIGHTS: WEIGHTS, bilm_tf.OPTIONS: bilm_tf.OPTIONS, VOCAB_FILE: VOCAB_FILE}
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        new_file(path) as beside,
        TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder,
        zipfile.ZipFile(beside, "w") as archive,
    ):
        bilm_tf.write(bundle, Path(folder))
        for name, member in members.items():
            if (Path(folder) / name).exists():
                archive.write(Path(folder) / name, member)
