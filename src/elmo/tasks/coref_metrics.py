"""Coreference as CoNLL 2012 scores it: MUC, B-cubed and CEAF-e, as Pradhan et al. 2014 define them, and their mean.

Each metric counts what is right in a document; numerators and denominators are summed over documents before they are
divided. A mention is right if its tokens are exactly those of a gold one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmo.tasks.coref_reader import Clusters, Mention


@dataclass(frozen=True)
class _Counts:
    """Of one direction of a metric: what is right, of how much."""

    right: float = 0.0
    total: float = 0.0

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(self.right + other.right, self.total + other.total)


_Metric = Callable[[Clusters, Clusters], _Counts]
"""How much of the first clusters the second have: recall, or precision the other way round."""


def coref_scores(pairs: Iterable[tuple[Clusters, Clusters]]) -> dict[str, float]:
    """F1 by `muc`, `b3` and `ceafe`, and as `f1` their mean.

    Args:
        pairs: gold and found clusters of each document.
    """
    documents = list(pairs)
    scores = {name: _f1(metric, documents) for name, metric in _METRICS.items()}
    return {"f1": sum(scores.values()) / len(scores)} | scores


def _f1(metric: _Metric, documents: Iterable[tuple[Clusters, Clusters]]) -> float:
    recall, precision = _Counts(), _Counts()
    for gold, found in documents:
        recall, precision = recall + metric(gold, found), precision + metric(found, gold)
    if not recall.right or not precision.right:
        return 0.0
    return 2 / (recall.total / recall.right + precision.total / precision.right)


def _cluster_of(clusters: Clusters) -> dict[Mention, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def _muc(gold: Clusters, found: Clusters) -> _Counts:
    """Links: a cluster of n needs n - 1, less by one for each part in which the other side has it."""
    where = _cluster_of(found)
    counts = _Counts()
    for cluster in gold:
        parts = len({where[mention] for mention in cluster if mention in where})
        alone = sum(mention not in where for mention in cluster)
        counts += _Counts(len(cluster) - parts - alone, len(cluster) - 1)
    return counts


def _b_cubed(gold: Clusters, found: Clusters) -> _Counts:
    """Mentions: of each, the share of its cluster that the other side has together with it."""
    where, sides = _cluster_of(found), [set(cluster) for cluster in found]
    right = 0.0
    for cluster in gold:
        shared = (len(sides[where[mention]].intersection(cluster)) for mention in cluster if mention in where)
        right += sum(shared) / len(cluster)
    return _Counts(right, sum(map(len, gold)))


def _ceaf_e(gold: Clusters, found: Clusters) -> _Counts:
    """Entities: each cluster beside at most one of the other side, such that the similarities' sum is the largest."""
    sides = [set(cluster) for cluster in found]
    similar = np.array([[_phi4(set(one), other) for other in sides] for one in gold]).reshape(len(gold), len(found))
    return _Counts(sum(float(similar[pair]) for pair in best_pairs(similar)), len(gold))


def _phi4(one: set[Mention], other: set[Mention]) -> float:
    return 2 * len(one & other) / (len(one) + len(other))


_METRICS = {"muc": _muc, "b3": _b_cubed, "ceafe": _ceaf_e}


def best_pairs(scores: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs of rows and columns, each in one pair at most, whose scores' sum is the largest there is.

    The Hungarian algorithm with shortest augmenting paths (Jonker and Volgenant 1987), cubic in the smaller side.

    Args:
        scores: `(R, C)`, none negative.
    """
    if scores.shape[0] > scores.shape[1]:
        return [(row, column) for column, row in best_pairs(scores.T)]
    n_rows, n_columns = scores.shape
    prices = np.zeros(n_columns + 1)  # duals; the last column is where a path begins
    gains = np.zeros(n_rows)
    row_of = np.full(n_columns + 1, -1)
    for row in range(n_rows):
        row_of[-1] = row
        _augment(-scores, gains, prices, row_of)
    return [(int(row), column) for column, row in enumerate(row_of[:-1]) if row >= 0]


def _augment(
    costs: NDArray[np.float64], gains: NDArray[np.float64], prices: NDArray[np.float64], row_of: NDArray[np.int64]
) -> None:
    """Give the row at the last column a column of its own, moving others to where the sum stays the smallest."""
    n_columns = costs.shape[1]
    nearest, came_from = np.full(n_columns, np.inf), np.full(n_columns, n_columns)
    seen = np.zeros(n_columns + 1, np.bool_)
    column = n_columns
    while row_of[column] >= 0:
        seen[column] = True
        row = row_of[column]
        through = costs[row] - gains[row] - prices[:-1]
        better = (through < nearest) & ~seen[:-1]
        nearest[better], came_from[better] = through[better], column
        open_columns = np.flatnonzero(~seen[:-1])
        following = int(open_columns[nearest[open_columns].argmin()])
        step = nearest[following]
        gains[row_of[seen]] += step
        prices[seen] -= step
        nearest[open_columns] -= step
        column = following
    while column != n_columns:
        row_of[column] = row_of[came_from[column]]
        column = int(came_from[column])
