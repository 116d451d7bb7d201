"""How a task is trained: frozen dataclasses, read from plain values, checked on creation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from elmo.errors import ElmoError
from elmo.lm.settings import OptimizerSettings, build_settings, refuse_unknown, set_value
from elmo.tasks.encoder import EncoderSettings
from elmo.tasks.task import Task

_SECTIONS = ("encoder", "model", "optimizer", "train")
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "optimizer": {"kind": "adamw", "rate": 0.001, "clip": 5.0, "decay": "linear", "floor": 0.1}
}


@dataclass(frozen=True, kw_only=True)
class TaskLoop:
    """How long, how often, how exact."""

    epochs: int = 20
    """At most; the development set is answered after each."""
    batch_size: int = 32
    """Examples of a step."""
    patience: int = 5
    """Epochs without a better score on the development set, after which training ends; 0 never ends it."""
    share: float = 1.0
    """Of the training examples, drawn by the seed."""
    passes: int = 1
    """Over the training examples, that count as an epoch; an epoch of less than 10 steps has more."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of products on a GPU: tf32 rounds what goes into them to 10 bits behind the point, bf16 to 7."""
    log_every: int = 50
    """Steps between lines of `metrics.jsonl`."""

    def __post_init__(self) -> None:
        """Refuse values that no run can have."""
        for name, least in (("epochs", 1), ("batch_size", 1), ("patience", 0), ("passes", 1), ("log_every", 1)):
            if getattr(self, name) < least:
                raise ElmoError(f"train.{name} is {getattr(self, name)}: give a whole number from {least} on")
        if not 0 < self.share <= 1:
            raise ElmoError(f"train.share is {self.share!r}: give a number above 0, up to 1")


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A task's settings."""

    task: str
    """Its name."""
    seed: int
    """Start values, order and share of the examples, and dropout follow from it."""
    encoder: EncoderSettings
    """What the model knows of a word."""
    model: Any
    """Sizes of the model: the task's own dataclass."""
    optimizer: OptimizerSettings
    """How weights follow their gradients."""
    train: TaskLoop
    """How long, how often, how exact."""

    @classmethod
    def of(cls, task: Task[Any, Any], values: Mapping[str, Any] | None = None, sets: Sequence[str] = ()) -> TaskConfig:
        """The settings of a task.

        Args:
            task: which one.
            values: those that are not its defaults, by section, as `to_dict` or TOML gives them.
            sets: settings such as `train.epochs=3`, which go before `values`.
        """
        raw: dict[str, Any] = {section: {} for section in _SECTIONS}
        for layer in (_DEFAULTS, task.defaults, values or {}):
            for key, value in layer.items():
                raw[key] = {**raw[key], **value} if isinstance(value, Mapping) and key in _SECTIONS else value
        for one in sets:
            set_value(raw, one)
        refuse_unknown(raw, ["task", "seed", *_SECTIONS], "")
        for section in _SECTIONS:
            if not isinstance(raw[section], Mapping):
                raise ElmoError(f"{section} is {raw[section]!r:.50}: it is a section, give {section}.NAME")
        if raw.get("task", task.name) != task.name:
            raise ElmoError(f"task is {raw['task']!r}: these settings are not of {task.name!r}")
        seed = raw.get("seed", 0)
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ElmoError(f"seed is {seed!r}: give a whole number from 0 to below 2^63")
        return cls(
            task=task.name,
            seed=seed,
            encoder=build_settings(EncoderSettings, raw["encoder"], "encoder."),
            model=build_settings(task.model_settings, raw["model"], "model."),
            optimizer=build_settings(OptimizerSettings, raw["optimizer"], "optimizer."),
            train=build_settings(TaskLoop, raw["train"], "train."),
        )

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values; `of` reads them."""
        sections = {name: asdict(getattr(self, name)) for name in _SECTIONS}
        return {"task": self.task, "seed": self.seed} | sections
