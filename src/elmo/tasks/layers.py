"""Parts that several task models are made of.

Shapes: B rows, T tokens, I input, H one direction's output, K tags.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elmo.engine.available import has_row_kernels

IMPOSSIBLE = -1e4
"""A score that no path can make good, and that half precision can hold."""


class RowDropout(nn.Module):
    """Dropout with one mask for all tokens of a row (Gal and Ghahramani 2016).

    Rows that are compared with each other must share their mask: a feature that only one of them kept is a difference
    that is none.
    """

    def __init__(self, share: float, *, sharing: int = 1) -> None:
        """Drop a share of the features.

        Args:
            share: of the features.
            sharing: rows with the same mask; row i of each of so many equal parts of the batch.
        """
        super().__init__()
        self.share = share
        self.sharing = sharing

    def forward(self, x_BTI: Tensor) -> Tensor:
        """Keep the shape `(B, T, I)`."""
        if not self.training or self.share == 0:
            return x_BTI
        assert len(x_BTI) % self.sharing == 0
        mask = F.dropout(x_BTI.new_ones(len(x_BTI) // self.sharing, 1, x_BTI.shape[2]), self.share)
        return x_BTI * mask.repeat(self.sharing, 1, 1)


def start_lstms(lstms: nn.Module) -> None:
    """Give all LSTMs of a module orthogonal recurrent weights and open forget gates."""
    for name, weight in lstms.named_parameters():
        if "weight_hh" in name:
            for gate in weight.data.chunk(4):
                nn.init.orthogonal_(gate)
        elif "bias_hh" in name:
            nn.init.zeros_(weight)
        elif "bias_ih" in name:
            nn.init.zeros_(weight)
            weight.data.chunk(4)[1].fill_(1.0)  # the forget gate's


class BiLSTM(nn.Module):
    """Layers of LSTMs in both directions over rows of different lengths, dropout before each layer."""

    def __init__(self, inputs: int, hidden: int, *, layers: int = 1, dropout: float = 0.0, sharing: int = 1) -> None:
        """Start with orthogonal recurrent weights and open forget gates; `sharing` as `RowDropout` has it."""
        super().__init__()
        self.output_dim = 2 * hidden
        self.dropout = RowDropout(dropout, sharing=sharing)
        self.lstms = nn.ModuleList(
            nn.LSTM(inputs if layer == 0 else 2 * hidden, hidden, batch_first=True, bidirectional=True)
            for layer in range(layers)
        )
        start_lstms(self.lstms)

    def forward(self, x_BTI: Tensor, lengths: Sequence[int]) -> Tensor:
        """`(B, T, I)` to `(B, T, 2H)`, zero behind a row's end."""
        sizes_B = torch.tensor([max(1, length) for length in lengths], dtype=torch.int32)
        if has_row_kernels(x_BTI.device, self.output_dim // 2):
            from elmo.tasks.triton_rows import lstm_rows

            sizes_B = sizes_B.to(x_BTI.device, non_blocking=True)
            for lstm in self.lstms:
                assert isinstance(lstm, nn.LSTM)
                x_BTI = lstm_rows(lstm, self.dropout(x_BTI), sizes_B)
            return x_BTI
        for lstm in self.lstms:
            packed = pack_padded_sequence(self.dropout(x_BTI), sizes_B, batch_first=True, enforce_sorted=False)
            x_BTI, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x_BTI.shape[1])
        return x_BTI


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension, with no share for what the mask leaves out; all zero where it leaves nothing."""
    kept = mask.to(scores.dtype)
    return torch.softmax(scores.masked_fill(~mask, IMPOSSIBLE), dim=-1) * kept


def masked_max(x_BTI: Tensor, mask_BT: Tensor) -> Tensor:
    """The largest of each feature over a row's tokens, `(B, I)`."""
    return x_BTI.masked_fill(~mask_BT[:, :, None], IMPOSSIBLE).amax(dim=1)


def masked_mean(x_BTI: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean of each feature over a row's tokens, `(B, I)`."""
    kept_BT1 = mask_BT[:, :, None].to(x_BTI.dtype)
    return (x_BTI * kept_BT1).sum(dim=1) / kept_BT1.sum(dim=1).clamp(min=1)


class CRF(nn.Module):
    """A linear chain over tags: the score of a sequence is that of its tags and of each pair of neighbours."""

    def __init__(self, n_tags: int) -> None:
        """Start with small transitions."""
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(n_tags, n_tags))  # (K from, K to)
        self.start = nn.Parameter(torch.empty(n_tags))
        self.end = nn.Parameter(torch.empty(n_tags))
        for weight in (self.transitions, self.start, self.end):
            nn.init.normal_(weight, std=0.1)

    def loss(self, scores_BTK: Tensor, tags_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """`-ln p` of each row's tags, `(B,)`."""
        return self._all(scores_BTK, mask_BT) - self._one(scores_BTK, tags_BT, mask_BT)

    def _one(self, scores_BTK: Tensor, tags_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The score of a sequence, `(B,)`."""
        kept = mask_BT.to(scores_BTK.dtype)
        own = (scores_BTK.gather(2, tags_BT[:, :, None]).squeeze(2) * kept).sum(dim=1)
        pairs = (self.transitions[tags_BT[:, :-1], tags_BT[:, 1:]] * kept[:, 1:]).sum(dim=1)
        last = tags_BT.gather(1, (mask_BT.sum(dim=1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
        return own + pairs + self.start[tags_BT[:, 0]] + self.end[last]

    def _all(self, scores_BTK: Tensor, mask_BT: Tensor) -> Tensor:
        """The log of the sum over all sequences, `(B,)`."""
        alpha_BK = self.start + scores_BTK[:, 0]
        for t in range(1, scores_BTK.shape[1]):
            new = torch.logsumexp(alpha_BK[:, :, None] + self.transitions, dim=1) + scores_BTK[:, t]
            alpha_BK = torch.where(mask_BT[:, t, None], new, alpha_BK)
        return torch.logsumexp(alpha_BK + self.end, dim=1)

    def best(self, scores_BTK: Tensor, lengths: Sequence[int], allowed: Tensor | None = None) -> list[list[int]]:
        """The best tags of each row; `allowed` as in `viterbi`."""
        return viterbi(scores_BTK, lengths, self.transitions, self.start, self.end, allowed)


def viterbi(
    scores_BTK: Tensor,
    lengths: Sequence[int],
    transitions: Tensor,
    start: Tensor,
    end: Tensor,
    allowed: Tensor | None = None,
) -> list[list[int]]:
    """The best tags of each row.

    Args:
        scores_BTK: of each tag at each token.
        lengths: tokens of each row.
        transitions: `(K, K)`, from and to.
        start: `(K,)`, of the first tag.
        end: `(K,)`, of the last.
        allowed: `(K + 1, K)` bool: whether a tag may follow another, and in the last row whether it may be the first.
    """
    if allowed is not None:
        forbidden = (~allowed).to(scores_BTK.dtype) * IMPOSSIBLE
        transitions, start = transitions + forbidden[:-1], start + forbidden[-1]
    rows, steps, n_tags = scores_BTK.shape
    alive_TB = torch.arange(steps)[:, None] < torch.tensor(lengths)
    alive_TB = alive_TB.to(scores_BTK.device)
    identity_K = torch.arange(n_tags, device=scores_BTK.device).expand(rows, n_tags)
    best_BK, came_from = start + scores_BTK[:, 0], []
    for t in range(1, steps):
        new, origin = (best_BK[:, :, None] + transitions).max(dim=1)
        best_BK = torch.where(alive_TB[t, :, None], new + scores_BTK[:, t], best_BK)
        came_from.append(torch.where(alive_TB[t, :, None], origin, identity_K))
    tag_B = (best_BK + end).argmax(dim=1)
    path = [tag_B]
    for origin in reversed(came_from):
        tag_B = origin.gather(1, tag_B[:, None]).squeeze(1)
        path.append(tag_B)
    table = torch.stack(path[::-1], dim=1).tolist()
    return [row[:length] for row, length in zip(table, lengths, strict=True)]
