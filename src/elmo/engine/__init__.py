"""Engines: the same function as the reference network, fast, one file a device; each is tested against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from elmo.config import ModelConfig
from elmo.engine.cpu import CpuEngine, supported
from elmo.engine.cpu import Precision as Resolved
from elmo.errors import ElmoError
from elmo.model import BiLM, BiLMOutput, State

EngineName = Literal["auto", "reference"]
Precision = Literal["auto", "fp32", "bf16", "int8"]

_SMALL = 128  # projection; below, a model gains little, and oneDNN's kernels would take more memory than it does
_LARGE = 256  # projection; below, a CPU is as fast in float32 as in bfloat16


class Engine(Protocol):
    """What embeds: a token encoder and the LSTMs above it."""

    def encode(self, ids: Tensor) -> Tensor:
        """Word vectors without context: `(N, C)` character ids, `(N,)` word ids, to `(N, P)`."""

    def contextualise(
        self, x_BTP: Tensor, mask_BT: Tensor, state: State | None = None, *, layers: Sequence[int] | None = None
    ) -> BiLMOutput:
        """The function of `BiLM.contextualise`."""


class ReferenceEngine:
    """The readable network itself, on any device and in its own precision."""

    def __init__(self, bilm: BiLM) -> None:
        """Use a network as it is."""
        self._bilm = bilm
        self.contextualise = bilm.contextualise

    def encode(self, ids: Tensor) -> Tensor:
        """Word vectors without context: `(N, C)` character ids, `(N,)` word ids, to `(N, P)`."""
        encoded: Tensor = self._bilm.encoder(ids)
        return encoded


def make_engine(bilm: BiLM, precision: Precision, engine: EngineName) -> tuple[Engine, Resolved]:
    """An engine for a biLM where it is, and the precision that it has."""
    weight = next(bilm.parameters())
    if engine == "reference" or weight.device.type != "cpu" or weight.dtype != torch.float32:
        if precision not in ("auto", "fp32"):
            where = "the reference engine" if engine == "reference" else f"{weight.dtype} weights on {weight.device}"
            raise ElmoError(f"precision {precision!r} is not to be had with {where}: give 'fp32'")
        return ReferenceEngine(bilm), "fp32"
    resolved = auto_precision(bilm.config) if precision == "auto" else precision
    if resolved == "fp32" and (bilm.config.lstm.projection_dim < _SMALL or not supported("fp32")):
        return ReferenceEngine(bilm), resolved
    return CpuEngine(bilm, resolved), resolved


def auto_precision(config: ModelConfig) -> Resolved:
    """What "auto" takes for a model on this machine's CPU."""
    return "bf16" if config.lstm.projection_dim >= _LARGE and supported("bf16") else "fp32"
