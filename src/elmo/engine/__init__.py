"""Engines: the same function as the reference network, fast, one file a device; each is tested against it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal, Protocol

import torch
from torch import Tensor

from elmo.config import ModelConfig
from elmo.engine import compiled
from elmo.engine.available import has_lstm_kernels
from elmo.engine.cpu import CpuEngine, supported
from elmo.engine.precision import PRECISIONS
from elmo.engine.precision import Precision as Resolved
from elmo.errors import ElmoError
from elmo.model import BiLM, BiLMOutput, State

EngineName = Literal["auto", "reference"]
Precision = Literal["auto", "fp32", "bf16", "int8"]

_SMALL = 128  # projection; below, PyTorch's products gain little, and oneDNN's kernels take more memory than a model
_LARGE = 256  # projection; below, PyTorch is as fast in float32 as in bfloat16
_LARGE_COMPILED = 128  # the same for the kernels


class Engine(Protocol):
    """What embeds: a token encoder and the LSTMs above it."""

    def encode(self, ids: Tensor) -> Tensor:
        """Word vectors without context: `(N, C)` character ids, `(N,)` word ids, to `(N, P)`."""

    def contextualise(
        self, words_WP: Tensor, places_BT: Tensor, state: State | None = None, *, layers: Sequence[int] | None = None
    ) -> BiLMOutput:
        """The function of `BiLM.contextualise`, of words in their places.

        Args:
            words_WP: vectors of distinct words.
            places_BT: which of them each token is, in host memory; -1 behind the last.
            state: what to start from, of B rows, or of one for all; zeros if not given.
            layers: which layers to compute and return, in this order; all if not given.
        """


class Source(Protocol):
    """Where an engine gets a network from: its weights one by one, or the whole."""

    @property
    def config(self) -> ModelConfig:
        """What it is made of."""

    @property
    def bilm(self) -> BiLM:
        """It, in memory."""

    @property
    def on_cpu(self) -> bool:
        """Whether its weights are float32 on the CPU."""

    def read(self, name: str, rows: slice) -> Tensor:
        """Some rows of a weight, by its name in the network's `state_dict`."""


class ReferenceEngine:
    """The readable network itself, on any device and in its own precision."""

    def __init__(self, bilm: BiLM) -> None:
        """Use a network as it is."""
        self._bilm = bilm

    def encode(self, ids: Tensor) -> Tensor:
        """Word vectors without context: `(N, C)` character ids, `(N,)` word ids, to `(N, P)`."""
        # On a GPU cuDNN's convolutions are in TF32 if it is not told otherwise: 4 digits fewer.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if ids.is_cuda else nullcontext():
            encoded: Tensor = self._bilm.encoder(ids)
        return encoded

    def contextualise(
        self, words_WP: Tensor, places_BT: Tensor, state: State | None = None, *, layers: Sequence[int] | None = None
    ) -> BiLMOutput:
        """Do what `Engine.contextualise` says."""
        places_BT = places_BT.to(words_WP.device, non_blocking=True)
        return self._bilm.contextualise(words_WP[places_BT.clamp_min(0)], places_BT >= 0, state, layers=layers)


def make_engine(source: Source, precision: Precision, engine: EngineName) -> tuple[Engine, Resolved]:
    """An engine for a biLM where it is, and the precision that it has."""
    if engine == "reference":
        return _reference(source, precision, "the reference engine")
    if source.on_cpu:
        resolved = auto_precision(source.config) if precision == "auto" else precision
        small = source.config.lstm.projection_dim < _SMALL
        if resolved == "fp32" and not compiled.compiled("fp32") and (small or not supported("fp32")):
            return ReferenceEngine(source.bilm), resolved
        return CpuEngine(source.config, source.read, resolved), resolved
    weight = next(source.bilm.parameters())
    if weight.dtype != torch.float32 or not on_gpu(source.config, weight.device):
        return _reference(source, precision, f"{weight.dtype} weights on {weight.device}")
    if precision == "int8":
        raise ElmoError("precision 'int8' is not to be had on a GPU: give 'bf16' or 'fp32'")
    from elmo.engine.cuda import CudaEngine

    picked: Literal["fp32", "bf16"] = "fp32" if precision == "fp32" else "bf16"
    return CudaEngine(source.config, source.read, picked, weight.device), picked


def _reference(source: Source, precision: Precision, where: str) -> tuple[Engine, Resolved]:
    if precision not in ("auto", "fp32"):
        raise ElmoError(f"precision {precision!r} is not to be had with {where}: give 'fp32'")
    return ReferenceEngine(source.bilm), "fp32"


def on_gpu(config: ModelConfig, device: torch.device) -> bool:
    """Whether a device is a GPU whose kernels know models of this size."""
    return config.lstm.has_projection and has_lstm_kernels(device, config.lstm.dim, config.lstm.projection_dim)


def precisions(config: ModelConfig, device: torch.device) -> tuple[Resolved, ...]:
    """What there is to be had for a model on a device."""
    if device.type == "cpu":
        return ("fp32", *(precision for precision in PRECISIONS if precision != "fp32" and supported(precision)))
    return ("fp32", "bf16") if on_gpu(config, device) else ("fp32",)


def auto_precision(config: ModelConfig) -> Resolved:
    """What "auto" takes for a model on this machine's CPU."""
    large = _LARGE_COMPILED if compiled.compiled("bf16") else _LARGE
    return "bf16" if config.lstm.projection_dim >= large and supported("bf16") else "fp32"
