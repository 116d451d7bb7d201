"""The same vectors on a GPU. CI has none: run `python tests/test_gpu.py` on a machine that has one.

The last run is kept in benchmarks/results/gpu-equality.md.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import elmo

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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_vectors_are_the_same_on_a_gpu() -> None:
    assert largest_difference("cuda") <= 1e-5


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {largest_difference('cuda'):.1e}")
