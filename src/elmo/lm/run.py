"""A training run in its folder: checkpoints, metrics, early stopping, the finished model.

RUN/last.safetensors   the run as it stands: what --resume goes on from
RUN/best.safetensors   the weights of the best validation so far
RUN/metrics.jsonl      losses and perplexities; no times, so that a resumed run writes the same bytes
RUN/config.json        the settings
RUN/model/             the best model with its head, when the run has ended: `elmo.load` reads it
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from elmo.errors import ElmoError, MissingExtraError
from elmo.files import locked, new_file
from elmo.formats import write_model
from elmo.formats.bundle import Bundle
from elmo.lm.batches import Corpus
from elmo.lm.checkpoint import Progress, read_checkpoint, read_tensors, write_checkpoint, write_tensors
from elmo.lm.distributed import Ranks
from elmo.lm.settings import TrainConfig
from elmo.lm.start import Start
from elmo.lm.train import Event, Stepped, Training, Validated, train

LAST = "last.safetensors"
BEST = "best.safetensors"
METRICS = "metrics.jsonl"
CONFIG = "config.json"
MODEL = "model"


@dataclass(frozen=True)
class Report:
    """What a caller is told after every step."""

    event: Event
    """What happened."""
    steps: int
    """Steps of the whole run."""
    positions: int
    """Positions read so far, in each direction."""
    loss: float
    """Mean loss of training since the last line of the metrics."""
    sampled: bool
    """Whether that is the sampled softmax's, the `exp` of which is no perplexity."""
    validated: Validated | None
    """The last validation, if there was one since the start of this process."""


def pretrain(
    config: TrainConfig,
    corpus: Corpus,
    folder: Path,
    *,
    start: Start | None = None,
    ranks: Ranks | None = None,
    resume: bool = False,
    report: Callable[[Report], None] = lambda _: None,
) -> Progress:
    """Train a model in a folder until its last step, or until it stops getting better.

    Args:
        config: what to do.
        corpus: the prepared text.
        folder: where checkpoints, metrics and the model go.
        start: what to begin with; the seed's start values if not given.
        ranks: the processes that share the work; this one alone if not given.
        resume: go on from the folder's checkpoint if it has one.
        report: called after every step and validation.
    """
    training = Training(config, corpus, ranks or Ranks(), None if start is None else start.lm)
    if start is not None:
        start.recall(training.optimizer)
    return run_training(training, folder, resume=resume, report=report, finish=lambda: _export(folder, training))


def run_training(
    training: Training,
    folder: Path,
    *,
    resume: bool = False,
    report: Callable[[Report], None] = lambda _: None,
    finish: Callable[[], None] = lambda: None,
) -> Progress:
    """Run a training in a folder: what `pretrain` and `finetune` have in common.

    Args:
        training: at its start.
        folder: where checkpoints and metrics go.
        resume: go on from the folder's checkpoint if it has one.
        report: called after every step and validation.
        finish: called in the first rank when the run has ended, while no other run can be in the folder.

    Raises:
        KeyboardInterrupt: the process was told to stop (SIGINT, SIGTERM); the run is saved as it stood.
    """
    ranks = training.ranks
    with _locked(folder, ranks, resume=resume):
        progress = Progress()
        if (folder / LAST).exists():
            progress = read_checkpoint(folder / LAST, training)
        if ranks.first:
            with new_file(folder / CONFIG) as beside:
                beside.write_text(json.dumps(training.config.to_dict(), indent=2) + "\n", encoding="utf-8")
        run = _Run(training, folder, progress)
        try:
            with _stopped_by_signals(training):
                run.go(report)
        except (ElmoError, OSError) as error:  # a full disk may also meet the metrics
            where = f"the last good checkpoint is of step {run.saved:,}: {folder / LAST}"
            raise ElmoError(f"{error}; {where}" if run.saved else str(error)) from error
        if ranks.first:
            finish()
    return run.progress


def read_best(folder: Path, training: Training) -> dict[str, Any] | None:
    """Bring a run's model to the weights of its best validation; say which (`step`, `loss`), None if there was none."""
    if not (folder / BEST).exists():
        return None
    about, tensors = read_tensors(folder / BEST)
    training.lm.load_state_dict({name.removeprefix("lm."): tensor for name, tensor in tensors.items()})
    return about


def read_validations(folder: Path) -> list[Validated]:
    """All validations of a run, from its metrics."""
    lines = map(json.loads, (folder / METRICS).read_text(encoding="utf-8").splitlines())
    return [
        Validated(line["step"], line["valid_forward"], line["valid_backward"], line["valid_positions"])
        for line in lines
        if "valid_loss" in line
    ]


class _Run:
    """Does what follows from the loop's events."""

    def __init__(self, training: Training, folder: Path, progress: Progress) -> None:
        self.training, self.folder, self.progress = training, folder, progress
        self.saved = progress.step
        self._loss = math.nan
        self._validated: Validated | None = None

    def go(self, report: Callable[[Report], None]) -> None:
        training, settings = self.training, self.training.config.train
        with ExitStack() as stack:
            metrics = stack.enter_context(self._open_metrics()) if training.ranks.first else None
            board = stack.enter_context(_board(self.folder)) if settings.tensorboard and metrics else None
            if self._stopped():
                return
            for event in self._events():
                line = self._stepped(event) if isinstance(event, Stepped) else self._validate(event)
                if line is not None and metrics is not None:
                    metrics.write(json.dumps(line) + "\n")
                if line is not None and board is not None:
                    for name, value in line.items():
                        board.add_scalar(name, value, event.step)
                report(self._report(event))
                # Not between a step and its validation: a run that went on from there would leave the validation out.
                validated = isinstance(event, Validated)
                settled = event.step == training.step and (validated or not training.validates_now)
                due = event.step % settings.checkpoint_every == 0 or training.stopping
                if settled and (validated or due):
                    self._save(metrics)
                if self._stopped():
                    return
                if settled and training.stopping and event.step < training.steps:
                    raise KeyboardInterrupt

    def _events(self) -> Iterator[Event]:
        # A run that goes on from its start has done this validation: its line is in the metrics.
        if self.training.config.train.validate_first and self.progress.best_loss is None:
            yield self.training.validate()
        yield from train(self.training)

    def _stepped(self, event: Stepped) -> dict[str, Any] | None:
        now = (1, event.forward, event.backward, event.norm)
        sums = tuple(map(sum, zip(self.progress.sums or (0, 0, 0, 0), now, strict=True)))
        self.progress = replace(self.progress, step=event.step, sums=sums)
        if event.step % self.training.config.train.log_every and event.step < self.training.steps:
            return None
        forward, backward, norm = (value / sums[0] for value in sums[1:])
        self.progress = replace(self.progress, sums=())
        return {
            "step": event.step,
            "loss": 0.5 * (forward + backward),
            "forward": forward,
            "backward": backward,
            "norm": norm,
            "rate": event.rate,
        }

    def _validate(self, event: Validated) -> dict[str, Any]:
        self._validated = event
        best = self.progress.best_loss
        if best is None or event.loss < best:
            if self.training.ranks.first:
                weights = {f"lm.{name}": weight for name, weight in self.training.lm.state_dict().items()}
                write_tensors(self.folder / BEST, weights, {"step": event.step, "loss": event.loss})
            self.progress = replace(self.progress, best_loss=event.loss, best_step=event.step, without_better=0)
        else:
            self.progress = replace(self.progress, without_better=self.progress.without_better + 1)
        return {
            "step": event.step,
            "valid_loss": event.loss,
            "valid_forward": event.forward,
            "valid_backward": event.backward,
            "valid_perplexity": event.perplexity,
            "valid_perplexity_forward": math.exp(event.forward),
            "valid_perplexity_backward": math.exp(event.backward),
            "valid_positions": event.positions,
        }

    def _stopped(self) -> bool:
        patience = self.training.config.train.patience
        return bool(patience) and self.progress.without_better >= patience

    def _report(self, event: Event) -> Report:
        if isinstance(event, Stepped):
            count, forward, backward, _ = self.progress.sums or (1, event.forward, event.backward, 0)
            self._loss = 0.5 * (forward + backward) / count
        positions = event.step * self.training.positions_a_step
        sampled = self.training.config.softmax.kind == "sampled"
        return Report(event, self.training.steps, positions, self._loss, sampled, self._validated)

    def _save(self, metrics: IO[str] | None) -> None:
        if metrics is not None:
            metrics.flush()
            os.fsync(metrics.fileno())
            self.progress = replace(self.progress, metrics_bytes=metrics.tell())
        write_checkpoint(self.folder / LAST, self.training, self.progress)
        self.saved = self.progress.step

    @contextmanager
    def _open_metrics(self) -> Iterator[IO[str]]:
        path = self.folder / METRICS
        path.touch()
        if path.stat().st_size < self.progress.metrics_bytes:
            raise ElmoError(f"{path} is shorter than its checkpoint says: it was changed; the run cannot go on with it")
        with path.open("r+", encoding="utf-8") as file:
            # What was written behind the checkpoint is going to be written again.
            file.truncate(self.progress.metrics_bytes)
            file.seek(self.progress.metrics_bytes)
            yield file


@contextmanager
def _stopped_by_signals(training: Training) -> Iterator[None]:
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


def _export(folder: Path, training: Training) -> None:
    """Write the best model of a run, with its head, as a native folder."""
    about = read_best(folder, training)
    if about is None:
        return
    lm = training.lm
    bundle = Bundle.of(lm.bilm.cpu(), head=lm.head.cpu(), vocab=training.corpus.vocab, card=_card(training, about))
    write_model(bundle, folder / MODEL, overwrite=True)


@contextmanager
def _locked(folder: Path, ranks: Ranks, *, resume: bool) -> Iterator[None]:
    """Make the folder, and keep other runs out of it; the first rank does so for all."""
    if not ranks.first:
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
def _board(folder: Path) -> Iterator[Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("train.tensorboard", "tensorboard") from error
    writer = SummaryWriter(str(folder / "tensorboard"))
    try:
        yield writer
    finally:
        writer.close()


def _card(training: Training, about: dict[str, Any]) -> str:
    config, lstm = training.config, training.config.model.lstm
    return (
        "# An ELMo model\n\n"
        f"A biLM of {lstm.n_layers} LSTM layers ({lstm.dim} cells, {lstm.projection_dim} out, each direction) with its "
        f"language model head over {len(training.corpus.vocab):,} words, trained by `elmo pretrain`.\n\n"
        f"Best of {training.steps:,} steps at step {about['step']:,}: held-out perplexity "
        f"{math.exp(about['loss']):.2f} (full softmax, state carried, mean of the directions).\n\n"
        "Say here what text it was trained on, and under which licence.\n\n"
        f"Settings:\n\n```json\n{json.dumps(config.to_dict(), indent=2)}\n```\n"
    )
