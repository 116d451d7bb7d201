"""What the tests of task models share: encoders with and without ELMo, and the plainest training there is."""

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


def new_model(
    task: Task[Any, Any], examples: Sequence[Any], settings: Any, *, frozen: FrozenLayers | None, place: Place
) -> TaskModel[Any, Any]:
    """A model that knows the words of the examples."""
    torch.manual_seed(0)
    words = sorted({word.lower() for one in examples for tokens in task.sentences(one) for word in tokens})
    shape = None if frozen is None or place == "none" else frozen.shape
    settings_of_words = EncoderSettings(elmo=place, vectors="none", characters=8, dropout=0.0, elmo_dropout=0.0)
    encoder = TokenEncoder(settings_of_words, words, elmo=shape)
    return task.model(encoder, task.labels(examples), settings)


def train(model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers | None, steps: int) -> list[float]:
    """The loss of each step, all examples at once."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    batch, losses = model.collate(examples, frozen), []
    for _ in range(steps):
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


def answers(model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers | None) -> list[Any]:
    """What the model says to all of them at once."""
    with torch.no_grad():
        return model.answers(model.collate(examples, frozen), examples)


def assert_rows_are_alone(model: TaskModel[Any, Any], examples: Sequence[Any], frozen: FrozenLayers | None) -> None:
    """Neither answers nor losses depend on what else is in a batch."""
    model.eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # start values are small, and what leaks would be small, too
        alone = [model.loss(model.collate([one], frozen)).item() for one in examples]
        together = model.loss(model.collate(examples, frozen)).item()
    assert together == pytest.approx(sum(alone) / len(alone), rel=1e-4)
    assert answers(model, examples, frozen) == [answers(model, [one], frozen)[0] for one in examples]
