"""The folder of a training run.

RUN/last.safetensors   the run as it stands: what --resume goes on from
RUN/best.safetensors   the weights of the best validation so far
RUN/metrics.jsonl      what steps and validations said; no times, so that a resumed run writes the same bytes
RUN/config.json        the settings
RUN/model/             the best model, when the run has ended
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from elmo.errors import ElmoError, MissingExtraError
from elmo.files import locked

LAST = "last.safetensors"
BEST = "best.safetensors"
METRICS = "metrics.jsonl"
CONFIG = "config.json"
MODEL = "model"


@contextmanager
def locked_run(folder: Path, *, first: bool, resume: bool) -> Iterator[None]:
    """Make the folder, and keep other runs out of it; the first rank does so for all.

    Raises:
        ElmoError: another run is going on in it, or it holds one and `resume` was not asked for.
    """
    if not first:
        yield
        return
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if (folder / LAST).exists() and not (resume or restarted):
        raise ElmoError(f"{folder} holds a run: --resume goes on with it; for a new one give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", f"another run is going on in {folder}"):
        # Of a run that was killed while it wrote; safetensors writes under a name of its own first.
        for left in folder.glob(f".{MODEL}.*-*"):
            shutil.rmtree(left)
        for left in [*folder.glob(".*.new-*"), *folder.glob(".tmp??????")]:
            left.unlink()
        yield


@contextmanager
def open_metrics(path: Path, length: int) -> Iterator[IO[str]]:
    """Open the metrics to be written on from `length` bytes, which the checkpoint says."""
    path.touch()
    if path.stat().st_size < length:
        raise ElmoError(f"{path} is shorter than its checkpoint says: it was changed; the run cannot go on with it")
    with path.open("r+", encoding="utf-8") as file:
        # What was written behind the checkpoint is going to be written again.
        file.truncate(length)
        file.seek(length)
        yield file


@contextmanager
def open_board(folder: Path) -> Iterator[Any]:
    """A writer of TensorBoard's files in a run's folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("train.tensorboard", "tensorboard") from error
    writer = SummaryWriter(str(folder / "tensorboard"))
    try:
        yield writer
    finally:
        writer.close()
