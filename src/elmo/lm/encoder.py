"""The biLM's character encoder for training: the same function over all distinct words of a window at once.

Words of like length go through the convolutions together, with only as much padding as gives one window of nothing
else: more of the same windows change neither a maximum nor its gradient.

Shapes: N words, C characters of a word, E character vector, W windows, F filters, P projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from elmo.chars import PAD
from elmo.engine.available import has_triton
from elmo.model import CharEncoder, Highway, WordEncoder

Groups = tuple[tuple[int, int], ...]
"""Of words by length: how many stand together, and how many of their characters are read."""

_WORDS_OF_ONE_LENGTH = 128  # words a group; more groups save padding, fewer save calls


def encode_words(encoder: CharEncoder | WordEncoder, words: Tensor, groups: Groups | None = None) -> Tensor:
    """Vectors of words, `(N, P)`, of their characters `(N, C)` or, for a model that reads words, of their ids `(N,)`.

    With `groups` the words are sorted already, and the host need not wait for the device to say how long they are.
    """
    if isinstance(encoder, WordEncoder):
        vectors: Tensor = encoder(words)
        return vectors
    if groups is not None:
        return _mix(encoder, _multiply(encoder, words, groups))
    widest = max(conv.kernel_size[0] for conv in _convolutions(encoder))
    lengths, order = (words != PAD).sum(dim=1).sort(stable=True)
    ends = [*range(_WORDS_OF_ONE_LENGTH - 1, len(order) - 1, _WORDS_OF_ONE_LENGTH), len(order) - 1]
    longest: list[int] = lengths[ends].tolist()
    both = zip(torch.split(order, _WORDS_OF_ONE_LENGTH), longest, strict=True)
    x_NF = torch.cat([_convolve(encoder, words[group], n + widest) for group, n in both])
    return F.embedding(torch.argsort(order), _mix(encoder, x_NF))


def _convolutions(encoder: CharEncoder) -> list[nn.Conv1d]:
    return [conv for conv in encoder.convolutions if isinstance(conv, nn.Conv1d)]


def _convolve(encoder: CharEncoder, ids_NC: Tensor, width: int) -> Tensor:
    """Filters over the first `width` characters: `(N, F)`."""
    characters = encoder.characters(ids_NC[:, :width]).mT  # (N, E, C)
    # Not amax: its gradient looks for ties, all of which are windows of the same characters.
    best = [conv(characters).max(dim=-1).values for conv in encoder.convolutions]
    return torch.cat([encoder.activation(one) for one in best], dim=1)


def _multiply(encoder: CharEncoder, ids_NC: Tensor, groups: Groups) -> Tensor:
    """`_convolve` of groups, `(N, F)`, each as one product.

    All filters are made as wide as the widest, with zeros: most of them are, so that costs little.
    """
    device, table, convolutions = ids_NC.device, encoder.characters, _convolutions(encoder)
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else table.weight.dtype
    widths = [conv.kernel_size[0] for conv in convolutions]
    widest, narrowest = max(widths), min(widths)
    both = list(zip(convolutions, widths, strict=True))
    widths_F = torch.cat([torch.full((conv.out_channels,), own, device=device) for conv, own in both])
    kernel_FK = torch.cat([F.pad(conv.weight, (0, widest - own)) for conv, own in both])
    kernel_FK = kernel_FK.to(dtype).mT.flatten(1)  # K = widest * E
    bias_F = torch.cat([conv.bias for conv in convolutions if conv.bias is not None])
    vectors = table.weight.to(dtype)
    best = []
    for ids, (_, width) in zip(torch.split(ids_NC, [number for number, _ in groups]), groups, strict=True):
        x_NCE = F.embedding(ids[:, :width], vectors, table.padding_idx)
        # A word that may fill its row has fewer windows of the wider filters: those beyond its end do not count.
        if width == ids.shape[1]:
            x_NCE = F.pad(x_NCE, (0, 0, 0, widest - narrowest))
        windows_NWK = x_NCE.unfold(1, widest, 1).mT.flatten(2)
        best.append(best_window(F.linear(windows_NWK, kernel_FK), width + 1 - widths_F))
    x_NF: Tensor = encoder.activation(torch.cat(best) + bias_F)
    return x_NF.to(dtype)


def best_window(y_NWF: Tensor, count_F: Tensor) -> Tensor:
    """The largest of each filter's first windows, `(N, F)`; how many count is said in `count_F`."""
    if y_NWF.is_cuda and has_triton(y_NWF.device):
        run: Callable[..., Tensor] = FusedMaximum.apply  # untyped
        return run(y_NWF, count_F)
    beyond_WF = torch.arange(y_NWF.shape[1], device=y_NWF.device)[:, None] >= count_F
    return y_NWF.masked_fill(beyond_WF, -torch.inf).max(dim=1).values


class FusedMaximum(Function):
    """`best_window` by Triton kernels: a pass over the windows each way."""

    @staticmethod
    def forward(ctx: Any, y_NWF: Tensor, count_F: Tensor) -> Tensor:
        """`(N, F)`."""
        from elmo.lm.kernels import maximum

        best_NF, place_NF = maximum(y_NWF.contiguous(), count_F)
        ctx.windows = y_NWF.shape[1]
        ctx.save_for_backward(place_NF)
        return best_NF

    @staticmethod
    def backward(ctx: Any, dbest_NF: Tensor) -> tuple[Tensor, None]:
        """`(N, W, F)`."""
        from elmo.lm.kernels import spread

        (place_NF,) = ctx.saved_tensors
        return spread(dbest_NF.contiguous(), place_NF, ctx.windows), None


def _mix(encoder: CharEncoder, x_NF: Tensor) -> Tensor:
    """What follows the convolutions: `(N, F)` to `(N, P)`."""
    fused = x_NF.is_cuda and has_triton(x_NF.device)
    for highway in encoder.highways:
        assert isinstance(highway, Highway)
        x_NF = gated(highway, x_NF) if fused else highway(x_NF)
    return x_NF if encoder.projection is None else encoder.projection(x_NF)


def gated(highway: Highway, x_NF: Tensor) -> Tensor:
    """A highway by Triton kernels: what is not a product is one pass each way."""
    run: Callable[..., Tensor] = _FusedGate.apply  # untyped
    carry_NF, transform_NF = highway.carry(x_NF), highway.transform(x_NF)
    return run(carry_NF, transform_NF, x_NF.to(carry_NF.dtype))


class _FusedGate(Function):
    @staticmethod
    def forward(ctx: Any, carry_NF: Tensor, transform_NF: Tensor, x_NF: Tensor) -> Tensor:
        from elmo.lm.kernels import gate

        x_NF = x_NF.contiguous()
        ctx.save_for_backward(carry_NF, transform_NF, x_NF)
        return gate(carry_NF, transform_NF, x_NF)

    @staticmethod
    def backward(ctx: Any, dy_NF: Tensor) -> tuple[Tensor, ...]:
        from elmo.lm.kernels import gate_slopes

        carry_NF, transform_NF, x_NF = ctx.saved_tensors
        return gate_slopes(carry_NF, transform_NF, x_NF, dy_NF.contiguous())
