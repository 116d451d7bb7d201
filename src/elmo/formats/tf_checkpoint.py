"""Checkpoints of bilm-tf's trainer and its forks: the weights, the softmax, and what Adagrad remembered of each.

Releases of TensorFlow named an LSTM's variables each in its own way, and forks put theirs under other scopes. All are
brought to the names of bilm-tf's HDF5 files, whose table (`bilm_tf.py`) says the rest. The options are in
`options.json` and the words in `vocab.txt`, both beside the checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from elmo.config import ModelConfig, read_json
from elmo.errors import ElmoError
from elmo.formats import bilm_tf
from elmo.formats.bilm_tf import Row, to_ours
from elmo.formats.bundle import (
    Bundle,
    Network,
    Read,
    Stored,
    check_finite,
    check_names,
    check_shape,
    vocab_in,
    without_storage,
)
from elmo.formats.stored import Place, StoredWeights
from elmo.formats.tensor_bundle import Entry, read_index
from elmo.lm.softmax import SoftmaxHead
from elmo.vocab import Vocabulary

STATE = "checkpoint"
_INDEX = ".index"
_SLOT = "/Adagrad"
_WEIGHT, _BIAS = "softmax/W", "softmax/b"
_OURS = ("char_embed", "embedding", "CNN", "RNN_", "softmax/")
_LSTM = re.compile(
    r"RNN_(?P<direction>[01])/(?:.*?(?:Cell|cell_)(?P<layer>[0-9]+)/)?(?:.*?)(?:LSTMCell|lstm_cell)/"
    r"(?P<part>kernel|bias|projection/kernel|W_0|B|W_P_0)"
)
_PARTS = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}


def find_prefix(path: Path) -> Path | None:
    """The prefix of the checkpoint that is meant: a folder's last, or a file's; None where there is none.

    `checkpoint` may name a place on another machine: only the last part of it counts.
    """
    if path.is_dir():
        named = _named_in(path / STATE)
        found = [named] if named is not None else sorted(file.name for file in path.glob(f"*{_INDEX}"))
        return path / found[0].removesuffix(_INDEX) if len(found) == 1 else None
    name = re.sub(r"\.(index|meta|data-[0-9]{5}-of-[0-9]{5})$", "", path.name)
    if name == STATE:
        return find_prefix(path.parent)
    prefix = path.with_name(name)
    return prefix if prefix.with_name(f"{name}{_INDEX}").is_file() else None


def _named_in(state: Path) -> str | None:
    if not state.is_file():
        return None
    with state.open("rb") as file:
        text = file.read(2**16).decode("utf-8", "replace")
    found = re.search(r'^model_checkpoint_path: "(.*)"', text, flags=re.MULTILINE)
    return re.split(r"[/\\]", found[1])[-1].replace("\0", "") if found else None


class Variables:
    """The variables of a checkpoint by the names of bilm-tf's HDF5 files, scopes such as `lm/` taken off."""

    def __init__(self, prefix: Path, scope: str) -> None:
        """Read what there is.

        Args:
            prefix: of the checkpoint's files.
            scope: the folder of names that the biLM's variables are in, at any depth.
        """
        self.prefix = prefix
        entries, self._files = read_index(prefix)
        self.others = {name: entry for name, entry in entries.items() if f"/{scope}/" not in f"/{name}"}
        self.named: dict[str, Entry] = {}
        for name, entry in entries.items():
            if name in self.others:
                continue
            plain = plain_name(f"/{name}".rpartition(f"/{scope}/")[2])
            if plain in self.named:
                raise ElmoError(f"{prefix} has {plain!r:.80} twice, under several scopes")
            self.named[plain] = entry

    @property
    def size(self) -> int:
        """Bytes of the data files."""
        return sum(path.stat().st_size for path in self._files)

    def stored(self, rows: list[Row], ending: str = "") -> Read:
        """What reads the weights of a table's rows, checked, or what is stored under their names and an ending."""
        shards: dict[int, dict[str, Place]] = {}
        for row in rows:
            name = row.theirs + ending
            entry = self.named[name]
            if entry.place is None:
                raise ElmoError(f"{self.prefix}: {name} is not of floating-point numbers")
            check_shape(name, entry.place.shape, row.shape, self.prefix)
            layout = None if row.layout == "same" else partial(to_ours, layout=row.layout)
            shards.setdefault(entry.shard, {})[row.ours] = replace(entry.place, layout=layout)
        files = {shard: StoredWeights(self._files[shard], places) for shard, places in shards.items()}
        readers = {name: files[shard] for shard, places in shards.items() for name in places}
        for row in rows:
            for piece in readers[row.ours].pieces(row.ours):
                check_finite(row.theirs + ending, piece, self.prefix)
        return lambda name, where: readers[name](name, where)

    def tensor(self, name: str, entry: Entry, most: int) -> Tensor:
        """A small tensor."""
        place = entry.place
        if place is None or sum(place.shape) > most:
            raise ElmoError(f"{self.prefix}: {name} is not a small tensor of floating-point numbers")
        value = StoredWeights(self._files[entry.shard], {name: place})(name)
        check_finite(name, value, self.prefix)
        return value

    def network(self, config: ModelConfig) -> Network:
        """The biLM, left in its files."""
        rows = bilm_tf.table(config)
        found = {name for name in self.named if name.startswith(_OURS) and not name.endswith(_SLOT)}
        check_names(found - {_WEIGHT, _BIAS}, {row.theirs for row in rows}, self.prefix)
        return Network(config, stored=self.stored(rows))


def plain_name(name: str) -> str:
    """A variable's name as bilm-tf writes it to HDF5; what Adagrad remembers keeps its ending."""
    variable, slot = (name.removesuffix(_SLOT), _SLOT) if name.endswith(_SLOT) else (name, "")
    if (found := _LSTM.fullmatch(variable)) is None:
        return name
    layer = "" if found["layer"] is None else f"MultiRNNCell/Cell{found['layer']}/"
    part = _PARTS.get(found["part"], found["part"])
    return f"RNN_{found['direction']}/RNN/{layer}LSTMCell/{part}{slot}"


def read(prefix: Path, options: Path, vocab: Path | None = None) -> Bundle:
    """Read a checkpoint; its head comes along where the vocabulary is there."""
    variables = Variables(prefix, "lm")
    config = _config(options)
    words = vocab_in(prefix.parent, config) if vocab is None else Vocabulary.read(vocab)
    return Bundle(
        network=variables.network(config),
        vocab=words,
        head=None if words is None else _head(variables, config, len(words)),
        source="tensorflow",
        stored=Stored("float32", variables.size),
    )


def read_accumulators(prefix: Path, config: ModelConfig) -> dict[str, Tensor]:
    """What Adagrad remembered, in our layout, by the names of a language model's weights; empty where nothing is."""
    variables = Variables(prefix, "lm")
    slots = {name.removesuffix(_SLOT) for name in variables.named if name.endswith(_SLOT)}
    if not slots:
        return {}
    bias = variables.named.get(_BIAS)
    n_words = bias.place.shape[0] if bias is not None and bias.place is not None and bias.place.shape else 0
    rows = [*bilm_tf.table(config), *_softmax_rows(variables, config, n_words)]
    check_names(slots, {row.theirs for row in rows}, f"{prefix}, Adagrad's part,")
    stored = variables.stored(rows, _SLOT)
    found = {}
    for row in rows:
        name = row.ours if row.ours.startswith("head.") else f"bilm.{row.ours}"
        found[name] = stored(row.ours, slice(None)).contiguous()
        if row.layout == "table":
            found[name][0] = 1  # the mask's row has no gradient, but its root is divided by
        if not bool((found[name] > 0).all()):
            raise ElmoError(f"{prefix}: {row.theirs}{_SLOT} is a sum of squares that is not above 0: it is damaged")
    return found


def _softmax_rows(variables: Variables, config: ModelConfig, n_words: int) -> list[Row]:
    """The head's rows; where a model that reads words shares their table with its softmax, that is the head's, too."""
    weight = "embedding" if config.char_cnn is None and _WEIGHT not in variables.named else _WEIGHT
    shape = (n_words, config.lstm.projection_dim)
    return [Row(weight, "head.weight", shape), Row(_BIAS, "head.bias", shape[:1])]


def _head(variables: Variables, config: ModelConfig, n_words: int) -> SoftmaxHead | None:
    if not {_WEIGHT, _BIAS} & variables.named.keys():
        return None
    rows = _softmax_rows(variables, config, n_words)
    names = {row.theirs for row in rows}
    check_names(names & variables.named.keys(), names, variables.prefix)
    stored = variables.stored(rows)
    with without_storage():
        head = SoftmaxHead(n_words, config.lstm.projection_dim)
    weights = {row.ours.removeprefix("head."): stored(row.ours, slice(None)) for row in rows}
    head.load_state_dict(weights, assign=True)
    return head.eval().requires_grad_(False)


def _config(options: Path) -> ModelConfig:
    try:
        return ModelConfig.from_options(read_json(options))
    except ElmoError as error:
        raise ElmoError(f"{options}: {error}") from error
