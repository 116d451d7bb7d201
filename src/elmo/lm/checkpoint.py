"""Checkpoints: one file, whole or not there, with everything a run needs to go on to the same bits.

A checkpoint is a safetensors file: a training's tensors (of the biLM: the weights, `lm.`, what the optimizer remembers,
`optimizer.`, and the LSTM state of all rows, `state.`) and, as JSON in its header, how the run stands (`Progress`), its
settings and what else tells it from others. What is random and where the data stands follow from seed and step. It is
written beside its place, forced to the disk, then renamed: at any moment the last whole one is there, whatever the
process or the disk does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmo.errors import ElmoError
from elmo.files import new_file
from elmo.formats.bundle import check_shape

_KIND = "elmo checkpoint 1"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How a run stands, beside its tensors."""

    step: int = 0
    """Steps taken."""
    best_loss: float | None = None
    """Held-out loss of the best validation so far."""
    best_step: int = 0
    """When that was."""
    without_better: int = 0
    """Validations since then."""
    metrics_bytes: int = 0
    """Length of `metrics.jsonl`: what was written behind it is done again."""
    sums: tuple[float, ...] = ()
    """Steps since the last line of it, and the sums of their numbers (of the biLM: both losses and the norm)."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Progress:
        """Read what `dataclasses.asdict` and JSON have made of it."""
        return cls(**{**values, "sums": tuple(values["sums"])})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and facts as one file that is there whole or not at all."""
    metadata = {_KIND: json.dumps(about)}  # one key: safetensors writes several in any order, and bytes are compared
    with new_file(path) as beside:
        try:
            save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, beside, metadata)
        except SafetensorError as error:  # its word for a full disk, too
            raise OSError(str(error)) from error
        beside.chmod(0o666 & ~_umask())  # safetensors writes for the owner alone
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too, outlives a power cut
    finally:
        os.close(folder)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The facts and the tensors of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _KIND not in metadata:
                raise ElmoError(f"{path} is no checkpoint of this release of elmo")
            return json.loads(metadata[_KIND]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ElmoError(f"{path} is not a whole checkpoint: {error}") from error
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error}") from error


def fill_tensors(mine: Mapping[str, Tensor], stored: Mapping[str, Tensor], path: Path) -> None:
    """Copy the tensors of a file into those of the same names and shapes, which must all be there."""
    for name, tensor in mine.items():
        if name not in stored:
            raise ElmoError(f"{path} lacks {name}: it is of another architecture than the config")
        check_shape(name, tuple(stored[name].shape), tuple(tensor.shape), path)
        tensor.copy_(stored[name])


def refuse_other_settings(
    stored: Mapping[str, Any], given: Mapping[str, Any], *, free: Collection[str], path: Path
) -> None:
    """Refuse a checkpoint with other settings than a run's; the keys of `free`, such as `train.steps`, may differ."""
    then, now = (dict(_flat(settings)) for settings in (stored, given))
    for key in sorted({*then, *now} - {*free}):
        if then.get(key) != now.get(key):
            what = "another architecture: " if key.startswith("model.") else ""
            raise ElmoError(
                f"{path} is of {what}a run with {key} = {then.get(key)!r}, the config says {now.get(key)!r}: give "
                "the same settings, or another folder for a new run"
            )


def _flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", list(value) if isinstance(value, tuple) else value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
