"""What a model file holds, whatever its format."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from elmo.config import ModelConfig
from elmo.errors import ElmoError
from elmo.lm.softmax import Head
from elmo.model import BiLM, ScalarMix, State
from elmo.vocab import Vocabulary

VOCAB_FILE = "vocab.txt"


Read = Callable[[str, slice], Tensor]
"""Some rows of a weight, by the name it has in `BiLM.state_dict`."""


class Network:
    """A biLM: in a file until it is needed in memory, as an engine packs its weights one by one for itself.

    Once in memory it stays there, and may be trained; its weights in the file no longer count.
    """

    def __init__(self, config: ModelConfig, *, bilm: BiLM | None = None, stored: Read | None = None) -> None:
        """Hold a biLM, or what reads its weights, checked before, from a file."""
        if (bilm is None) == (stored is None):
            raise TypeError("give a biLM or what reads its weights")
        self.config = config
        self._bilm = bilm
        self._stored = stored
        self._lock = threading.Lock()

    @property
    def loaded(self) -> bool:
        """Whether it is in memory."""
        return self._bilm is not None

    @property
    def bilm(self) -> BiLM:
        """It, in memory; frozen and in evaluation mode where it comes from a file."""
        with self._lock:
            if self._bilm is None:
                assert self._stored is not None
                bilm = empty_bilm(self.config)
                weights = {name: self._stored(name, slice(None)).contiguous() for name in bilm.state_dict()}
                self._bilm = fill_bilm(bilm, weights)
                self._stored = None
            return self._bilm

    @property
    def on_cpu(self) -> bool:
        """Whether its weights are float32 on the CPU."""
        if self._bilm is None:
            return True
        weight = next(self._bilm.parameters())
        return weight.device.type == "cpu" and weight.dtype == torch.float32

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """Some rows of a weight, by its name in `BiLM.state_dict`."""
        stored = self._stored
        if stored is not None:
            return stored(name, rows)
        weight: Tensor = self.bilm.get_parameter(name).detach()
        return weight[rows]

    def __reduce__(self) -> Any:
        """What is copied and pickled: the network in memory, as the file may not be there."""
        return _network_of, (self.bilm,)


def _network_of(bilm: BiLM) -> Network:
    return Network(bilm.config, bilm=bilm)


@dataclass(frozen=True)
class Stored:
    """How a model is in the files that it was read from."""

    dtype: str
    """Type of its large weights."""
    size: int
    """Bytes, of all its files."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """A biLM and what may come with it."""

    network: Network
    """The biLM, in memory or in a file."""
    vocab: Vocabulary | None = None
    """Its words: needed by a model that reads words instead of characters, and by a head."""
    head: Head | None = None
    """The language model's softmax over the vocabulary."""
    warm: State | None = None
    """A start state of one row, made once from neutral text."""
    mix: ScalarMix | None = None
    """Layer weights that a task has learned."""
    card: str | None = None
    """The model card, Markdown."""
    source: str = "memory"
    """The format it was read from."""
    stored: Stored | None = None
    """How it is there."""

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        config = self.config
        if config.n_words is not None and self.vocab is not None:
            if len(self.vocab) != config.n_words:
                raise ElmoError(f"the vocabulary has {len(self.vocab)} words, the model's word table {config.n_words}")
            if self.vocab.words[:2] != ("<S>", "</S>"):
                raise ElmoError("the vocabulary of a model that reads words must begin with <S> and </S>")
        if self.head is not None and (self.vocab is None or len(self.vocab) != self.head.n_words):
            found = "none is given" if self.vocab is None else f"the vocabulary has {len(self.vocab)}"
            raise ElmoError(f"the head predicts {self.head.n_words} words, {found}")
        if self.mix is not None and len(self.mix.weights) != config.n_layers:
            raise ElmoError(f"the mix has {len(self.mix.weights)} weights, the model {config.n_layers} layers")
        if self.mix is not None and self.mix.layer_norm:
            raise ElmoError(
                "a mix with layer norm cannot be stored with a model: it normalises over a batch, so a sentence's "
                "vectors would depend on the others; use it in Elmo"
            )
        if self.warm is not None:
            shape = (config.lstm.n_layers, 2, 1)
            check_shape("warm.m", self.warm.m.shape, (*shape, config.lstm.projection_dim), "the model")
            check_shape("warm.c", self.warm.c.shape, (*shape, config.lstm.dim), "the model")

    @classmethod
    def of(cls, bilm: BiLM, **parts: Any) -> Self:
        """A biLM in memory, and the other fields."""
        return cls(network=_network_of(bilm), **parts)

    @property
    def bilm(self) -> BiLM:
        """The network, in memory from now on; frozen and in evaluation mode where it was loaded from a file."""
        return self.network.bilm

    @property
    def config(self) -> ModelConfig:
        """What the network is made of."""
        return self.network.config

    @property
    def words(self) -> Vocabulary:
        """The vocabulary of a model that reads words."""
        if self.vocab is None:
            raise ElmoError("this model reads words, not characters: give its vocabulary (vocab=..., or vocab.txt)")
        return self.vocab


def vocab_in(folder: Path, config: ModelConfig, *, exact: bool = False) -> Vocabulary | None:
    """The vocabulary in a model's folder, if it has one; a model that reads characters does without a damaged one."""
    path = folder / VOCAB_FILE
    if not path.is_file():
        return None
    try:
        return Vocabulary.read(path, exact=exact)
    except ElmoError:
        if config.n_words is not None:
            raise
        return None


class _NoStartValues(TorchFunctionMode):
    """Draws nothing: on the meta device that would import PyTorch's compiler first, a second's work."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.__name__.endswith(("normal_", "uniform_")):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_storage() -> Iterator[None]:
    """Modules made herein are places for weights to be assigned to, at no cost in time or memory."""
    with torch.device("meta"), _NoStartValues():
        yield


def empty_bilm(config: ModelConfig) -> BiLM:
    """A biLM without storage."""
    with without_storage():
        return BiLM(config)


def fill_bilm(bilm: BiLM, weights: Mapping[str, Tensor]) -> BiLM:
    """Assign checked weights to an empty biLM and make it ready for use: frozen, in evaluation mode."""
    bilm.load_state_dict(weights, assign=True)
    return bilm.eval().requires_grad_(False)


def check_names(found: set[str], expected: set[str], path: object) -> None:
    """Refuse weights that are missing or left over, by name."""
    for problem, names in (("lacks", expected - found), ("has unexpected", found - expected)):
        if names:
            listed = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise ElmoError(f"{path} {problem} {listed}: the weights do not fit the options")


def check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...], path: object) -> None:
    """Refuse a weight of another shape than the options say."""
    if tuple(found) != tuple(expected):
        raise ElmoError(f"{path}: {name} has shape {tuple(found)}, the options say {tuple(expected)}")


def check_finite(name: str, tensor: Tensor, path: object) -> None:
    """Refuse a weight with NaN or infinity in it."""
    if tensor.numel() and not all(map(math.isfinite, torch.aminmax(tensor))):  # NaN is passed on; no mask in memory
        raise ElmoError(f"{path}: {name} holds NaN or infinity: the file is damaged, or its training diverged")
