"""A trained task model as a folder, and its answers to new text.

task.json           which task, its settings, labels and scores
model.safetensors   its weights
words.json          the words of its table
bilm/               the biLM, unless it is the one that comes with the package, as it comes
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

import torch

from elmo.api import EMBEDDED, Model, dtype_of, load, save
from elmo.config import read_json
from elmo.errors import ElmoError
from elmo.files import new_folder
from elmo.lm.checkpoint import fill_tensors, read_tensors, write_tensors
from elmo.tasks.all import task_named
from elmo.tasks.encoder import TokenEncoder
from elmo.tasks.run import Trained, layers_of
from elmo.tasks.settings import TaskConfig
from elmo.tasks.task import Answer, Example, Task, TaskModel
from elmo.tasks.training import answer_all

ABOUT, WEIGHTS, WORDS, BILM = "task.json", "model.safetensors", "words.json", "bilm"


@dataclass(frozen=True)
class TaskAnswerer(Generic[Example, Answer]):
    """A trained model that answers."""

    task: Task[Example, Answer]
    config: TaskConfig
    model: TaskModel[Example, Answer]
    bilm: Model | None
    """What ELMo comes from, unless it does not go in, or is trained and so within the model."""

    def answers(self, examples: Sequence[Example]) -> list[Answer]:
        """Answers to examples, in their order."""
        device = next(self.model.parameters()).device
        frozen = None
        if self.bilm is not None:
            layers = self.config.encoder.chosen(self.bilm.config.n_layers)
            frozen = layers_of(self.task, self.bilm, examples, device=device).only(layers)
        return answer_all(self.model, self.task, examples, frozen, self.config.train.batch_size)


@dataclass(frozen=True)
class Learned:
    """What the mixes of a task model have learned."""

    name: str
    """Of its folder."""
    task: str
    weights: Mapping[str, Sequence[float]]
    """The layers' shares, which sum to 1, by where ELMo goes in; empty without ELMo."""


def save_task(trained: Trained[Any, Any], bilm: Model, path: Path, *, embedded: bool) -> None:
    """Write a trained model as a folder, which appears whole or not at all.

    Args:
        trained: what `train_task` returns.
        bilm: the biLM that it was trained with.
        path: a folder that is not there yet.
        embedded: whether that is the package's own, which need not be stored.
    """
    if path.exists():
        raise ElmoError(f"{path} exists: give another path")
    encoder, config = trained.model.encoder, trained.result.config
    uses_bilm = bool(encoder.mixes)
    stored = uses_bilm and (encoder.bilm is not None or not embedded)
    about = {
        "format": "elmo task",
        "version": 1,
        "bilm": (BILM if stored else EMBEDDED) if uses_bilm else None,
        "bilm_digest": bilm.embedder(layers="all").digest() if uses_bilm and not stored else None,
        "labels": list(trained.labels),
        "word_dim": encoder.table.embedding_dim,
        **asdict(trained.result),
    }
    weights = {
        name: weight for name, weight in trained.model.state_dict().items() if not name.startswith("encoder.bilm.")
    }
    with new_folder(path) as folder:
        (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        write_words(folder / WORDS, encoder.words)
        write_tensors(folder / WEIGHTS, weights, {"task": config["task"]})
        if stored:
            _save_bilm(bilm, folder / BILM, trained=encoder.bilm is not None)


def load_task(path: Path, device: torch.device | None = None) -> TaskAnswerer[Any, Any]:
    """Read a trained model, ready to answer."""
    about = _read_about(path)
    if not (path / WORDS).is_file():
        raise ElmoError(f"{path} has no {WORDS}: a model that was saved with words.txt, as once, must be trained again")
    try:
        task = task_named(about["config"]["task"])
        config = TaskConfig.of(task, about["config"])
        labels, name = tuple(map(str, about["labels"])), about["bilm"]
        words = read_words(path / WORDS)
        dim = int(about["word_dim"])
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise ElmoError(f"{path} is no whole task model: {error!r}") from error
    bilm = None if name is None else load(path / BILM) if name == BILM else load()
    if bilm is not None and name == EMBEDDED and about.get("bilm_digest") != bilm.embedder(layers="all").digest():
        raise ElmoError(
            f"{path} was trained with the embedded model of another release of elmo: train it again, or use that one"
        )
    model = _empty(task, config, labels, words, dim, bilm)
    _, tensors = read_tensors(path / WEIGHTS)
    weights = {n: weight for n, weight in model.state_dict().items() if not n.startswith("encoder.bilm.")}
    fill_tensors(weights, tensors, path / WEIGHTS)
    answering = None if config.encoder.train_bilm else bilm
    return TaskAnswerer(task, config, model.to(device or torch.device("cpu")).eval(), answering)


def write_words(path: Path, words: Sequence[str]) -> None:
    """Write words of any characters as a JSON list: line breaks and half surrogate pairs come back, too."""
    path.write_bytes(json.dumps(list(words), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def read_words(path: Path) -> list[str]:
    """What `write_words` has written."""
    words = json.loads(path.read_bytes().decode("utf-8", "surrogatepass"))
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise ElmoError(f"{path}: found {words!r:.40}, expected a list of words")
    return words


def read_learned(path: Path) -> Learned:
    """What the mixes of a trained model have learned; of its files only `task.json` is read."""
    about = _read_about(path)
    try:
        weights = {str(place): [float(share) for share in shares] for place, shares in about["layer_weights"].items()}
        return Learned(path.resolve().name, task_named(about["config"]["task"]).name, weights)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ElmoError(f"{path} is no whole task model: {error!r}") from error


def _read_about(path: Path) -> dict[str, Any]:
    if not (path / ABOUT).is_file():
        raise ElmoError(f"{path} is no task model: a folder that elmo task -o has made is expected")
    about = read_json(path / ABOUT)
    if about.get("format") != "elmo task" or about.get("version") != 1:
        raise ElmoError(f"{path / ABOUT} is of no task model that this release knows")
    return about


def _empty(
    task: Task[Any, Any], config: TaskConfig, labels: Sequence[str], words: list[str], dim: int, bilm: Model | None
) -> TaskModel[Any, Any]:
    """A model whose weights are going to be read; its start values do not matter."""
    elmo = None if bilm is None else (len(config.encoder.chosen(bilm.config.n_layers)), bilm.config.dim)
    with torch.random.fork_rng(devices=[]):
        encoder = TokenEncoder(
            config.encoder,
            words,
            elmo=elmo,
            bilm=bilm.bilm if bilm is not None and config.encoder.train_bilm else None,
            word_dim=dim,
        )
        return task.model(encoder, labels, config.model)


def _save_bilm(bilm: Model, path: Path, *, trained: bool) -> None:
    """Write a biLM in the precision that it came in, or all of it where it was trained."""
    save(bilm, path, dtype="float32" if trained else dtype_of(bilm))
