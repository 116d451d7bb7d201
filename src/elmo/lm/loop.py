"""The training loop, whatever is trained: the biLM (`train.py`) and the models of tasks.

`train` yields what happened. `run_training` is its caller in a folder (`folder.py`): it saves, keeps the best weights,
writes metrics, stops early and on signals, and goes on with a run that was cut, to the same bits. A `Trainable` brings
the rest: what a step reads and does, what a validation says, and the tensors and facts of a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, Protocol, Self, TypeVar

from torch import Tensor

from elmo.errors import ElmoError, lack_of_memory
from elmo.files import new_file
from elmo.lm.checkpoint import Progress, fill_tensors, read_tensors, write_tensors
from elmo.lm.distributed import Ranks
from elmo.lm.folder import BEST, CONFIG, LAST, METRICS, locked_run, open_board, open_metrics


@dataclass(frozen=True)
class StepEvent(ABC):
    """A step was taken."""

    step: int
    """Steps taken so far."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """What is averaged between two lines of the metrics."""

    @abstractmethod
    def averaged(self, means: tuple[float, ...]) -> Self:
        """This event with means in the place of its numbers."""

    @abstractmethod
    def line(self) -> dict[str, Any]:
        """A line of the metrics, of an event that was averaged."""


@dataclass(frozen=True)
class ValidEvent(ABC):
    """Held-out data was read."""

    step: int
    """Steps taken so far."""

    @property
    @abstractmethod
    def loss(self) -> float:
        """What is to become smaller: it says which weights are the best."""

    @abstractmethod
    def line(self) -> dict[str, Any]:
        """A line of the metrics."""


Ready = TypeVar("Ready")
Step = TypeVar("Step", bound=StepEvent)
Valid = TypeVar("Valid", bound=ValidEvent)


class Pace(Protocol):
    """The settings that the loop asks for; those of the biLM are `settings.LoopSettings`."""

    @property
    def log_every(self) -> int:
        """Steps between lines of the metrics, which hold the mean over them."""

    @property
    def validate_every(self) -> int:
        """Steps between validations; the last step is always validated."""

    @property
    def validate_first(self) -> bool:
        """Whether the start is validated, too."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints; there is one after every validation, too."""

    @property
    def patience(self) -> int:
        """Validations without a better one after which the run stops; 0 never stops."""

    @property
    def tensorboard(self) -> bool:
        """Whether TensorBoard's files are written, too."""


class Trainable(ABC, Generic[Ready, Step, Valid]):
    """What the loop can train: a model with what its optimizer remembers, at some step.

    Everything random in a step, and what it reads, follow from seed and step: then `tensors` are all there is to it.
    """

    needs_less: ClassVar[str]
    """What to do where the device's memory is too small, for an error."""
    ranks: Ranks
    """This process among those that train together."""
    loop: Pace
    """How often to log, validate and save."""
    steps: int
    """Steps of the whole run."""
    step: int = 0
    """Steps taken."""
    stopping: bool = False
    """Whether the run is to end, for now, with the step under way."""

    @property
    @abstractmethod
    def units_a_step(self) -> int:
        """What a step of all ranks reads, in the units that speeds are given in."""

    @abstractmethod
    def reads(self) -> Iterator[Ready]:
        """What each step needs, from the run's position on and without end; asked in a thread of its own."""

    @abstractmethod
    def takes(self, reads: Iterator[Ready]) -> Iterator[Step]:
        """Take a step with each of `reads`, and tell of it: at once, or late as long as `settles_now` is not true."""

    @abstractmethod
    def validate(self) -> Valid:
        """Read held-out data with the weights as they are; all ranks call it."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The model's own tensors, not copies: what is kept of the best validation."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, of all ranks; all of them call it."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The run's settings, for JSON."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What else tells this run from others, for JSON: no `config` and no `progress`, which are the loop's."""

    @abstractmethod
    def restore(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
        """Take over the `tensors` of a checkpoint; refuse it if its settings (`config`) or facts are of another run."""

    @property
    def validates_now(self) -> bool:
        """Whether a validation follows the step that was taken last."""
        return self.step % self.loop.validate_every == 0 or self.step == self.steps

    @property
    def settles_now(self) -> bool:
        """Whether the step that was taken last must be over before the next: it is validated or saved."""
        return self.stopping or self.validates_now or self.step % self.loop.checkpoint_every == 0


def train(training: Trainable[Ready, Step, Valid]) -> Iterator[Step | Valid]:
    """Take steps until the last one; validate every so often and at the end."""
    # One thread reads for the next step while this one is computed: the order is that of `reads`, whatever the timing.
    with ThreadPoolExecutor(1) as reader:
        for event in training.takes(_read_ahead(training, reader)):
            yield event
            if event.step == training.step and training.validates_now:
                yield training.validate()


def _read_ahead(training: Trainable[Ready, Step, Valid], reader: ThreadPoolExecutor) -> Iterator[Ready]:
    reads = training.reads()
    upcoming = reader.submit(next, reads)
    while training.step < training.steps:
        ready = upcoming.result()
        upcoming = reader.submit(next, reads)
        yield ready


@dataclass(frozen=True)
class Report(Generic[Step, Valid]):
    """What a caller is told after every step and validation."""

    event: Step | Valid
    """What happened."""
    steps: int
    """Steps of the whole run."""
    units: int
    """What was read so far, in the units of `Trainable.units_a_step`."""
    mean: Step | None
    """The last step, averaged with those since the last line of the metrics; None before the first of this process."""
    validated: Valid | None
    """The last validation, if there was one since the start of this process."""


def run_training(
    training: Trainable[Ready, Step, Valid],
    folder: Path,
    *,
    resume: bool = False,
    report: Callable[[Report[Step, Valid]], None] = lambda _: None,
    finish: Callable[[], None] = lambda: None,
) -> Progress:
    """Run a training in a folder until its last step, or until it stops getting better.

    Args:
        training: at its start.
        folder: where checkpoints and metrics go.
        resume: go on from the folder's checkpoint if it has one.
        report: called after every step and validation.
        finish: called in the first rank when the run has ended, while no other run can be in the folder.

    Raises:
        KeyboardInterrupt: the process was told to stop (SIGINT, SIGTERM); the run is saved as it stood.
    """
    first = training.ranks.first
    with locked_run(folder, first=first, resume=resume):
        progress = _restored(training, folder / LAST) if (folder / LAST).exists() else Progress()
        if first:
            with new_file(folder / CONFIG) as beside:
                beside.write_text(json.dumps(training.settings(), indent=2) + "\n", encoding="utf-8")
        run = _Run(training, folder, progress)
        try:
            with _stopped_by_signals(training):
                run.go(report)
        except (ElmoError, OSError, RuntimeError, MemoryError) as error:  # a full disk may also meet the metrics
            reason = str(error)
            if isinstance(error, (RuntimeError, MemoryError)):
                if (short := lack_of_memory(error)) is None:
                    raise
                reason = f"{short}: {training.needs_less}"
            where = f"the last good checkpoint is of step {run.saved:,}: {folder / LAST}"
            raise ElmoError(f"{reason}; {where}" if run.saved else reason) from error
        if first:
            finish()
    return run.progress


def read_best(folder: Path, training: Trainable[Ready, Step, Valid]) -> dict[str, Any] | None:
    """Bring a run's model to the weights of its best validation; say which (`step`, `loss`), None if there was none."""
    if not (folder / BEST).exists():
        return None
    about, tensors = read_tensors(folder / BEST)
    fill_tensors(training.weights(), tensors, folder / BEST)
    return about


def _restored(training: Trainable[Ready, Step, Valid], path: Path) -> Progress:
    """Bring a run to where a checkpoint was written; on as many or as few ranks as there are now."""
    about, tensors = read_tensors(path)
    training.restore(about, tensors, path)
    progress = Progress.of(about["progress"])
    training.step = progress.step
    return progress


class _Run(Generic[Ready, Step, Valid]):
    """Does what follows from the loop's events."""

    def __init__(self, training: Trainable[Ready, Step, Valid], folder: Path, progress: Progress) -> None:
        self.training, self.folder, self.progress = training, folder, progress
        self.saved = progress.step
        self._mean: Step | None = None
        self._validated: Valid | None = None

    def go(self, report: Callable[[Report[Step, Valid]], None]) -> None:
        training, loop = self.training, self.training.loop
        with ExitStack() as stack:
            metrics = None
            if training.ranks.first:
                metrics = stack.enter_context(open_metrics(self.folder / METRICS, self.progress.metrics_bytes))
            board = stack.enter_context(open_board(self.folder)) if loop.tensorboard and metrics else None
            if self._stopped():
                return
            for event in self._events():
                line = self._stepped(event) if isinstance(event, StepEvent) else self._validate(event)
                if line is not None and metrics is not None:
                    metrics.write(json.dumps(line) + "\n")
                if line is not None and board is not None:
                    for name, value in line.items():
                        board.add_scalar(name, value, event.step)
                units = event.step * training.units_a_step
                report(Report(event, training.steps, units, self._mean, self._validated))
                # Not between a step and its validation: a run that went on from there would leave the validation out.
                validated = isinstance(event, ValidEvent)
                settled = event.step == training.step and (validated or not training.validates_now)
                due = event.step % loop.checkpoint_every == 0 or training.stopping
                if settled and (validated or due):
                    self._save(metrics)
                if self._stopped():
                    return
                if settled and training.stopping and event.step < training.steps:
                    raise KeyboardInterrupt

    def _events(self) -> Iterator[Step | Valid]:
        # A run that goes on from its start has done this validation: its line is in the metrics.
        if self.training.loop.validate_first and self.progress.best_loss is None:
            yield self.training.validate()
        yield from train(self.training)

    def _stepped(self, event: Step) -> dict[str, Any] | None:
        now = (1, *event.numbers)
        sums = tuple(map(sum, zip(self.progress.sums or (0,) * len(now), now, strict=True)))
        logs = event.step % self.training.loop.log_every == 0 or event.step == self.training.steps
        self.progress = replace(self.progress, step=event.step, sums=() if logs else sums)
        mean = event.averaged(tuple(value / sums[0] for value in sums[1:]))
        self._mean = event if logs else mean
        return mean.line() if logs else None

    def _validate(self, event: Valid) -> dict[str, Any]:
        self._validated = event
        best = self.progress.best_loss
        if best is None or event.loss < best:
            if self.training.ranks.first:
                about = {"step": event.step, "loss": event.loss}
                write_tensors(self.folder / BEST, self.training.weights(), about)
            self.progress = replace(self.progress, best_loss=event.loss, best_step=event.step, without_better=0)
        else:
            self.progress = replace(self.progress, without_better=self.progress.without_better + 1)
        return event.line()

    def _stopped(self) -> bool:
        patience = self.training.loop.patience
        return bool(patience) and self.progress.without_better >= patience

    def _save(self, metrics: IO[str] | None) -> None:
        training = self.training
        if metrics is not None:
            metrics.flush()
            os.fsync(metrics.fileno())
            self.progress = replace(self.progress, metrics_bytes=metrics.tell())
        tensors = training.tensors()
        if training.ranks.first:
            about = {"progress": asdict(self.progress), "config": training.settings()} | training.facts()
            write_tensors(self.folder / LAST, tensors, about)
        self.saved = self.progress.step


@contextmanager
def _stopped_by_signals(training: Trainable[Ready, Step, Valid]) -> Iterator[None]:
    """Let Ctrl-C and a scheduler's SIGTERM wait until the step under way is over and saved; a second one does not.

    Several ranks would stop at different steps: they are cut as they are, and go on from the last checkpoint.
    """
    if training.ranks.size > 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: object) -> None:
        training.stopping = True
        restore()

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()
