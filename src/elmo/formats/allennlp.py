"""AllenNLP's models: the ELMo inside a task model, from its archive (`model.tar.gz`) or state dict (`best.th`).

The biLM is found by its parameters' names under any prefix. What weights do not say (clips, activation) is in
`options.json`. Old archives hold it; the others only say from where it was read, so it has to be given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmo.config import ModelConfig, parse_json, read_json
from elmo.errors import ElmoError
from elmo.formats.allennlp_table import ENCODER, LSTM, table
from elmo.formats.archives import read_tar, read_text
from elmo.formats.bundle import Bundle, Network, Stored, check_shape, empty_bilm, fill_bilm
from elmo.formats.pickles import read_tensors
from elmo.formats.torch_layout import checked, rows_to_ours, shapes_of
from elmo.model import ScalarMix

WEIGHTS = "weights.th"
_CONFIG = "config.json"
_OPTIONS = "options_file"  # how the name of options ends in an archive that holds them
_MARK = f"{LSTM}.forward_layer_0.input_linearity.weight"


@dataclass(frozen=True)
class _Found:
    """What a file says."""

    tensors: dict[str, Tensor]
    options: Mapping[str, Any] | None = None
    """Of the biLM, where the file has them."""
    layer_norm: bool = False
    """Whether a mix normalises the layers first."""


def read_archive(path: Path, options: Path | None) -> Bundle:
    """Read the ELMo of a `model.tar.gz`."""
    files = read_tar(path, (_CONFIG, WEIGHTS, _OPTIONS))
    if WEIGHTS not in files.names():
        raise ElmoError(f"{path} has no {WEIGHTS}: it is no archive of an AllenNLP model; unpack what else it may be")
    with files.open(WEIGHTS) as file:
        tensors = read_tensors(file, f"{path}: {WEIGHTS}")
    config = parse_json(read_text(files, _CONFIG), f"{path}: {_CONFIG}") if _CONFIG in files.names() else {}
    held = sorted({read_text(files, name) for name in files.names() if name.endswith(_OPTIONS)})
    given = parse_json(held[0], f"{path}: {_OPTIONS}") if len(held) == 1 else None
    return _bundle(path, _Found(tensors, given, any(_values(config, "do_layer_norm"))), options, config)


def read_state_dict(path: Path, options: Path | None) -> Bundle:
    """Read the ELMo of a `best.th`."""
    with path.open("rb") as file:
        return _bundle(path, _Found(read_tensors(file, str(path))), options, {})


def _bundle(path: Path, found: _Found, options: Path | None, config: Mapping[str, Any]) -> Bundle:
    prefix = _prefix(found.tensors, path)
    raw = read_json(options) if options is not None else found.options
    if raw is None:
        places = sorted({str(place) for place in _values(config, _OPTIONS)})
        where = f"it was read from {', '.join(places)[:200]}" if places else "the file does not say where it is"
        raise ElmoError(
            f"{path} has weights, but not what they do not say (clips, activation): give the model's options.json with "
            f"options=... or --options ({where})"
        )
    try:
        model = ModelConfig.from_options(raw)
    except ElmoError as error:
        raise ElmoError(f"{options or path}: {error}") from error
    # Their LSTM always adds the residual, whatever the options say.
    if not model.lstm.use_skip_connections and model.lstm.n_layers > 1:
        raise ElmoError(f"{options or path}: lstm.use_skip_connections is false; AllenNLP's ELMo always has them")
    mixes = _mixes(found.tensors, prefix, model, path)
    return Bundle(
        network=Network(model, bilm=fill_bilm(empty_bilm(model), _weights(found.tensors, prefix, model, path))),
        mix=mixes[0] if mixes and not found.layer_norm else None,
        card=_card(mixes, found.layer_norm),
        source="allennlp",
        stored=Stored("float32", path.stat().st_size),
    )


def _prefix(tensors: Mapping[str, Tensor], path: Path) -> str:
    """What the names of the biLM's parameters begin with."""
    found = sorted(name.removesuffix(_MARK) for name in tensors if name.endswith(_MARK))
    if not found:
        raise ElmoError(f"{path} has no ELMo in it: no parameter ends with {_MARK}")
    if len(found) > 1:
        raise ElmoError(f"{path} has several ELMo models in it ({', '.join(found)[:200]}): leave one")
    return found[0]


def _weights(tensors: Mapping[str, Tensor], prefix: str, config: ModelConfig, path: Path) -> dict[str, Tensor]:
    # A cached vocabulary is made from the rest.
    inside = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    wanted = {name: tensor for name, tensor in inside.items() if name.startswith((f"{ENCODER}.", f"{LSTM}."))}
    rows = table(config)
    ours = rows_to_ours(rows, checked(wanted, shapes_of(rows, config), path))
    ours["encoder.characters.weight"] = ours["encoder.characters.weight"].clone()
    ours["encoder.characters.weight"][0] = 0  # the mask's row, which some task may have trained
    return {name: tensor.contiguous() for name, tensor in ours.items()}


def _mixes(tensors: Mapping[str, Tensor], prefix: str, config: ModelConfig, path: Path) -> list[ScalarMix]:
    """The mixes beside the biLM, in their order."""
    outer = prefix[: prefix.rstrip(".").rfind(".") + 1]
    mixes: list[ScalarMix] = []
    while (gamma := f"{outer}scalar_mix_{len(mixes)}.gamma") in tensors:
        where = f"{outer}scalar_mix_{len(mixes)}.scalar_parameters."
        count = sum(name.startswith(where) for name in tensors)
        if count != config.n_layers:
            raise ElmoError(f"{path}: {where} has {count} weights, the model {config.n_layers} layers")
        values = [tensors.get(f"{where}{layer}", torch.empty(0)) for layer in range(count)]
        for tensor in (*values, tensors[gamma]):
            check_shape(where, tuple(tensor.shape), (1,), path)
        mix = ScalarMix(config.n_layers)
        mix.load_state_dict({"weights": torch.cat(values).float(), "gamma": tensors[gamma][0].float()})
        mixes.append(mix)
    return mixes


def _card(mixes: list[ScalarMix], layer_norm: bool) -> str:
    lines = [
        f"- mix {i}: weights {[round(weight, 4) for weight in mix.weights.tolist()]}, gamma {mix.gamma.item():.4f}"
        for i, mix in enumerate(mixes)
    ]
    first = "It normalises layers over a batch, so none is kept." if layer_norm else "The first is this model's mix."
    learned = "\nWhat the task learned of the layers. " + first + "\n\n" + "\n".join(lines) + "\n" if lines else ""
    return f"# An ELMo model\n\nThe biLM of a task model of AllenNLP.\n{learned}"


def _values(config: Mapping[str, Any], key: str) -> Iterator[Any]:
    """All values of a key, however deep."""
    waiting: list[Any] = [config]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Mapping):
            if key in here:
                yield here[key]
            waiting += here.values()
        elif isinstance(here, list):
            waiting += here
