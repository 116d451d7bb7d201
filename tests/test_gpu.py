"""The same vectors and scores on a GPU. CI has none: run `python tests/test_gpu.py` on a machine that has one.

The last run is kept in benchmarks/results/gpu-equality.md.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import elmo
from elmo.lm.softmax import SoftmaxHead
from elmo.vocab import SPECIAL_WORDS, Vocabulary

SENTENCES = ["The cat sat on the mat .", "", "It purred .", "ü 日本 " * 30]


def largest_difference(device: str) -> float:
    """Between the CPU's vectors and another device's, over all layers and states."""
    model = elmo.load()
    warm = model.warmed(SENTENCES)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    worst = 0.0
    for state in ("zero", "carry", "warm"):
        ours = warm.embed(SENTENCES * 5, layers="all", state=state, batch_size=3)
        theirs = warm.embed(SENTENCES * 5, layers="all", state=state, batch_size=3, device=device)
        differences = [np.abs(a - b).max(initial=0.0) for a, b in zip(ours, theirs, strict=True)]
        worst = max(worst, *differences)
    return float(worst)


def largest_score_difference(device: str) -> float:
    """Between the CPU's log probabilities and another device's, of a head drawn at random."""
    embedded = elmo.load()
    vocab = Vocabulary([*SPECIAL_WORDS, "The", "cat", "sat", "on", "the", "mat", "."])
    head = SoftmaxHead(len(vocab), embedded.config.lstm.projection_dim).requires_grad_(False)
    model = elmo.Model.of(embedded.bilm, head=head, vocab=vocab)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    worst = 0.0
    for state in ("zero", "carry"):
        ours, theirs = (model.score(SENTENCES * 5, state=state, batch_size=3, device=where) for where in (None, device))
        for a, b in zip(ours, theirs, strict=True):
            worst = max(worst, np.abs(a.forward - b.forward).max(), np.abs(a.backward - b.backward).max())
    ours_best, theirs_best = (model.substitutes("The cat sat", 1, device=where) for where in (None, device))
    return float(max(worst, *(abs(a.forward - b.forward) for a, b in zip(ours_best, theirs_best, strict=True))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_vectors_are_the_same_on_a_gpu() -> None:
    assert largest_difference("cuda") <= 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_scores_are_the_same_on_a_gpu() -> None:
    assert largest_score_difference("cuda") <= 1e-5


if __name__ == "__main__":
    differences = f"vectors {largest_difference('cuda'):.1e}, scores {largest_score_difference('cuda'):.1e}"
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {differences}")
