"""A task from its examples to a trained model and its scores: what `elmo task` and `elmo reproduce` call.

A run lies in a folder of its own (`lm/folder.py` says what is in it), and can be resumed there; `run.json` says how it
ended, so that a finished one is not run again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic

import torch

from elmo.api import Model
from elmo.config import read_json
from elmo.files import new_file
from elmo.lm.folder import METRICS
from elmo.lm.loop import Report, read_best, run_training
from elmo.tasks.encoder import EncoderSettings, TokenEncoder
from elmo.tasks.settings import TaskConfig
from elmo.tasks.task import Answer, Example, Task, TaskModel
from elmo.tasks.training import TaskStepped, TaskTraining, TaskValidated, answer_all
from elmo.tasks.vectors import FrozenLayers
from elmo.tasks.vectors import Report as Embedding
from elmo.tasks.words import WordVectors

RESULT = "run.json"
TaskReport = Callable[[Report[TaskStepped, TaskValidated]], None]


@dataclass(frozen=True)
class Data(Generic[Example]):
    """Examples of a task."""

    train: Sequence[Example]
    dev: Sequence[Example]
    test: Sequence[Example] = ()

    @property
    def sets(self) -> tuple[Sequence[Example], ...]:
        """All three."""
        return self.train, self.dev, self.test


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    config: Mapping[str, Any]
    """Its settings."""
    examples: int
    """That it learned from."""
    best_epoch: float
    """After how many epochs it was the best."""
    dev: Mapping[str, float]
    """Scores of the best weights."""
    test: Mapping[str, float]
    """The same on the test set; empty without one."""
    curve: Sequence[float]
    """The deciding score on the development set after each epoch."""
    layer_weights: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the mixes have learned, by where ELMo goes in."""
    hardware: str = ""
    """What it was done on, and by which PyTorch."""


@dataclass(frozen=True)
class Trained(Generic[Example, Answer]):
    """A trained model, and how it came about."""

    model: TaskModel[Example, Answer]
    labels: tuple[str, ...]
    result: Result


def freeze(
    task: Task[Example, Answer],
    config: TaskConfig,
    model: Model,
    data: Data[Example],
    *,
    device: torch.device | None = None,
    report: Embedding = lambda sentences, tokens: None,
    folder: Path | None = None,
) -> FrozenLayers:
    """All layers of all sentences of a task's examples, computed once; a `folder` keeps them for other processes."""
    examples = [*task.for_training(data.train, config.model), *data.train, *data.dev, *data.test]
    return layers_of(task, model, examples, device=device, report=report, folder=folder)


def layers_of(
    task: Task[Example, Answer],
    model: Model,
    examples: Sequence[Example],
    *,
    device: torch.device | None = None,
    report: Embedding = lambda sentences, tokens: None,
    folder: Path | None = None,
) -> FrozenLayers:
    """All layers of all sentences of examples."""
    layers = list(range(model.config.n_layers))
    embedder = model.embedder(layers=layers, precision="auto", dtype="float16", device=device)
    sentences = (tokens for one in examples for tokens in task.sentences(one))
    return FrozenLayers(embedder, sentences, report, folder=folder)


def new_model(
    task: Task[Example, Answer], config: TaskConfig, data: Data[Example], bilm: Model
) -> tuple[TaskModel[Example, Answer], tuple[str, ...]]:
    """A model with the start values of the seed, and its labels."""
    labels = task.labels(data.train)
    settings = config.encoder
    layers = len(settings.chosen(bilm.config.n_layers)) if settings.places else 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        encoder = TokenEncoder(
            settings,
            _words(settings, task, data),
            elmo=(layers, bilm.config.dim) if layers else None,
            bilm=bilm.bilm.requires_grad_(True) if settings.train_bilm and layers else None,
        )
        return task.model(encoder, labels, config.model), labels


def train_task(
    task: Task[Example, Answer],
    config: TaskConfig,
    data: Data[Example],
    folder: Path,
    *,
    bilm: Model,
    frozen: FrozenLayers | None = None,
    device: torch.device | None = None,
    resume: bool = False,
    report: TaskReport = lambda _: None,
) -> Trained[Example, Answer]:
    """Train a task's model in a folder, and score its best weights.

    Args:
        task: which one.
        config: its settings.
        data: its examples.
        folder: of the run.
        bilm: what ELMo comes from; with `encoder.train_bilm` its weights are trained.
        frozen: all layers of all sentences (`freeze`), where ELMo goes in and is not trained; computed if not given.
        device: where to compute.
        resume: go on with a run that was cut.
        report: told of each step and validation.
    """
    model, labels = new_model(task, config, data, bilm)
    settings = config.encoder
    if not settings.places or settings.train_bilm:
        frozen = None
    else:
        frozen = freeze(task, config, bilm, data, device=device) if frozen is None else frozen
        frozen = frozen.only(settings.chosen(bilm.config.n_layers))
    sources = _sources(model.encoder, bilm)
    training = TaskTraining(task, config, model, data.train, data.dev, frozen=frozen, sources=sources, device=device)
    progress = run_training(training, folder, resume=resume, report=report)
    read_best(folder, training)
    scores = {
        name: task.scores(examples, answer_all(model, task, examples, frozen, config.train.batch_size))
        for name, examples in (("dev", data.dev), ("test", data.test))
        if examples
    }
    result = Result(
        config.to_dict(),
        len(training.train_examples),
        progress.best_step / training.steps_an_epoch,
        scores["dev"],
        scores.get("test", {}),
        _curve(folder / METRICS, task.score),
        model.encoder.layer_weights(),
        hardware(training.ranks.device),
    )
    with new_file(folder / RESULT) as beside:
        beside.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")
    return Trained(model, labels, result)


def read_result(folder: Path) -> Result | None:
    """How the run in a folder ended; None if there is none, or if it has not ended."""
    return Result(**read_json(folder / RESULT)) if (folder / RESULT).exists() else None


def hardware(device: torch.device) -> str:
    """What computes, and by which PyTorch."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{where}, PyTorch {torch.__version__}, Python {sys.version_info.major}.{sys.version_info.minor}"


def _sources(encoder: TokenEncoder, bilm: Model) -> dict[str, str]:
    """Digests of what a run is made of beside its examples."""
    found = {"biLM": bilm.embedder(layers="all").digest()} if encoder.settings.places else {}
    if not encoder.table.weight.requires_grad:
        table = encoder.table.weight.detach().contiguous().numpy()
        found["set of word vectors"] = hashlib.sha256(table.data).hexdigest()
    return found


def _curve(metrics: Path, score: str) -> list[float]:
    lines = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    return [line[f"dev_{score}"] for line in lines if f"dev_{score}" in line]


def _words(settings: EncoderSettings, task: Task[Example, Answer], data: Data[Example]) -> WordVectors | list[str]:
    """Static vectors of all words that have one; without any, the words that training has twice or more."""
    if settings.vectors != "none":
        return WordVectors.read(settings.vectors)
    counts: dict[str, int] = {}
    for example in data.train:
        for tokens in task.sentences(example):
            for word in tokens:
                counts[word] = counts.get(word, 0) + 1
    return sorted(word for word, count in counts.items() if count > 1)
