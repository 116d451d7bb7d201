"""Small task models for tests: how one is made, how it learns, what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from elmo.tasks.encoder import EncoderSettings, Place, TokenEncoder
from elmo.tasks.task import Task, TaskModel
from elmo.tasks.vectors import FrozenLayers

PLACES: tuple[Place, ...] = ("none", "input", "output", "both")


def toy_model(
    task: Task[Any, Any], examples: Sequence[Any], settings: Any, frozen: FrozenLayers, place: Place = "none"
) -> TaskModel[Any, Any]:
    """A model that knows all words of some examples, without dropout."""
    torch.manual_seed(0)
    words = sorted({word for one in examples for tokens in task.sentences(one) for word in tokens})
    encoding = EncoderSettings(elmo=place, vectors="none", word_dim=16, characters=4, dropout=0, elmo_dropout=0)
    encoder = TokenEncoder(encoding, words, elmo=None if place == "none" else frozen.shape)
    return task.model(encoder, task.labels(examples), settings)


def learn(
    model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers, *, steps: int, rate: float = 0.01
) -> list[float]:
    """Train on all examples at once; the loss of each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    batch, losses = model.collate(examples, frozen), []
    model.train()
    for _ in range(steps):
        loss = model.loss(batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def answer(model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers) -> list[Any]:
    """A model's answers."""
    model.eval()
    return model.answers(model.collate(examples, frozen), examples)


@torch.no_grad()
def loss_of(model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers) -> float:
    """A model's loss."""
    model.eval()
    return float(model.loss(model.collate(examples, frozen)))
