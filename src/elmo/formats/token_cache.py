"""bilm-tf's token cache: the vectors that a model's characters give to the words of a vocabulary, made once.

It is an HDF5 file with one dataset, `embedding` (V, P), beside the files of the model: `options.json`, the weights and
`vocab.txt`. What is read is a model that reads words: the table is its word layer, the LSTMs are the model's, and a
word that is not in the vocabulary is `<UNK>`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from elmo.chars import model_ids
from elmo.config import ModelConfig, read_json
from elmo.errors import ElmoError
from elmo.files import new_hdf5
from elmo.formats import bilm_tf
from elmo.formats.bundle import VOCAB_FILE, Bundle, Network, Stored, empty_bilm, fill_bilm
from elmo.vocab import Vocabulary

CACHE = "token_embeddings.hdf5"
_DATASET = "embedding"
_WORDS_AT_ONCE = 2**12


def is_cache(path: Path) -> bool:
    """Whether an HDF5 file holds a table of words and no more."""
    try:
        with bilm_tf.open_hdf5(path, str(path)) as file:
            return bilm_tf.datasets(file) == [_DATASET]
    except ElmoError:
        return False  # whoever reads it says what is wrong with it


def read(cache: Path, weights: Path, options: Path, vocab: Path | None = None) -> Bundle:
    """Read a model whose word layer is a token cache."""
    listed = Vocabulary.read(cache.parent / VOCAB_FILE if vocab is None else vocab)
    # bilm-tf takes the boundaries anywhere; in our tables they come first.
    first_two = listed.ids(["<S>", "</S>"])
    order = [*first_two, *(row for row in range(len(listed)) if row not in first_two)]
    words = Vocabulary(listed.words[row] for row in order)
    with bilm_tf.open_hdf5(weights, str(weights)) as file, bilm_tf.open_hdf5(cache, str(cache)) as table:
        whole = bilm_tf.read_config(read_json(options), file, str(options))
        bilm_tf.check_rows(file, whole, str(weights))
        config = ModelConfig(lstm=whole.lstm, n_words=len(words))
        first, *lstms = bilm_tf.table(config)
        ours = {first.ours: bilm_tf.read_row(table, first, str(cache))[[0, *(row + 1 for row in order)]]}
        ours |= {row.ours: bilm_tf.read_row(file, row, str(weights)) for row in lstms}
        dtype = bilm_tf.stored_types(file)
    size = sum(path.stat().st_size for path in (cache, weights, options))
    network = Network(config, bilm=fill_bilm(empty_bilm(config), ours))
    return Bundle(network=network, vocab=words, source="token-cache", stored=Stored(dtype, size))


def write(bundle: Bundle, folder: Path) -> None:
    """Write a model in bilm-tf's format, and beside it the cache of its vocabulary."""
    if bundle.config.char_cnn is None:
        raise ElmoError("this model reads words already: a token cache is made from characters")
    if bundle.vocab is None:
        raise ElmoError("a token cache is of some words: give them with vocab=... or --vocab")
    if bundle.vocab.words[:2] != ("<S>", "</S>"):
        raise ElmoError("the vocabulary of a token cache must begin with <S> and </S>")
    bilm_tf.write(bundle, folder)
    words, width = bundle.vocab.words, bundle.config.lstm.projection_dim
    encoder = bundle.bilm.encoder
    weight = next(encoder.parameters())
    with new_hdf5(folder / CACHE) as (file, check), torch.inference_mode():
        table = file.create_dataset(_DATASET, (len(words), width), dtype="float32")
        for start in range(0, len(words), _WORDS_AT_ONCE):
            some = words[start : start + _WORDS_AT_ONCE]
            ids = torch.from_numpy(model_ids(some, bundle.config, bundle.vocab)).to(weight.device)
            table[start : start + len(some)] = encoder(ids).float().cpu().numpy()
            check()
