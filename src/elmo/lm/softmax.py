"""The language model's softmax over the vocabulary: full, sampled as TensorFlow's, adaptive.

One head serves both directions. Training with samples touches few of its rows, so a step takes those rows out
(`take_rows`), finds their gradient, dense and small, and the optimizer puts them back: the same cost for a vocabulary
of 800,000 words as for one of 10,000.

Shapes: N positions, P projection, V words of the vocabulary, S samples, R rows taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from elmo.engine.available import has_triton
from elmo.errors import ElmoError

PADDING = -1
"""The target of a position that is not counted: its loss is 0."""

_LOGITS_AT_ONCE = 2**24  # 64 MB in float32, whatever the vocabulary
_BYTES_KEPT = 2**32  # of logits, on a GPU, where computing them twice is what costs


class SoftmaxHead(nn.Module):
    """A row and a bias for each word of the vocabulary, shared by the two directions."""

    def __init__(self, n_words: int, dim: int) -> None:
        """Start as bilm-tf does: rows N(0, 1/sqrt(P)), biases 0."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_words, dim).normal_(std=dim**-0.5))
        self.bias = nn.Parameter(torch.zeros(n_words))

    @property
    def n_words(self) -> int:
        """V."""
        return len(self.bias)

    def forward(self, h_NP: Tensor, targets_N: Tensor) -> Tensor:
        """`-ln p(target)` of each position, `(N,)`, over the whole vocabulary; logits within a bound at a time."""
        size = len(h_NP) * self.n_words * _products_dtype(h_NP).itemsize
        if h_NP.is_cuda and size <= _BYTES_KEPT and has_triton(h_NP.device):
            return self.fused(h_NP, targets_N)
        at_once = max(1, _LOGITS_AT_ONCE // self.n_words)
        if len(h_NP) <= at_once:
            return self._chunk(h_NP, targets_N)
        chunks = zip(torch.split(h_NP, at_once), torch.split(targets_N, at_once), strict=True)
        if not torch.is_grad_enabled():
            return torch.cat([self._chunk(*chunk) for chunk in chunks])
        # Kept logits would undo the bound: they are computed again on the way back.
        again = [checkpoint(self._chunk, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        return torch.cat(again)

    def fused(self, h_NP: Tensor, targets_N: Tensor) -> Tensor:
        """The same by Triton kernels: every word is a sample, but for a position's target."""
        targets = targets_N.clamp(min=0)
        true_N = (h_NP * F.embedding(targets, self.weight)).sum(dim=-1) + self.bias[targets]
        losses_N = fused_losses(h_NP, self.weight, self.bias, true_N, targets_N.int(), _products_dtype(h_NP))
        return losses_N * (targets_N != PADDING)

    def _chunk(self, h_NP: Tensor, targets_N: Tensor) -> Tensor:
        return F.cross_entropy(_wide(self.logits(h_NP)), targets_N, ignore_index=PADDING, reduction="none")

    def logits(self, h_NP: Tensor) -> Tensor:
        """Scores of all words before the softmax, `(N, V)`."""
        return F.linear(h_NP, self.weight, self.bias)

    def log_probs(self, h_NP: Tensor) -> Tensor:
        """`ln p` of every word, `(N, V)`."""
        return torch.log_softmax(_wide(self.logits(h_NP)), dim=-1)


class AdaptiveHead(nn.Module):
    """Frequent words in a short list, rare ones in clusters behind it, each narrower than the one before.

    An alternative for large vocabularies that needs no samples (Grave et al., 2017). Its probabilities are exact.
    """

    def __init__(self, n_words: int, dim: int, cutoffs: Sequence[int], *, div_value: float = 4.0) -> None:
        """`cutoffs` are the words after which a cluster ends, ascending; the last cluster ends with the vocabulary."""
        super().__init__()
        if not cutoffs or list(cutoffs) != sorted(set(cutoffs)) or not 0 < cutoffs[0] <= cutoffs[-1] < n_words:
            raise ElmoError(
                f"softmax.cutoffs is {list(cutoffs)}: give ascending numbers of words between 1 and {n_words - 1} "
                "(the vocabulary has that many and one)"
            )
        if dim < div_value ** len(cutoffs):
            raise ElmoError(
                f"softmax.cutoffs has {len(cutoffs)} numbers: the last cluster of a projection of {dim} would be "
                f"{dim} / {div_value:g}^{len(cutoffs)} wide; give fewer"
            )
        self.cutoffs = tuple(cutoffs)
        self.n_words = n_words
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(dim, n_words, list(cutoffs), div_value=div_value, head_bias=True)

    def forward(self, h_NP: Tensor, targets_N: Tensor) -> Tensor:
        """`-ln p(target)` of each position, `(N,)`."""
        counted = targets_N != PADDING
        losses: Tensor = -self.softmax(h_NP, targets_N.clamp(min=0)).output
        return _wide(losses) * counted

    def log_probs(self, h_NP: Tensor) -> Tensor:
        """`ln p` of every word, `(N, V)`."""
        logs: Tensor = self.softmax.log_prob(h_NP)
        return _wide(logs)


Head = SoftmaxHead | AdaptiveHead


@dataclass(frozen=True)
class Samples:
    """Distinct words drawn from the log-uniform distribution, and how many draws it took to find them."""

    ids: Tensor
    """`(S,)`, ascending, int64."""
    tries: int
    """Draws, repeated ones counted."""

    def to(self, device: torch.device) -> Samples:
        """The samples on another device."""
        return Samples(self.ids.to(device), self.tries)


def log_uniform_samples(n_samples: int, n_words: int, rng: np.random.Generator) -> Samples:
    """Draw until there are `n_samples` distinct words: `P(k) = ln((k + 2) / (k + 1)) / ln(V + 1)`.

    The vocabulary must be sorted by falling frequency. This is TensorFlow's `log_uniform_candidate_sampler` with
    `unique=True`, many draws at a time.
    """
    if not 0 < n_samples < n_words:
        raise ElmoError(
            f"softmax.samples is {n_samples:,}, the vocabulary has {n_words:,} words: give fewer samples than words, "
            'or softmax.kind = "full"'
        )
    draws = np.empty(0, dtype=np.int64)
    first = np.empty(n_words, dtype=np.int64)  # when a word was drawn first; of words that were not drawn, nothing
    while True:
        more = rng.random(max(2 * n_samples, len(draws)))
        draws = np.concatenate([draws, np.exp(more * np.log(n_words + 1)).astype(np.int64) - 1])
        times = np.arange(len(draws))
        first[draws] = len(draws)
        np.minimum.at(first, draws, times)
        new = first[draws] == times
        found = np.cumsum(new)
        if found[-1] >= n_samples:
            break
    tries = int(np.searchsorted(found, n_samples)) + 1
    return Samples(torch.from_numpy(np.sort(draws[:tries][new[:tries]])), tries)


def log_expected_count(ids: Tensor, n_words: int, tries: int | Tensor) -> Tensor:
    """Log of how often each word is expected among the samples: `ln(-expm1(t log1p(-P)))`, float64."""
    k = ids.double()
    probability = torch.log1p(1 / (k + 1)) / np.log(n_words + 1)
    return torch.log(-torch.expm1(tries * torch.log1p(-probability)))


@dataclass(frozen=True)
class Rows:
    """Rows of a head, taken out for one step: leaves of the graph whose gradient is theirs alone."""

    ids: Tensor
    """`(R,)`, ascending: which words."""
    weight: Tensor
    """`(R, P)`, a leaf."""
    bias: Tensor
    """`(R,)`, a leaf."""

    def place(self, words: Tensor) -> Tensor:
        """Where words that are among the rows stand in them, in the shape of `words`."""
        return torch.searchsorted(self.ids, words)


def take_rows(head: SoftmaxHead, words: Sequence[Tensor]) -> Rows:
    """Take the rows of all these words out of a head, each once."""
    ids = torch.unique(torch.cat([some.flatten() for some in words]))
    with torch.no_grad():
        weight, bias = head.weight[ids], head.bias[ids]
    return Rows(ids, weight.requires_grad_(), bias.requires_grad_())


def sampled_losses(rows: Rows, n_words: int, h_NP: Tensor, targets_N: Tensor, samples: Samples) -> Tensor:
    """The sampled softmax loss of each position, `(N,)`, as TensorFlow's `sampled_softmax_loss`.

    The log of the expected count is subtracted from true and sampled logits, and a sample that is the target is
    taken out. Not comparable with the full softmax: it is a training signal, no perplexity.
    """
    true_place, sampled_place = rows.place(targets_N), rows.place(samples.ids)
    true_N = (h_NP * F.embedding(true_place, rows.weight)).sum(dim=-1) + rows.bias[true_place]
    true_N = true_N - log_expected_count(targets_N, n_words, samples.tries).to(h_NP)
    correction_S = log_expected_count(samples.ids, n_words, samples.tries).to(h_NP)
    at = torch.searchsorted(samples.ids, targets_N).clamp(max=len(samples.ids) - 1)
    if h_NP.is_cuda and has_triton(h_NP.device):
        hits_N = torch.where(samples.ids[at] == targets_N, at, -1).int()
        bias_S = rows.bias[sampled_place] - correction_S
        return fused_losses(
            h_NP, F.embedding(sampled_place, rows.weight), bias_S, true_N, hits_N, _products_dtype(h_NP)
        )
    sampled_NS = F.linear(h_NP, F.embedding(sampled_place, rows.weight), rows.bias[sampled_place] - correction_S)
    (hit,) = torch.nonzero(samples.ids[at] == targets_N, as_tuple=True)
    sampled_NS = sampled_NS.index_put((hit, at[hit]), sampled_NS.new_tensor(torch.finfo(sampled_NS.dtype).min))
    # ln(e^true + sum e^sampled) - true, without putting the two side by side.
    return F.softplus(torch.logsumexp(sampled_NS.to(true_N.dtype), dim=-1) - true_N)


def fused_losses(
    h_NP: Tensor, weight_SP: Tensor, bias_S: Tensor, true_N: Tensor, hits_N: Tensor, dtype: torch.dtype
) -> Tensor:
    """The sampled softmax loss of each position, `(N,)`, by Triton kernels: `sampled_losses` once its rows are found.

    Args:
        h_NP: what predicts.
        weight_SP: the samples' rows.
        bias_S: their biases, less the log of their expected counts.
        true_N: the targets' logits, less the log of their expected counts.
        hits_N: which of the samples a position's target is, -1 if none; int32.
        dtype: of the products; all else is float32.
    """
    run: Callable[..., Tensor] = _Fused.apply  # untyped
    return run(h_NP, weight_SP, bias_S, true_N, hits_N, dtype)


class _Fused(Function):
    """Keeps the logits, the largest tensor of a step, in the products' precision and turns them into their gradient."""

    @staticmethod
    def forward(
        ctx: Any, h_NP: Tensor, weight_SP: Tensor, bias_S: Tensor, true_N: Tensor, hits_N: Tensor, dtype: torch.dtype
    ) -> Tensor:
        from elmo.lm.kernels import softmax_rows

        h, weight = h_NP.to(dtype), weight_SP.to(dtype)
        logits_NS = h @ weight.T
        losses_N, lse_N = softmax_rows(logits_NS, bias_S, true_N, hits_N)
        ctx.save_for_backward(h, weight, bias_S, true_N, hits_N, logits_NS, lse_N)
        return losses_N

    @staticmethod
    def backward(ctx: Any, dlosses_N: Tensor) -> tuple[Tensor | None, ...]:
        from elmo.lm.kernels import softmax_slopes_

        h, weight, bias_S, true_N, hits_N, logits_NS, lse_N = ctx.saved_tensors
        slopes_N = dlosses_N * torch.sigmoid(lse_N - true_N)
        softmax_slopes_(logits_NS, bias_S, hits_N, lse_N, slopes_N)
        dh, dweight = logits_NS @ weight, logits_NS.T @ h
        return dh.float(), dweight.float(), logits_NS.sum(dim=0, dtype=torch.float32), -slopes_N, None, None


def _products_dtype(x: Tensor) -> torch.dtype:
    """What products of a tensor are computed in here."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x
