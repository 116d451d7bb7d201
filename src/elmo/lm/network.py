"""The biLM as a language model: two directions over their own streams, one head, one loss (SEMANTICS section 5).

Shapes: B rows, T time steps, N distinct words of the window, C characters of a word, P projection, K LSTM layers,
2 directions (forward, backward). Inside, time comes before rows, so that a step's values lie together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.chars import PAD
from elmo.config import ModelConfig
from elmo.lm.recurrence import run_layer
from elmo.lm.softmax import Head, Rows, Samples, sampled_losses
from elmo.lstm import ProjectedLSTM
from elmo.model import BiLM, CharEncoder, State

_WORDS_OF_ONE_LENGTH = 128  # words a group; more groups save padding, fewer save calls
_AS_PRODUCTS = True  # planned windows: the convolutions as a product, or else as PyTorch's


@dataclass(frozen=True)
class Window:
    """What the network reads: a window of both streams, as tensors on its device."""

    words: Tensor
    """The distinct words: `(N, C)` character ids, or `(N,)` word ids of a model that reads words."""
    inputs: Tensor
    """`(2, B, T)`: which of the words stands where."""
    targets: Tensor
    """`(2, B, T)`: vocabulary ids of the words that come next; `PADDING` where none is counted."""
    groups: tuple[tuple[int, int], ...] | None = None
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

    def encode(self, words: Tensor, groups: tuple[tuple[int, int], ...] | None = None) -> Tensor:
        """Vectors of the distinct words, `(N, P)`: the function of the biLM's encoder.

        Words of like length go through the convolutions together, with only as much padding as gives one window of
        nothing else: more of the same windows change neither a maximum nor its gradient. With `groups` (see `Window`)
        the words are sorted already, and the host need not wait for the device to say how long they are.
        """
        encoder = self.bilm.encoder
        if not isinstance(encoder, CharEncoder):
            vectors: Tensor = encoder(words)
            return vectors
        if groups is not None:
            pieces = torch.split(words, [number for number, _ in groups])
            convolve = _multiply if _AS_PRODUCTS else _convolve
            planned = zip(pieces, groups, strict=True)
            return _mix(encoder, torch.cat([convolve(encoder, piece, width) for piece, (_, width) in planned]))
        assert self.config.char_cnn is not None
        widest = max(width for width, _ in self.config.char_cnn.filters)
        lengths, order = (words != PAD).sum(dim=1).sort(stable=True)
        ends = [*range(_WORDS_OF_ONE_LENGTH - 1, len(order) - 1, _WORDS_OF_ONE_LENGTH), len(order) - 1]
        longest: list[int] = lengths[ends].tolist()
        both = zip(torch.split(order, _WORDS_OF_ONE_LENGTH), longest, strict=True)
        x_NF = torch.cat([_convolve(encoder, words[group], n + widest) for group, n in both])
        return F.embedding(torch.argsort(order), _mix(encoder, x_NF))


def _mix(encoder: CharEncoder, x_NF: Tensor) -> Tensor:
    """What follows the convolutions: `(N, F)` to `(N, P)`."""
    for highway in encoder.highways:
        x_NF = highway(x_NF)
    return x_NF if encoder.projection is None else encoder.projection(x_NF)


def _convolve(encoder: CharEncoder, ids_NC: Tensor, width: int) -> Tensor:
    """Filters over the first `width` characters: `(N, F)`."""
    characters = encoder.characters(ids_NC[:, :width]).mT  # (N, E, C)
    # Not amax: its gradient looks for ties, all of which are windows of the same characters.
    best = [conv(characters).max(dim=-1).values for conv in encoder.convolutions]
    return torch.cat([encoder.activation(one) for one in best], dim=1)


def _multiply(encoder: CharEncoder, ids_NC: Tensor, width: int) -> Tensor:
    """`_convolve` as one product: all filters made as wide as the widest, with zeros, which nearly all are anyway."""
    device, table = ids_NC.device, encoder.characters
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else table.weight.dtype
    convolutions = [conv for conv in encoder.convolutions if isinstance(conv, nn.Conv1d)]
    widths = [conv.kernel_size[0] for conv in convolutions]
    widest = max(widths)
    kernels = [F.pad(conv.weight, (0, widest - conv.kernel_size[0])).mT.flatten(1) for conv in convolutions]
    bias_F = torch.cat([conv.bias for conv in convolutions if conv.bias is not None])
    x_NCE = F.embedding(ids_NC[:, :width], table.weight.to(dtype), table.padding_idx)
    # A word that may fill its row has fewer windows of the wider filters; they run over the row's end and are left out.
    full = width == ids_NC.shape[1]
    if full:
        x_NCE = F.pad(x_NCE, (0, 0, 0, widest - min(widths)))
    windows = x_NCE.unfold(1, widest, 1).mT.flatten(2)  # (N, windows, widest * E)
    y_NWF = F.linear(windows, torch.cat(kernels).to(dtype))
    if full:
        sizes = [(conv.out_channels, width - conv.kernel_size[0]) for conv in convolutions]
        last_F = torch.cat([torch.full((number,), last, device=device) for number, last in sizes])
        beyond_WF = torch.arange(y_NWF.shape[1], device=device)[:, None] > last_F
        y_NWF = y_NWF.masked_fill(beyond_WF, -torch.inf)
    best_NF: Tensor = encoder.activation(y_NWF.max(dim=1).values + bias_F)
    return best_NF
