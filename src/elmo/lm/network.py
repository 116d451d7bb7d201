"""The biLM as a language model: two directions over their own streams, one head, one loss (SEMANTICS section 5).

Shapes: B rows, T time steps, N distinct words of the window, C characters of a word, P projection, K LSTM layers,
2 directions (forward, backward). Inside, time comes before rows, so that a step's values lie together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.config import ModelConfig
from elmo.lm.encoder import Groups, encode_words
from elmo.lm.layer import run_layer
from elmo.lm.softmax import Head, Rows, Samples, sampled_losses
from elmo.lstm import ProjectedLSTM
from elmo.model import BiLM, State


@dataclass(frozen=True)
class Window:
    """What the network reads: a window of both streams, as tensors on its device."""

    words: Tensor
    """The distinct words: `(N, C)` character ids, or `(N,)` word ids of a model that reads words."""
    inputs: Tensor
    """`(2, B, T)`: which of the words stands where."""
    targets: Tensor
    """`(2, B, T)`: vocabulary ids of the words that come next; `PADDING` where none is counted."""
    groups: Groups | None = None
    """Where the words are sorted by length: how many stand together, and how many of their characters are read."""

    def rows(self, first: int, last: int) -> Window:
        """The same words over some of the rows."""
        return Window(self.words, self.inputs[:, first:last], self.targets[:, first:last], self.groups)


@dataclass(frozen=True)
class Dropout:
    """Dropout whose choices are drawn from a generator of its own, so that a step can be done again."""

    rate: float
    """Share of values that become 0; the others grow by `1 / (1 - rate)`."""
    generator: torch.Generator
    """On the device of the values."""

    def __call__(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        if self.rate == 0:
            return x
        kept = torch.rand(x.shape, generator=self.generator, device=x.device) >= self.rate
        return x * kept.to(x.dtype).mul_(1 / (1 - self.rate))


@dataclass(frozen=True)
class Sampling:
    """What the sampled softmax needs for one step."""

    rows: Rows
    """The head's rows of every sample and target."""
    samples: tuple[Samples, Samples]
    """One set a direction, for all positions."""


class LanguageModel(nn.Module):
    """A biLM and its softmax."""

    def __init__(self, bilm: BiLM, head: Head) -> None:
        """Put the two together."""
        super().__init__()
        self.bilm = bilm
        self.head = head

    @property
    def config(self) -> ModelConfig:
        """What the biLM is made of."""
        return self.bilm.config

    def forward(
        self,
        window: Window,
        state: State,
        *,
        dropout: Dropout | None = None,
        sampling: Sampling | None = None,
        bf16: bool = False,
    ) -> tuple[Tensor, State]:
        """Cross-entropies of both directions' positions, `(2, B * T)` in the order of time, and the state behind them.

        Args:
            window: what is read; rows go on from `state`.
            state: of as many rows.
            dropout: on the input of every LSTM layer and on the top output, in training.
            sampling: use the sampled softmax; the full one if not given.
            bf16: compute the products in bfloat16.
        """
        h_2TBP, state = self.contextualise(window, state, dropout=dropout, bf16=bf16)
        targets_2N = window.targets.mT.flatten(1)
        with torch.autocast(h_2TBP.device.type, torch.bfloat16, enabled=bf16):
            losses = [
                self.head(h, targets)
                if sampling is None
                else sampled_losses(sampling.rows, self.head.n_words, h, targets, sampling.samples[direction])
                for direction, (h, targets) in enumerate(zip(h_2TBP.flatten(1, 2), targets_2N, strict=True))
            ]
        return torch.stack(losses), state

    def contextualise(
        self, window: Window, state: State, *, dropout: Dropout | None = None, bf16: bool = False
    ) -> tuple[Tensor, State]:
        """The top layer of each direction in its own reading order, `(2, T, B, P)`, and the state behind it."""
        with torch.autocast(window.words.device.type, torch.bfloat16, enabled=bf16):
            vectors_NP = self.encode(window.words, window.groups)
        vectors_NP = vectors_NP.float() if bf16 else vectors_NP
        x_2TBP = F.embedding(window.inputs.mT, vectors_NP)
        drop = dropout or (lambda x: x)
        dtype = torch.bfloat16 if bf16 else vectors_NP.dtype
        ms, cs = [], []
        for k, (forward, backward) in enumerate(zip(self.bilm.forwards, self.bilm.backwards, strict=True)):
            assert isinstance(forward, ProjectedLSTM)
            assert isinstance(backward, ProjectedLSTM)
            x_2TBP = drop(x_2TBP)
            y_2TBP, m, c = run_layer(forward, backward, x_2TBP, state.m[k], state.c[k], dtype)
            # The residual adds the input as the layer saw it, dropped.
            x_2TBP = x_2TBP + y_2TBP if k > 0 and self.config.lstm.use_skip_connections else y_2TBP
            ms.append(m)
            cs.append(c)
        return drop(x_2TBP), State(torch.stack(ms), torch.stack(cs))

    def encode(self, words: Tensor, groups: Groups | None = None) -> Tensor:
        """Vectors of the distinct words, `(N, P)`: the function of the biLM's encoder."""
        return encode_words(self.bilm.encoder, words, groups)
