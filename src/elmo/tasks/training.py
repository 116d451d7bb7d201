"""Training a task's model by the loop that trains the biLM (`lm/loop.py`): same folder, same resuming.

Order of the examples and dropout of a step follow from seed and step, so weights, the optimizer's memory and the number
of the step are all there is to a run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from elmo.errors import ElmoError
from elmo.lm.checkpoint import fill_tensors, refuse_other_settings
from elmo.lm.distributed import Ranks
from elmo.lm.late import Late
from elmo.lm.loop import StepEvent, Trainable, ValidEvent
from elmo.lm.optimizers import Gradient, Optimizer, clip
from elmo.tasks.batch import Batch
from elmo.tasks.settings import TaskConfig
from elmo.tasks.task import Answer, Example, Task, TaskModel
from elmo.tasks.vectors import FrozenLayers

_POOL = 50  # batches whose examples are sorted by length among each other
_LEAST_STEPS = 10  # of an epoch: with few examples, one pass teaches too little for a score to say anything
_MOST_PAIRS = 64 * 400**2  # of tokens of a text, in a batch that is answered: attention has a number for each


@dataclass(frozen=True)
class TaskStepped(StepEvent):
    """A step was taken."""

    task_loss: float
    """Mean over the examples, what the mixes add included."""
    norm: float
    """Of the gradient before clipping."""
    rate: float
    """Learning rate."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """Loss and norm."""
        return self.task_loss, self.norm

    def averaged(self, means: tuple[float, ...]) -> TaskStepped:
        """With means of both."""
        return replace(self, task_loss=means[0], norm=means[1])

    def line(self) -> dict[str, Any]:
        """A line of the metrics."""
        return {"step": self.step, "loss": self.task_loss, "norm": self.norm, "rate": self.rate}


@dataclass(frozen=True)
class TaskValidated(ValidEvent):
    """The development set was answered."""

    scores: Mapping[str, float]
    """Shares from 0 to 1, by name."""
    deciding: str
    """The name of the score that is to become larger."""

    @property
    def loss(self) -> float:
        """How far the deciding score is from 1."""
        return 1 - self.scores[self.deciding]

    def line(self) -> dict[str, Any]:
        """A line of the metrics."""
        return {"step": self.step} | {f"dev_{name}": value for name, value in self.scores.items()}


@dataclass(frozen=True)
class _Pace:
    """What the loop asks for, in steps."""

    log_every: int
    validate_every: int
    checkpoint_every: int
    patience: int
    validate_first: bool = False
    tensorboard: bool = False


class TaskTraining(Trainable[Batch, TaskStepped, TaskValidated], Generic[Example, Answer]):
    """A run: the model, what the optimizer remembers, and how many steps were taken."""

    needs_less = "a smaller train.batch_size needs less"

    def __init__(
        self,
        task: Task[Example, Answer],
        config: TaskConfig,
        model: TaskModel[Example, Answer],
        train: Sequence[Example],
        dev: Sequence[Example],
        *,
        frozen: FrozenLayers | None = None,
        sources: Mapping[str, str] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Start from a model's start values.

        Args:
            task: which one.
            config: its settings.
            model: trained in place.
            train: training examples, of which `config.train.share` is used, with what the task makes of them.
            dev: examples that decide which weights are the best.
            frozen: has the layers of all their sentences, where the biLM is not trained.
            sources: digests of what else decides the run, by name; a resumed one must have the same.
            device: where to compute.
        """
        if not train or not dev:
            raise ElmoError(f"{len(train)} training and {len(dev)} development examples: some of both are needed")
        self.ranks = Ranks(device=device or torch.device("cpu"))
        self.task, self.config = task, config
        self.model = model.to(self.ranks.device)
        self.train_examples = task.for_training(_drawn(train, config), config.model)
        if not self.train_examples:
            raise ElmoError(
                f"none of the {len(train)} training examples is left to learn from: all have paragraphs of more than "
                "model.longest_paragraph tokens"
            )
        self.dev_examples = list(dev)
        self._frozen, self._sources = frozen, dict(sources or {})
        self._sizes = [sum(map(len, task.sentences(example))) for example in self.train_examples]
        self._steps_a_pass = -(-len(self.train_examples) // config.train.batch_size)
        self.steps_an_epoch = max(config.train.passes, -(-_LEAST_STEPS // self._steps_a_pass)) * self._steps_a_pass
        self.steps = config.train.epochs * self.steps_an_epoch
        self.loop = _Pace(config.train.log_every, self.steps_an_epoch, self.steps_an_epoch, config.train.patience)
        trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        self.optimizer = Optimizer(config.optimizer, trained, last_step=self.steps)

    @property
    def units_a_step(self) -> int:
        """Examples."""
        return self.config.train.batch_size

    def reads(self) -> Iterator[Batch]:
        """Batches from the run's position on; each pass has its own order."""
        step = self.step
        while True:
            batches = self._pass(step // self._steps_a_pass)
            for places in batches[step % self._steps_a_pass :]:
                yield self.model.collate([self.train_examples[place] for place in places], self._frozen)
                step += 1

    def takes(self, reads: Iterator[Batch]) -> Iterator[TaskStepped]:
        """Take a step with each batch; it is told of when the next one is launched, unless it has to be settled."""
        late: list[Late] = []
        for batch in reads:
            late.append(self._launch(batch.to(self.ranks.device)))
            while len(late) > (0 if self.settles_now else 1):
                yield self._finish(late.pop(0))

    def validate(self) -> TaskValidated:
        """Answer the development set."""
        answers = answer_all(self.model, self.task, self.dev_examples, self._frozen, self.config.train.batch_size)
        return TaskValidated(self.step, self.task.scores(self.dev_examples, answers), self.task.score)

    def weights(self) -> dict[str, Tensor]:
        """The model's; static word vectors, too, as they are part of what answers."""
        return {f"model.{name}": weight for name, weight in self.model.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Weights and the optimizer's memory."""
        memory = {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state.items()}
        return self.weights() | memory

    def settings(self) -> dict[str, Any]:
        """The task's."""
        return self.config.to_dict()

    def facts(self) -> dict[str, Any]:
        """What the run learns from."""
        return {"examples": self._digest, "sources": self._sources}

    def restore(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
        """Go on from a checkpoint of the same settings and examples."""
        refuse_other_settings(about["config"], self.settings(), free=(), path=path)
        if about["examples"] != self._digest:
            raise ElmoError(f"{path} is of a run on other examples: give the same files, or another folder")
        for name, digest in self._sources.items():
            if about.get("sources", {}).get(name) != digest:
                raise ElmoError(f"{path} is of a run with another {name}: give the same, or another folder")
        fill_tensors(self.tensors(), tensors, path)

    def _launch(self, batch: Batch) -> Late:
        """Take a step, without waiting for its outcome."""
        number = self.step + 1
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        with _seeded(self.config.seed, number, self.ranks.device), self._products():
            with torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.config.train.precision == "bf16"):
                loss = self.model.loss(batch) + self.model.encoder.penalty()
            torch.autograd.backward(loss)
        gradients = [
            Gradient(name, weight, weight.grad)
            for name, weight in self.model.named_parameters()
            if weight.grad is not None
        ]
        norm = clip(gradients, self.config.optimizer.clip)
        self.optimizer.apply(gradients, number)
        self.step = number
        return Late.of(number, torch.stack([loss.detach().float(), norm]))

    def _finish(self, late: Late) -> TaskStepped:
        """Wait for a step's outcome; the weights of one that is no number are never saved."""
        value, size = late.wait()
        if not math.isfinite(value + size):
            raise ElmoError(
                f"the loss is not a number any more at step {late.step:,} ({value:g}, norm {size:g}): a lower "
                "optimizer.rate or optimizer.clip may help"
            )
        return TaskStepped(late.step, value, size, self.optimizer.rate(late.step))

    @contextmanager
    def _products(self) -> Iterator[None]:
        """Let float32 products herein be of TF32, if that was asked for: PyTorch has no setting but a global one."""
        if self.config.train.precision != "tf32":
            yield
            return
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def _pass(self, number: int) -> list[list[int]]:
        """The batches of a pass: examples of like length together, in an order that the seed draws."""
        rng = np.random.default_rng(np.random.SeedSequence(self.config.seed, spawn_key=(0, number)))
        order, size = rng.permutation(len(self.train_examples)).tolist(), self.config.train.batch_size
        batches = []
        for start in range(0, len(order), _POOL * size):
            pool = sorted(order[start : start + _POOL * size], key=self._sizes.__getitem__)
            batches += [pool[first : first + size] for first in range(0, len(pool), size)]
        return [batches[place] for place in rng.permutation(len(batches))]

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for examples in (self.train_examples, self.dev_examples):
            for example in examples:
                digest.update(repr(example).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@torch.no_grad()
def answer_all(
    model: TaskModel[Example, Answer],
    task: Task[Example, Answer],
    examples: Sequence[Example],
    frozen: FrozenLayers | None,
    batch_size: int,
) -> list[Answer]:
    """A model's answers to examples, in their order; examples of like length are answered together."""
    device = next(model.parameters()).device
    sizes = [sum(map(len, task.sentences(example))) for example in examples]
    found: dict[int, Answer] = {}
    model.eval()
    for places in _answered_together(sizes, batch_size):
        chosen = [examples[place] for place in places]
        answers = model.answers(model.collate(chosen, frozen).to(device), chosen)
        found.update(zip(places, answers, strict=True))
    return [found[place] for place in range(len(examples))]


def _answered_together(sizes: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Places of examples of like length, as many at a time as a batch has and memory allows."""
    batch: list[int] = []
    for place in sorted(range(len(sizes)), key=sizes.__getitem__):
        if batch and (len(batch) == batch_size or (len(batch) + 1) * sizes[place] ** 2 > _MOST_PAIRS):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _drawn(train: Sequence[Example], config: TaskConfig) -> list[Example]:
    """The share of the training examples that the seed draws; a smaller one is a part of a larger one."""
    count = max(1, round(config.train.share * len(train)))
    rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(1,)))
    return [train[place] for place in sorted(rng.permutation(len(train))[:count].tolist())]


@contextmanager
def _seeded(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """What is random herein follows from seed and step, and leaves no trace."""
    number = int(np.random.SeedSequence(seed, spawn_key=(2, step)).generate_state(1, np.uint64)[0] >> 1)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(number)
        yield
