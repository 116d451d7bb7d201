"""The curves of a training run, from what it wrote down."""

from __future__ import annotations

import json
import math
from pathlib import Path

from elmo.errors import ElmoError
from elmo.lm.folder import METRICS
from elmo.plot.figures import TRAINING, Points

_CURVES = {"loss": TRAINING, "valid_forward": "held out, forward", "valid_backward": "held out, backward"}


def read_curves(run: Path) -> dict[str, Points]:
    """What there is of the losses of a run, its folder or its metrics.jsonl, by name."""
    path = run / METRICS if run.is_dir() else run
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in _CURVES.values()}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                _add(curves, line, f"{path}, line {number:,}")
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error.strerror}; give the folder of a run") from error
    except UnicodeDecodeError as error:
        raise ElmoError(f"{path} is no file of metrics: {error}") from error
    found: dict[str, Points] = {name: points for name, points in curves.items() if points}
    if not found:
        raise ElmoError(f"{path} has no loss in it yet: a run writes one every train.log_every steps")
    return found


def _add(curves: dict[str, list[tuple[float, float]]], line: str, where: str) -> None:
    try:
        record = json.loads(line)
        step = record["step"]
        points = {name: (float(step), float(record[key])) for key, name in _CURVES.items() if key in record}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ElmoError(
            f"{where} is no record of a run: a JSON object with a step and its losses is expected"
        ) from error
    for name, point in points.items():
        if all(map(math.isfinite, point)):  # a run that diverged has lines with NaN
            curves[name].append(point)
