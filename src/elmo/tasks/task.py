"""What each of the tasks says of itself, so that one loop trains it, one command runs it, one file stores it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from elmo.tasks.batch import Batch
from elmo.tasks.encoder import TokenEncoder, Tokens
from elmo.tasks.vectors import FrozenLayers

Example = TypeVar("Example")
Answer = TypeVar("Answer")


class TaskModel(nn.Module, ABC, Generic[Example, Answer]):
    """A network on a token encoder, which it has as `encoder`."""

    encoder: TokenEncoder

    @abstractmethod
    def collate(self, examples: Sequence[Example], frozen: FrozenLayers | None) -> Batch:
        """Examples as numbers, on the host; it may be called from another thread, and changes nothing."""

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """What training makes small: the mean over the examples, `()`."""

    @abstractmethod
    def answers(self, batch: Any, examples: Sequence[Example]) -> list[Answer]:
        """The model's answer to each example, none of which need have a gold one."""


class Task(ABC, Generic[Example, Answer]):
    """Data, model and score of a task."""

    name: ClassVar[str]
    """As `elmo task NAME` has it."""
    score: ClassVar[str]
    """Which of the scores decides when training ends, and is the task's figure."""
    model_settings: ClassVar[type[Any]]
    """A frozen dataclass: sizes of the model, the section `[model]` of the task's settings."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings that are another than those of every task, such as `{"train": {"batch_size": 64}}`."""
    raw_lines: ClassVar[bool] = True
    """Whether a line for `parse` is nothing but text, so that `elmo predict --tokenize` may split it into sentences and
    words before; False where it has marks in it, brackets or tabs, which that would tear, or the task splits it."""

    @abstractmethod
    def read(self, path: str) -> list[Example]:
        """Examples of a file, with their answers."""

    def for_training(self, examples: Sequence[Example], settings: Any) -> list[Example]:
        """What is trained on, where it is more or less than the training examples; settings are the model's."""
        return list(examples)

    @abstractmethod
    def sentences(self, example: Example) -> Sequence[Tokens]:
        """All that the encoder is going to read of an example."""

    def labels(self, train: Sequence[Example]) -> tuple[str, ...]:
        """The names among which the model chooses, where it chooses among names."""
        return ()

    @abstractmethod
    def model(self, encoder: TokenEncoder, labels: Sequence[str], settings: Any) -> TaskModel[Example, Answer]:
        """A model with start values."""

    @abstractmethod
    def scores(self, examples: Sequence[Example], answers: Sequence[Answer]) -> dict[str, float]:
        """How good answers are, each a share from 0 to 1."""

    @abstractmethod
    def parse(self, lines: Sequence[str]) -> list[Example]:
        """Examples without answers, of lines of text as `elmo predict` reads them."""

    @abstractmethod
    def record(self, example: Example, answer: Answer) -> dict[str, Any]:
        """An answer for programs: what `elmo predict --json` prints."""

    @abstractmethod
    def show(self, example: Example, answer: Answer) -> str:
        """An answer for people."""
