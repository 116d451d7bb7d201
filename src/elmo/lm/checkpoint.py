"""Checkpoints: one file, whole or not there, with everything a run needs to go on to the same bits.

A checkpoint is a safetensors file: the weights (`lm.`), what the optimizer remembers (`optimizer.`), the LSTM state of
all rows (`state.`), and, as JSON in its header, the step, the settings, the corpus's digest and how long
`metrics.jsonl` was. What is random and where the text stands follow from seed and step. It is written beside its place,
forced to the disk, then renamed: at any moment the last whole one is there, whatever the process or the disk does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmo.errors import ElmoError
from elmo.files import new_file
from elmo.formats.bundle import check_shape
from elmo.lm.settings import LoopSettings
from elmo.lm.train import Training
from elmo.model import State

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
    """Steps since the last line of it, and the sums of their losses of both directions and of their norms."""


def write_checkpoint(path: Path, training: Training, progress: Progress) -> None:
    """Write a run as it stands; all ranks call it, the first one writes."""
    state = training.ranks.gather_state(training.state)
    if not training.ranks.first:
        return
    tensors = {f"lm.{name}": weight for name, weight in training.lm.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in training.optimizer.state.items()}
    tensors |= {"state.m": state.m, "state.c": state.c}
    about = {
        "progress": asdict(progress),
        "config": training.config.to_dict(),
        "corpus": training.corpus.digest,
        "vocabulary": len(training.corpus.vocab),
    }
    if training.start is not None:
        about["start"] = training.start
    write_tensors(path, tensors, about)


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


def read_checkpoint(path: Path, training: Training) -> Progress:
    """Bring a run to where a checkpoint was written; on as many or as few ranks as there are now."""
    about, tensors = read_tensors(path)
    _refuse_other_run(path, about, training)
    expected = {f"lm.{name}": weight for name, weight in training.lm.state_dict().items()}
    expected |= {f"optimizer.{name}": tensor for name, tensor in training.optimizer.state.items()}
    for name, tensor in expected.items():
        if name not in tensors:
            raise ElmoError(f"{path} lacks {name}: it is of another architecture than the config")
        check_shape(name, tuple(tensors[name].shape), tuple(tensor.shape), path)
        tensor.copy_(tensors[name])
    first, last = training.ranks.rows(training.config.data.rows)
    training.state = State(*(tensors[f"state.{part}"][:, :, first:last] for part in "mc")).to(training.state.m)
    values = about["progress"]
    progress = Progress(**values | {"sums": tuple(values["sums"])})
    training.step = progress.step
    return progress


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


def _refuse_other_run(path: Path, about: Mapping[str, Any], training: Training) -> None:
    """Refuse a checkpoint with other settings; how long and how often are free, since they change no step's result."""
    free = {"corpus", *(f"train.{f.name}" for f in fields(LoopSettings))}
    free -= {"train.head_steps", "train.dropout", "train.accumulate", "train.precision"}
    stored, given = (dict(_flat(config)) for config in (about["config"], training.config.to_dict()))
    for key in sorted({*stored, *given} - free):
        if stored.get(key) != given.get(key):
            what = "another architecture: " if key.startswith("model.") else ""
            raise ElmoError(
                f"{path} is of {what}a run with {key} = {stored.get(key)!r}, the config says {given.get(key)!r}: give "
                "the same settings, or another folder for a new run"
            )
    if about.get("start") != training.start:
        raise ElmoError(f"{path} is of a run that started from another model: give the same, or another folder")
    if about["corpus"] != training.corpus.digest:
        raise ElmoError(f"{path} is of a run on another corpus than {training.config.corpus}")


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
