"""Spans of documents: which there are, which are kept, which are of the same thing.

Shapes: S spans, W widest span, M kept spans, K antecedents of a span, C candidates, N tokens of all documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from elmo.tasks.coref_reader import Clusters, Document, Mention

_ROUNDS = 16


def keep_spans(scores_S: Tensor, firsts_S: Tensor, lasts_S: Tensor, n_kept: int) -> Tensor:
    """The best spans such that none crosses a better one, in the order of the text: `(n_kept,)`.

    Only twice as many as are kept are looked at; where too few of these are left, crossing ones fill up. A device works
    this out without being asked: at first all stay; in each round those stay that cross no better one of those that
    stayed in the round before. A round settles the fate of one more of a chain of crossing spans, and chains are short.

    Args:
        scores_S: of each span.
        firsts_S: first tokens.
        lasts_S: last tokens, themselves in the spans.
        n_kept: how many to keep, at most all.
    """
    found_C = scores_S.topk(min(2 * n_kept, len(scores_S))).indices  # the best first
    first, last = firsts_S[found_C], lasts_S[found_C]
    crosses_CC = (first[:, None] < first) & (first <= last[:, None]) & (last[:, None] < last)
    worse_CC = (crosses_CC | crosses_CC.T).tril(-1).float()
    stays_C = scores_S.new_ones(len(found_C))
    for _ in range(_ROUNDS):
        stays_C = (worse_CC @ stays_C == 0).to(stays_C.dtype)
    order_C = stays_C.sort(descending=True, stable=True).indices
    kept_M: Tensor = found_C[order_C[:n_kept]].sort().values
    return kept_M


def clusters_of(links: Sequence[tuple[Mention, int]]) -> Clusters:
    """Clusters of spans in the order of the text, each with how many spans back its antecedent is, 0 for none."""
    clusters: list[list[Mention]] = []
    number_of: list[int] = []
    for place, (mention, offset) in enumerate(links):
        number_of.append(number_of[place - offset] if offset else len(clusters))
        if not offset:
            clusters.append([])
        clusters[number_of[-1]].append(mention)
    return tuple(tuple(cluster) for cluster in clusters if len(cluster) > 1)


def n_spans(length: int, width: int) -> int:
    """How many spans a sentence has."""
    return sum(max(0, length - less) for less in range(width))


def all_spans(lengths: Sequence[int], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last tokens of all spans of sentences, `(S,)` each."""
    ends = np.repeat(np.cumsum(lengths), lengths)
    firsts = np.repeat(np.arange(len(ends))[:, None], width, axis=1)
    lasts = firsts + np.arange(width)
    inside = lasts < ends[:, None]
    return firsts[inside], lasts[inside]


def speaker_numbers(document: Document) -> Iterator[int]:
    """Of each token."""
    numbers: dict[str, int] = {"": 0}
    for tokens, speaker in zip(document.sentences, document.speakers, strict=True):
        yield from [numbers.setdefault(speaker, len(numbers))] * len(tokens)


def gold_numbers(documents: Sequence[Document], width: int) -> NDArray[np.int64]:
    """The number of the gold cluster of each span, by first token and width, `(N, W)`, 0 for none."""
    starts = list(accumulate((len(one.tokens) for one in documents), initial=0))
    numbers = np.zeros((starts[-1], width), np.int64)
    for one, begun in zip(documents, starts, strict=False):
        for number, cluster in enumerate(one.clusters, start=1):
            for first, end in cluster:
                if end - first <= width:
                    numbers[begun + first, end - first - 1] = number
    return numbers


def gold_antecedents(clusters_M: Tensor, n_antecedents: int) -> Tensor:
    """Which antecedents are of the same cluster, or first, that none is: `(M, 1 + K)`."""
    before_MK = F.pad(clusters_M, (n_antecedents, 0)).unfold(0, n_antecedents, 1)[:-1].flip(1)
    found_MK = (before_MK == clusters_M[:, None]) & (clusters_M[:, None] > 0)
    return torch.cat([~found_MK.any(dim=1, keepdim=True), found_MK], dim=1)
