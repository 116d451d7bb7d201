"""Our own format: a folder of `config.json`, `model.safetensors`, `README.md` and, where it has words, `vocab.txt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmo.config import ModelConfig, read_json
from elmo.errors import ElmoError
from elmo.formats.bundle import (
    VOCAB_FILE,
    Bundle,
    Network,
    check_finite,
    check_names,
    check_shape,
    vocab_in,
)
from elmo.formats.stored import Place, StoredWeights
from elmo.lm.softmax import AdaptiveHead, Head, SoftmaxHead
from elmo.model import ScalarMix, State, weight_shapes

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"
FILES = (CONFIG, WEIGHTS, CARD, VOCAB_FILE)

_MARK = {"format": "elmo", "version": 1}
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_MOST_WORDS = 2**31


def is_native(folder: Path) -> bool:
    """Whether a folder holds a model in this format."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()


def read(folder: Path) -> Bundle:
    """Read a model from its folder."""
    raw = read_json(folder / CONFIG)
    if {key: raw.get(key) for key in _MARK} != _MARK:
        raise ElmoError(
            f"{folder / CONFIG} says format {raw.get('format')!r}, version {raw.get('version')!r}; "
            f"this release of elmo reads format 'elmo', version {_MARK['version']}"
        )
    try:
        config = ModelConfig.from_options(raw)
    except ElmoError as error:
        raise ElmoError(f"{folder / CONFIG}: {error}") from error
    expected = {f"bilm.{name}": shape for name, shape in weight_shapes(config).items()}
    parts = raw.get("parts", [])
    if not isinstance(parts, list):
        raise ElmoError(f"{folder / CONFIG}: parts is {parts!r:.50}: a list is expected")
    for part in parts:
        expected |= _part_shapes(part, config)
    head = _empty_head(raw, config, folder) if "head" in parts else None
    if head is not None:
        expected |= {f"head.{name}": tuple(weight.shape) for name, weight in head.state_dict().items()}
    stored = _open_weights(folder / WEIGHTS, expected)
    weights = {name: stored(name) for name in expected if not name.startswith("bilm.")}
    if head is not None:
        head.load_state_dict(
            {name.removeprefix("head."): w for name, w in weights.items() if name.startswith("head.")}, assign=True
        )
        head.eval().requires_grad_(False)
    card = folder / CARD
    return Bundle(
        network=Network(config, stored=lambda name, rows: stored(f"bilm.{name}", rows)),
        vocab=vocab_in(folder, config),
        warm=State(weights["warm.m"], weights["warm.c"]) if "warm.m" in weights else None,
        mix=_mix(weights),
        head=head,
        card=card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None,
        source="native",
    )


def write(bundle: Bundle, folder: Path) -> None:
    """Write a model into an existing folder."""
    weights = {f"bilm.{name}": bundle.network.read(name) for name in weight_shapes(bundle.config)}
    parts = []
    if bundle.warm is not None:
        parts.append("warm")
        weights |= {"warm.m": bundle.warm.m, "warm.c": bundle.warm.c}
    if bundle.mix is not None:
        parts.append("mix")
        weights |= {f"mix.{name}": weight for name, weight in bundle.mix.state_dict().items()}
    about: dict[str, object] = {}
    if bundle.head is not None:
        parts.append("head")
        weights |= {f"head.{name}": weight for name, weight in bundle.head.state_dict().items()}
        cutoffs = list(bundle.head.cutoffs) if isinstance(bundle.head, AdaptiveHead) else None
        about = {"head": {"n_words": bundle.head.n_words, "cutoffs": cutoffs}}
    config = _MARK | {"parts": parts} | about | bundle.config.to_options()
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    try:
        save_file({name: w.detach().cpu().contiguous() for name, w in weights.items()}, folder / WEIGHTS)
    except SafetensorError as error:  # its word for a full disk, too
        raise OSError(str(error)) from error
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # safetensors writes for the owner alone
    if bundle.vocab is not None:
        bundle.vocab.write(folder / VOCAB_FILE)
    (folder / CARD).write_text(bundle.card or _default_card(bundle.config), encoding="utf-8")


def _part_shapes(part: str, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    lstm = config.lstm
    if part == "warm":
        return {
            "warm.m": (lstm.n_layers, 2, 1, lstm.projection_dim),
            "warm.c": (lstm.n_layers, 2, 1, lstm.dim),
        }
    if part == "mix":
        return {"mix.weights": (config.n_layers,), "mix.gamma": ()}
    if part == "head":  # its shapes follow from what the options say of it
        return {}
    raise ElmoError(f"{CONFIG} names the part {part!r}; 'warm', 'mix' and 'head' are known")


def _empty_head(raw: dict[str, Any], config: ModelConfig, folder: Path) -> Head:
    about = raw.get("head")
    n_words = about.get("n_words") if isinstance(about, dict) else None
    cutoffs = about.get("cutoffs") if isinstance(about, dict) else None
    numbers = [n_words, *(cutoffs or [])] if isinstance(cutoffs, list | None) else [None]
    if n_words is None or any(type(number) is not int or not 0 < number <= _MOST_WORDS for number in numbers):
        raise ElmoError(
            f"{folder / CONFIG}: head is {about!r:.80}: the numbers n_words and, of an adaptive softmax, cutoffs are "
            "expected"
        )
    try:
        with torch.device("meta"):
            dim = config.lstm.projection_dim
            return AdaptiveHead(n_words, dim, cutoffs) if cutoffs else SoftmaxHead(n_words, dim)
    except ElmoError as error:
        raise ElmoError(f"{folder / CONFIG}: {error}") from error


def _open_weights(path: Path, expected: dict[str, tuple[int, ...]]) -> StoredWeights:
    """Check every weight, and leave them where they are."""
    try:
        with safe_open(path, framework="pt") as file:  # refuses a damaged header, weights that overlap and the like
            check_names(set(file.keys()), set(expected), path)
            for name, shape in expected.items():
                check_shape(name, tuple(file.get_slice(name).get_shape()), shape, path)
        stored = StoredWeights(path, {name: _place(path, *row) for name, row in _header(path).items()})
    except SafetensorError as error:
        raise ElmoError(f"{path} is not a whole safetensors file: {error}") from error
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error}") from error
    for name in expected:
        for piece in stored.pieces(name):
            check_finite(name, piece, path)
    return stored


def _header(path: Path) -> dict[str, tuple[str, dict[str, Any], int]]:
    """What a safetensors file says of each weight: its name, its description, where the data begins."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return {name: (name, row, 8 + length) for name, row in header.items() if name != "__metadata__"}


def _place(path: Path, name: str, row: dict[str, Any], start: int) -> Place:
    if row["dtype"] not in _DTYPES:
        raise ElmoError(f"{path}: {name} is of type {row['dtype']}; floating-point numbers are expected")
    return Place(start + row["data_offsets"][0], tuple(row["shape"]), _DTYPES[row["dtype"]])


def _mix(weights: dict[str, Tensor]) -> ScalarMix | None:
    if "mix.weights" not in weights:
        return None
    mix = ScalarMix(len(weights["mix.weights"]))
    mix.load_state_dict({"weights": weights["mix.weights"], "gamma": weights["mix.gamma"]})
    return mix


def _default_card(config: ModelConfig) -> str:
    return (
        "# An ELMo model\n\n"
        f"A biLM of {config.lstm.n_layers} LSTM layers ({config.lstm.dim} cells, {config.lstm.projection_dim} out, "
        "each direction), written by `elmo`. Say here what it was trained on, under which licence, and how.\n"
    )
