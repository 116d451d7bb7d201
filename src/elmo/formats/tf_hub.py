"""TF Hub's `elmo/1` to `elmo/3`: a SavedModel's folder, of which the variables are read (`variables/variables.*`).

The module has no options. Sizes follow from the shapes of its variables; clips of 3, `relu` and skip connections are
those of the published modules, which are all one model. Its learned mix is `aggregation/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elmo.config import ModelConfig, read_json
from elmo.errors import ElmoError
from elmo.formats.bundle import Bundle, Stored, check_shape
from elmo.formats.tf_checkpoint import Variables
from elmo.model import ScalarMix

_WEIGHTS, _SCALING = "aggregation/weights", "aggregation/scaling"
_CLIP = 3.0


def prefix_in(folder: Path) -> Path | None:
    """The prefix of a SavedModel's variables; None where a folder is none."""
    prefix = folder / "variables" / "variables"
    return prefix if prefix.with_name("variables.index").is_file() else None


def read(prefix: Path, options: Path | None) -> Bundle:
    """Read the biLM and the mix of a module."""
    variables = Variables(prefix, "bilm")
    raw = _options(variables) if options is None else read_json(options)
    try:
        config = ModelConfig.from_options(raw)
    except ElmoError as error:
        raise ElmoError(f"{options or prefix}: {error}") from error
    return Bundle(
        network=variables.network(config),
        mix=_mix(variables, config),
        source="tf-hub",
        stored=Stored("float32", variables.size),
    )


def _mix(variables: Variables, config: ModelConfig) -> ScalarMix | None:
    found = {
        part: variables.tensor(name, entry, most=config.n_layers)
        for name, entry in variables.others.items()
        for part in (_WEIGHTS, _SCALING)
        if name.endswith(part)
    }
    if not found:
        return None
    if len(found) < 2:
        raise ElmoError(f"{variables.prefix} has only one of {_WEIGHTS} and {_SCALING}")
    mix = ScalarMix(config.n_layers)
    check_shape(_WEIGHTS, tuple(found[_WEIGHTS].shape), (config.n_layers,), variables.prefix)
    check_shape(_SCALING, (found[_SCALING].numel(),), (1,), variables.prefix)
    mix.load_state_dict({"weights": found[_WEIGHTS], "gamma": found[_SCALING].reshape(())})
    return mix


def _options(variables: Variables) -> dict[str, Any]:
    """Options of a module, from what its variables look like."""
    kernels = [name for name in variables.named if name.startswith("RNN_0/") and name.endswith("/W_0")]
    n_filters = sum(name.startswith("CNN/W_cnn_") for name in variables.named)
    n_highway = sum(name.startswith("CNN_high_") and name.endswith("/W_carry") for name in variables.named)
    kernel = _shape(variables, min(kernels, default="RNN_0/RNN/LSTMCell/W_0"), 2)
    filters = [_shape(variables, f"CNN/W_cnn_{i}", 4) for i in range(n_filters)]
    return {
        "lstm": {
            "dim": kernel[1] // 4,
            "projection_dim": kernel[0] // 2,
            "n_layers": len(kernels),
            "cell_clip": _CLIP,
            "proj_clip": _CLIP,
            "use_skip_connections": True,
        },
        "char_cnn": {
            "embedding": {"dim": _shape(variables, "char_embed", 2)[1]},
            "filters": [[width, number] for _, width, _, number in filters],
            "n_highway": n_highway,
        },
    }


def _shape(variables: Variables, name: str, length: int) -> tuple[int, ...]:
    entry = variables.named.get(name)
    if entry is None or entry.place is None or len(entry.place.shape) != length:
        raise ElmoError(f"{variables.prefix} has no {name} of {length} dimensions: it is no ELMo module")
    return entry.place.shape
