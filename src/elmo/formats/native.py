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
    check_finite,
    check_names,
    check_shape,
    empty_bilm,
    fill_bilm,
    vocab_in,
)
from elmo.lm.softmax import AdaptiveHead, Head, SoftmaxHead
from elmo.model import ScalarMix, State

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"
FILES = (CONFIG, WEIGHTS, CARD, VOCAB_FILE)

_MARK = {"format": "elmo", "version": 1}
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
    bilm = empty_bilm(config)
    expected = {f"bilm.{name}": tuple(weight.shape) for name, weight in bilm.state_dict().items()}
    parts = raw.get("parts", [])
    if not isinstance(parts, list):
        raise ElmoError(f"{folder / CONFIG}: parts is {parts!r:.50}: a list is expected")
    for part in parts:
        expected |= _part_shapes(part, config)
    head = _empty_head(raw, config, folder) if "head" in parts else None
    if head is not None:
        expected |= {f"head.{name}": tuple(weight.shape) for name, weight in head.state_dict().items()}
    weights = _read_weights(folder / WEIGHTS, expected)
    if head is not None:
        head.load_state_dict(
            {name.removeprefix("head."): w for name, w in weights.items() if name.startswith("head.")}, assign=True
        )
        head.eval().requires_grad_(False)
    fill_bilm(bilm, {name.removeprefix("bilm."): w for name, w in weights.items() if name.startswith("bilm.")})
    card = folder / CARD
    return Bundle(
        bilm=bilm,
        vocab=vocab_in(folder, config),
        warm=State(weights["warm.m"], weights["warm.c"]) if "warm.m" in weights else None,
        mix=_mix(weights),
        head=head,
        card=card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None,
        source="native",
    )


def write(bundle: Bundle, folder: Path) -> None:
    """Write a model into an existing folder."""
    weights = {f"bilm.{name}": weight for name, weight in bundle.bilm.state_dict().items()}
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


def _read_weights(path: Path, expected: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            check_names(set(file.keys()), set(expected), path)
            for name, shape in expected.items():
                check_shape(name, tuple(file.get_slice(name).get_shape()), shape, path)
                weights[name] = file.get_tensor(name)
    except SafetensorError as error:
        raise ElmoError(f"{path} is not a whole safetensors file: {error}") from error
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error}") from error
    for name, weight in weights.items():
        if not weight.is_floating_point():
            raise ElmoError(f"{path}: {name} is of type {weight.dtype}; floating-point numbers are expected")
        weights[name] = weight.to(torch.float32)
        check_finite(name, weights[name], path)
    return weights


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
