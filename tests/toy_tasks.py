"""Small task models for tests: how one is made, how it learns, what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import elmo
from conftest import small_options, write_model
from elmo.tasks.encoder import EncoderSettings, Place, TokenEncoder
from elmo.tasks.task import Task, TaskModel
from elmo.tasks.vectors import FrozenLayers

PLACES: tuple[Place, ...] = ("none", "input", "output", "both")


def frozen_layers(folder: Path, task: Task[Any, Any], examples: Sequence[Any]) -> FrozenLayers:
    """Layers of a tiny biLM for all that the examples have."""
    write_model(folder, small_options())
    return FrozenLayers(
        elmo.load(folder).embedder(layers="all"), [tokens for one in examples for tokens in task.sentences(one)]
    )


def toy_model(
    task: Task[Any, Any], examples: Sequence[Any], settings: Any, frozen: FrozenLayers | None, place: Place = "none"
) -> TaskModel[Any, Any]:
    """A model that knows all words of some examples, without dropout."""
    torch.manual_seed(0)
    words = sorted({word for one in examples for tokens in task.sentences(one) for word in tokens})
    encoding = EncoderSettings(elmo=place, vectors="none", word_dim=32, characters=8, dropout=0, elmo_dropout=0)
    encoder = TokenEncoder(encoding, words, elmo=None if frozen is None or place == "none" else frozen.shape)
    return task.model(encoder, task.labels(examples), settings)


def learn(
    model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers | None, *, steps: int, rate: float = 0.01
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
def answer(model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers | None) -> list[Any]:
    """A model's answers."""
    model.eval()
    return model.answers(model.collate(examples, frozen), examples)


@torch.no_grad()
def loss_of(model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers | None) -> float:
    """A model's loss."""
    model.eval()
    return float(model.loss(model.collate(examples, frozen)))


def assert_rows_are_alone(model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers | None) -> None:
    """Neither answers nor losses depend on what else is in a batch."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # start values are small, and what leaks would be small, too
    alone = [loss_of(model, [one], frozen) for one in examples]
    assert loss_of(model, examples, frozen) == pytest.approx(sum(alone) / len(alone), rel=1e-4)
    assert answer(model, examples, frozen) == [answer(model, [one], frozen)[0] for one in examples]
