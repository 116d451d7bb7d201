"""ELMoForManyLangs: `config.json`, `char.dic`, `word.dic`, `token_embedder.pkl`, `encoder.pkl`, in a folder or a zip.

What differs from bilm-tf: words are cut into characters of a list instead of bytes; a table of words stands beside the
filters; the marks of a word's begin and end were swapped in training, and so they are when the tables are read here.
`config.json` names the file of settings by a path on the machine of training: only the last part of it counts, in the
same folder. Tables are put into our order, and rows that no name leads to are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmo.config import ModelConfig, parse_json, read_json
from elmo.errors import ElmoError
from elmo.formats.archives import Files, read_text
from elmo.formats.bundle import Bundle, Network, Stored, empty_bilm, fill_bilm
from elmo.formats.pickles import read_tensors
from elmo.formats.torch_layout import Shapes, checked, highway_rows, lstm_rows, rows_to_ours, shapes_of
from elmo.vocab import SPECIAL_WORDS, Vocabulary

TOKENS, ENCODER = "token_embedder.pkl", "encoder.pkl"
MEMBERS = (TOKENS, ENCODER, "char.dic", "word.dic", ".json")  # how their names end

# In the order of our marks: their reader puts <eow> before a word and <bow> behind it.
_MARKS = ("<bos>", "<eos>", "<eow>", "<bow>", "<pad>")
_OTHER = "<oov>"
_WORDS = dict(zip(("<bos>", "<eos>", _OTHER), SPECIAL_WORDS, strict=True))
_BLANK = "\u3000"
_HIGHWAYS = "highways._layers."

# The published settings, which models name but do not have in their folder.
_PUBLISHED_NAME = "cnn_50_100_512_4096_sample.json"
_PUBLISHED: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}


def is_manylangs(names: Sequence[str]) -> bool:
    """Whether a folder or a zip with files of these names holds such a model."""
    return TOKENS in names and ENCODER in names


def read(files: Files, size: int, options: Path | None = None) -> Bundle:
    """Read a model.

    Args:
        files: where it is.
        size: bytes of all of it.
        options: the file of settings, where it is not among the others.
    """
    settings = _settings(files, options)
    section = _section(settings, "token_embedder", files.name)
    characters = _read_dic(files, "char.dic")
    words = _read_dic(files, "word.dic") if section.get("word_dim") else None
    _refuse_missing(files, "char.dic", characters, (*_MARKS, _OTHER))
    _refuse_missing(files, "word.dic", words or dict.fromkeys(_WORDS, 0), tuple(_WORDS))
    alphabet = "".join(name for name in characters if len(name) == 1)
    vocab = None if words is None else _words(words)
    config = _config(settings, alphabet, None if vocab is None else len(vocab), files.name)
    weights = _encoder_weights(files, config, characters, alphabet, words, vocab) | _lstm_weights(files, config)
    bilm = fill_bilm(empty_bilm(config), {name: tensor.contiguous() for name, tensor in weights.items()})
    return Bundle(network=Network(config, bilm=bilm), vocab=vocab, source="manylangs", stored=Stored("float32", size))


def _settings(files: Files, options: Path | None) -> Mapping[str, Any]:
    if options is not None:
        return read_json(options)
    config = parse_json(read_text(files, "config.json"), f"{files.name}: config.json")
    name = str(config.get("config_path", "")).replace("\\", "/").split("/")[-1]
    if name in files.names() and name.endswith(".json"):
        return parse_json(read_text(files, name), f"{files.name}: {name}")
    if name == _PUBLISHED_NAME:
        return _PUBLISHED
    raise ElmoError(
        f"{files.name}: config.json names the settings {name!r:.80}, which are not beside it: put them there, or give "
        "them with options=... or --options"
    )


def _config(settings: Mapping[str, Any], alphabet: str, n_words: int | None, where: str) -> ModelConfig:
    encoder, tokens = (_section(settings, name, where) for name in ("encoder", "token_embedder"))
    for section, key, known in ((encoder, "name", "elmo"), (tokens, "name", "cnn")):
        if str(section.get(key)).lower() != known:
            raise ElmoError(f"{where}: {key} is {section.get(key)!r:.50} in its settings; {known!r} is known")
    options = {
        "lstm": {name: encoder.get(name) for name in ("dim", "projection_dim", "n_layers", "cell_clip", "proj_clip")}
        | {"use_skip_connections": True},
        "char_cnn": {
            "embedding": {"dim": tokens.get("char_dim")},
            "filters": tokens.get("filters"),
            "n_highway": tokens.get("n_highway"),
            "max_characters_per_token": tokens.get("max_characters_per_token"),
            "activation": tokens.get("activation"),
            "alphabet": alphabet,
            "word_dim": tokens.get("word_dim") or 0,
        },
        "n_tokens_vocab": n_words,
    }
    try:
        return ModelConfig.from_options(options)
    except ElmoError as error:
        raise ElmoError(f"{where}: its settings are not known here: {error}") from error


def _read_dic(files: Files, name: str) -> dict[str, int]:
    """Names and their rows. A line with one field has lost its name to a strip: it was some blank."""
    if name not in files.names():
        raise ElmoError(f"{files.name} has no {name}")
    rows: dict[str, int] = {}
    for number, line in enumerate(read_text(files, name).split("\n"), start=1):
        *names, row = line.strip().split("\t")
        if not line.strip():
            continue
        if len(names) > 1 or not (row.isascii() and row.isdigit() and len(row) < 10):
            raise ElmoError(
                f"{files.name}: line {number} of {name} is {line!r:.50}: a name, a tab and a number are expected"
            )
        rows[names[0] if names else _BLANK] = int(row)
    return rows


def _refuse_missing(files: Files, name: str, rows: Mapping[str, int], expected: tuple[str, ...]) -> None:
    if missing := [mark for mark in expected if mark not in rows]:
        raise ElmoError(f"{files.name}: {name} lacks {', '.join(missing)}")


def _words(rows: Mapping[str, int]) -> Vocabulary:
    """Their words, the special ones first and under our names."""
    return Vocabulary([*SPECIAL_WORDS, *(word for word in rows if word not in (*_WORDS, *SPECIAL_WORDS))])


def _encoder_weights(
    files: Files,
    config: ModelConfig,
    characters: Mapping[str, int],
    alphabet: str,
    words: Mapping[str, int] | None,
    vocab: Vocabulary | None,
) -> dict[str, Tensor]:
    assert config.char_cnn is not None
    where = f"{files.name}: {TOKENS}"
    with files.open(TOKENS) as file:
        theirs = read_tensors(file, where)
    shapes = _encoder_shapes(config, theirs)
    theirs = checked(theirs, shapes, where)
    table = theirs["char_emb_layer.embedding.weight"]
    ours = {"encoder.characters.weight": _rows(table, [characters[c] for c in (*alphabet, _OTHER, *_MARKS)], where)}
    if words is not None and vocab is not None:
        names = {ours: theirs for theirs, ours in _WORDS.items()}
        table = theirs["word_emb_layer.embedding.weight"]
        ours["encoder.words.weight"] = _rows(table, [words[names.get(word, word)] for word in vocab], where)
    for i in range(len(config.char_cnn.filters)):
        for part in ("weight", "bias"):
            ours[f"encoder.convolutions.{i}.{part}"] = theirs[f"convolutions.{i}.{part}"]
    for part in ("weight", "bias"):
        ours[f"encoder.projection.{part}"] = theirs[f"projection.{part}"]
    return ours | rows_to_ours(highway_rows(_HIGHWAYS, config.char_cnn.n_highway), theirs)


def _encoder_shapes(config: ModelConfig, theirs: Mapping[str, Tensor]) -> Shapes:
    """Names and shapes; a table has as many rows as its file says, which may be more than have names."""
    cnn, width = config.char_cnn, config.lstm.projection_dim
    assert cnn is not None
    shapes: Shapes = {}
    for table, dim in (("char_emb_layer", cnn.embedding_dim), ("word_emb_layer", cnn.word_dim)):
        if dim:
            name = f"{table}.embedding.weight"
            found = theirs.get(name)
            shapes[name] = (found.shape[0] if found is not None and found.ndim else 0, dim)
    for i, (size, number) in enumerate(cnn.filters):
        shapes |= {f"convolutions.{i}.weight": (number, cnn.embedding_dim, size), f"convolutions.{i}.bias": (number,)}
    shapes |= shapes_of(highway_rows(_HIGHWAYS, cnn.n_highway), config)
    return shapes | {"projection.weight": (width, cnn.width), "projection.bias": (width,)}


def _lstm_weights(files: Files, config: ModelConfig) -> dict[str, Tensor]:
    where = f"{files.name}: {ENCODER}"
    with files.open(ENCODER) as file:
        theirs = read_tensors(file, where)
    rows = list(lstm_rows("", config.lstm))
    return rows_to_ours(rows, checked(theirs, shapes_of(rows, config), where))


def _rows(table: Tensor, rows: list[int], where: str) -> Tensor:
    """Rows of a table in our order, behind a row of zeros for the mask."""
    if max(rows) >= len(table):
        raise ElmoError(f"{where}: a .dic names row {max(rows)} of a table of {len(table)}")
    return torch.cat([torch.zeros(1, table.shape[1]), table[torch.tensor(rows)]])


def _section(settings: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    section = settings.get(name)
    if not isinstance(section, Mapping):
        raise ElmoError(f"{where}: its settings have no section {name!r}")
    return section
