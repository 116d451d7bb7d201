"""Our own format: a folder of `config.json`, `model.safetensors`, `README.md` and, where it has words, `vocab.txt`.

The large weights may be stored in half precision, or as int8 with scales (`quantise.py`), which lie beside them in the
file as `NAME.scale`. Where files must not be large, the weights are in several, `model-00001-of-00002.safetensors` and
so on; `config.json` says how many there are, never their names, and each weight is in one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

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
    Stored,
    check_finite,
    check_names,
    check_shape,
    vocab_in,
    without_storage,
)
from elmo.formats.quantise import LARGEST_SCALE, SCALE, quantise, scale_shape
from elmo.formats.stored import Place, StoredWeights
from elmo.lm.softmax import AdaptiveHead, Head, SoftmaxHead
from elmo.model import ScalarMix, State, weight_shapes

Dtype = Literal["float32", "bfloat16", "float16", "int8"]
"""How large weights are stored; small ones, biases and the like, are always float32."""
Shapes = dict[str, tuple[int, ...]]

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"

_MARK = {"format": "elmo", "version": 1}
_FOR_OTHERS = {"model_type": "elmo"}  # by which transformers' AutoModel finds elmo.integrations.hf
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
}
_MOST_WORDS = 2**31
_MOST_FILES = 999
_HEADER = 512  # bytes of a file beside the weights', and of the header's for each weight, at most


def is_native(folder: Path) -> bool:
    """Whether a folder holds a model in this format."""
    return (folder / CONFIG).is_file() and any(_is_weights(file.name) for file in folder.iterdir())


def is_ours(name: str) -> bool:
    """Whether a file of this name belongs to this format."""
    return name in (CONFIG, CARD, VOCAB_FILE) or _is_weights(name)


def _is_weights(name: str) -> bool:
    return name == WEIGHTS or re.fullmatch(r"model-[0-9]{5}-of-[0-9]{5}\.safetensors", name) is not None


def _weight_files(folder: Path, count: int) -> list[Path]:
    if count == 1:
        return [folder / WEIGHTS]
    return [folder / f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]


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
    dtype, count = raw.get("dtype", "float32"), raw.get("files", 1)
    if dtype not in get_args(Dtype):
        raise ElmoError(
            f"{folder / CONFIG} says that weights are stored as {dtype!r:.50}; this release of elmo reads "
            f"{', '.join(get_args(Dtype))}"
        )
    if type(count) is not int or not 1 <= count <= _MOST_FILES:
        raise ElmoError(f"{folder / CONFIG}: files is {count!r:.50}: a number from 1 to {_MOST_FILES} is expected")
    expected: Shapes = {f"bilm.{name}": shape for name, shape in weight_shapes(config).items()}
    parts = raw.get("parts", [])
    if not isinstance(parts, list):
        raise ElmoError(f"{folder / CONFIG}: parts is {parts!r:.50}: a list is expected")
    for part in parts:
        expected |= _part_shapes(part, config)
    head = _empty_head(raw, config, folder) if "head" in parts else None
    if head is not None:
        expected |= {f"head.{name}": tuple(weight.shape) for name, weight in head.state_dict().items()}
    files = _weight_files(folder, count)
    stored, dtypes = _open_weights(folder, files, expected, quantised=dtype == "int8")
    weights = {name: stored[name](name) for name in expected if not name.startswith("bilm.")}
    if head is not None:
        head.load_state_dict(
            {name.removeprefix("head."): w for name, w in weights.items() if name.startswith("head.")}, assign=True
        )
        head.eval().requires_grad_(False)
    card, words = folder / CARD, folder / VOCAB_FILE
    size = sum(file.stat().st_size for file in (folder / CONFIG, *files, card, words) if file.is_file())
    return Bundle(
        network=Network(config, stored=lambda name, rows: stored[f"bilm.{name}"](f"bilm.{name}", rows)),
        vocab=vocab_in(folder, config, exact=True),
        warm=State(weights["warm.m"], weights["warm.c"]) if "warm.m" in weights else None,
        mix=_mix(weights),
        head=head,
        card=card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None,
        source="native",
        stored=Stored(dtypes, size),
    )


def write(bundle: Bundle, folder: Path, *, dtype: Dtype = "float32", max_file_mb: float | None = None) -> None:
    """Write a model into an existing folder; what `dtype` and `max_file_mb` mean is said at `elmo.save`."""
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
    units = [_compressed(name, weights.pop(name).detach().cpu(), dtype) for name in list(weights)]
    groups = [units] if max_file_mb is None else list(_split(units, max_file_mb))
    config = (
        _MARK
        | _FOR_OTHERS
        | {"dtype": dtype, "files": len(groups), "parts": parts}
        | about
        | bundle.config.to_options()
    )
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path, group in zip(_weight_files(folder, len(groups)), groups, strict=True):
        try:
            save_file({name: weight for unit in group for name, weight in unit.items()}, path)
        except SafetensorError as error:  # its word for a full disk, too
            raise OSError(str(error)) from error
        path.chmod((folder / CONFIG).stat().st_mode)  # safetensors writes for the owner alone
    if bundle.vocab is not None:
        bundle.vocab.write(folder / VOCAB_FILE, exact=True)
    (folder / CARD).write_text(bundle.card or _default_card(bundle.config), encoding="utf-8")


def _compressed(name: str, weight: Tensor, dtype: Dtype) -> dict[str, Tensor]:
    """What is stored for a weight: itself as it is or in half precision, or integers and their scales."""
    check_finite(name, weight, "the model")
    scales = scale_shape(name, tuple(weight.shape))
    if scales is None or dtype == "float32":
        return {name: weight.contiguous()}
    if dtype == "int8":
        try:
            values, scale = quantise(weight, scales)
        except ElmoError as error:
            raise ElmoError(f"{name} cannot be stored as int8: {error}") from error
        return {name: values, name + SCALE: scale}
    half = weight.to(_DTYPES["BF16" if dtype == "bfloat16" else "F16"]).contiguous()
    if not bool(half.isfinite().all()):
        raise ElmoError(f"{name} cannot be stored as {dtype}: it holds numbers that are too large")
    return {name: half}


def _split(units: list[dict[str, Tensor]], max_file_mb: float) -> Iterator[list[dict[str, Tensor]]]:
    """Put weights into files in their order; a weight and its scales are never parted."""
    most, used = max_file_mb * 1e6 - _HEADER, 0
    group: list[dict[str, Tensor]] = []
    for unit in units:
        size = sum(weight.nbytes + _HEADER for weight in unit.values())
        if size > most:
            raise ElmoError(
                f"max_file_mb is {max_file_mb:g}: {next(iter(unit))} alone takes {size / 1e6:.3g} MB; give more, or a "
                "smaller dtype"
            )
        if used + size > most:
            yield group
            group, used = [], 0
        group.append(unit)
        used += size
    yield group


def _part_shapes(part: str, config: ModelConfig) -> Shapes:
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
        with without_storage():
            dim = config.lstm.projection_dim
            return AdaptiveHead(n_words, dim, cutoffs) if cutoffs else SoftmaxHead(n_words, dim)
    except ElmoError as error:
        raise ElmoError(f"{folder / CONFIG}: {error}") from error


def _open_weights(
    folder: Path, paths: list[Path], expected: Shapes, *, quantised: bool
) -> tuple[dict[str, StoredWeights], str]:
    """Check every weight and leave it where it is: what reads each, and the types of the large ones."""
    large = {name: scales for name, shape in expected.items() if (scales := scale_shape(name, shape)) is not None}
    shapes = expected | ({name + SCALE: scales for name, scales in large.items()} if quantised else {})
    headers = {path: _places(path) for path in paths}
    where: dict[str, Path] = {}
    for path, places in headers.items():
        if twice := places.keys() & where.keys():
            raise ElmoError(f"{path} has {min(twice)}, and so has {where[min(twice)].name}")
        where |= dict.fromkeys(places, path)
    check_names(set(where), set(shapes), paths[0] if len(paths) == 1 else folder)
    for name, shape in shapes.items():
        path = where[name]
        check_shape(name, headers[path][name].shape, shape, path)
        _check_type(name, headers[path], path, quantised=quantised and name in large)
    opened = {path: StoredWeights(path, places) for path, places in headers.items()}
    stored = {name: opened[path] for name, path in where.items()}
    for name in shapes:
        _check_numbers(name, stored[name], where[name], quantised=quantised)
    return stored, ", ".join(sorted({_said(headers[where[name]][name].dtype) for name in large}))


def _check_type(name: str, places: Mapping[str, Place], path: Path, *, quantised: bool) -> None:
    dtype = places[name].dtype
    if quantised != (dtype == torch.int8):
        wanted = "int8" if quantised else "floating-point numbers"
        raise ElmoError(f"{path}: {name} is of type {_said(dtype)}; {wanted} are expected, as {CONFIG} says")
    if quantised and places[name].scale is None:
        raise ElmoError(f"{path}: {name} is in another file than {name + SCALE}")


def _check_numbers(name: str, stored: StoredWeights, path: Path, *, quantised: bool) -> None:
    """Refuse NaN and infinity, in the file or made of what is in it."""
    if stored.places[name].dtype == torch.int8:
        return
    for piece in stored.pieces(name):
        check_finite(name, piece, path)
        if quantised and name.endswith(SCALE) and not bool(((piece > 0) & (piece <= LARGEST_SCALE)).all()):
            raise ElmoError(f"{path}: {name} holds numbers that are no scales: the file is damaged")


def _places(path: Path) -> dict[str, Place]:
    """Where a safetensors file has each weight, and its scales."""
    try:
        with safe_open(path, framework="pt"):  # refuses a damaged header, weights that overlap and the like
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length), object_pairs_hook=_once)
    except SafetensorError as error:
        raise ElmoError(f"{path} is not a whole safetensors file: {error}") from error
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error}") from error
    places: dict[str, Place] = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        if row["dtype"] not in _DTYPES:
            raise ElmoError(f"{path}: {name} is of type {row['dtype']}; floating-point numbers are expected")
        places[name] = Place(8 + length + row["data_offsets"][0], tuple(row["shape"]), _DTYPES[row["dtype"]])
    return {name: replace(place, scale=places.get(name + SCALE)) for name, place in places.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SafetensorError("a name stands twice in its header")
    return found


def _said(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
