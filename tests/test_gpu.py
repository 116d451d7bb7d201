"""The same vectors and scores on a GPU. CI has none: run `python tests/test_gpu.py` on a machine that has one.

The last run is kept in benchmarks/results/gpu.md.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import elmo
from elmo.config import ModelConfig
from elmo.embed import Embedder, EmbedSettings
from elmo.formats.bundle import empty_bilm, fill_bilm
from elmo.lm.softmax import SoftmaxHead
from elmo.model import BiLMOutput, State
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


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@needs_gpu
def test_vectors_are_the_same_on_a_gpu() -> None:
    assert largest_difference("cuda") <= 1e-5


@needs_gpu
def test_scores_are_the_same_on_a_gpu() -> None:
    assert largest_score_difference("cuda") <= 1e-5


@needs_gpu
@pytest.mark.parametrize(
    ("layers", "pool", "dtype"),
    [
        ("average", None, "float16"),
        ("all", "mean", "float32"),
        ("top", "max", "float32"),
        ("mix", None, "float32"),
        (1, "mean", "float16"),
        ([2, 0], None, "float32"),
    ],
)
def test_what_is_done_on_the_gpu_is_what_is_done_here(layers: Any, pool: Any, dtype: Any) -> None:
    model = elmo.load()
    sentences = [f"{sentence} {i}" for i in range(20) for sentence in SENTENCES]
    for state in ("zero", "carry"):
        asked = EmbedSettings(layers=layers, pool=pool, dtype=dtype, state=state, batch_size=7, batch_tokens=200)
        expected = Embedder(model, asked).embed(sentences)
        embedder = Embedder(model, asked, device="cuda")
        for found in (embedder.embed(sentences), list(embedder.embed_iter(iter(sentences)))):
            for ours, theirs in zip(found, expected, strict=True):
                assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
                np.testing.assert_allclose(ours, theirs, rtol=2e-3 if dtype == "float16" else 0, atol=1e-5)


class EmptyEngine:
    """An engine that enqueues nothing and never waits."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def encode(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(ids), self._config.lstm.projection_dim, device=ids.device)

    def contextualise(
        self, words: torch.Tensor, places: torch.Tensor, state: State | None = None, *, layers: Sequence[int]
    ) -> BiLMOutput:
        assert not places.is_cuda
        shape = (len(layers), *places.shape, self._config.dim)
        return BiLMOutput(
            layers=torch.zeros(shape, device=words.device),
            mask=places >= 0,
            state=State.zeros(self._config, len(places), words),
        )


@needs_gpu
@pytest.mark.parametrize("state", ["zero", "carry"])
@pytest.mark.parametrize("pool", [None, "mean", "max"])
def test_nothing_but_the_vectors_is_waited_for(state: Any, pool: Any) -> None:
    asked = EmbedSettings(state=state, pool=pool, batch_tokens=200, batch_size=7)
    embedder = Embedder(elmo.load(), asked, device="cuda")
    embedder._engine = EmptyEngine(embedder.config)  # type: ignore[assignment]  # always told which layers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype, says PyTorch
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):  # with new words and with known ones
            assert len(embedder.embed(SENTENCES * 50)) == len(SENTENCES) * 50
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_the_original_size_embeds_in_4_gb() -> None:
    config = ModelConfig.from_options(
        {
            "lstm": {
                "dim": 4096,
                "projection_dim": 512,
                "n_layers": 2,
                "cell_clip": 3,
                "proj_clip": 3,
                "use_skip_connections": True,
            },
            "char_cnn": {
                "embedding": {"dim": 16},
                "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
                "n_highway": 2,
                "n_characters": 262,
                "max_characters_per_token": 50,
                "activation": "relu",
            },
        }
    )
    empty = empty_bilm(config)
    weights = {name: 0.02 * torch.randn(like.shape, device="cuda") for name, like in empty.state_dict().items()}
    model = elmo.Model.of(fill_bilm(empty, weights))
    gc.collect()  # what other tests left
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    others = torch.cuda.memory_reserved() - 4 * sum(weight.numel() for weight in weights.values())
    sentences = [[f"w{(i * i + j) % 30_011}" for j in range(1 + i % 45)] for i in range(12_000)]
    vectors = model.embed(sentences, dtype="float16")
    assert [len(one) for one in vectors] == [len(sentence) for sentence in sentences]
    assert torch.cuda.max_memory_reserved() - others < 4e9


if __name__ == "__main__":
    differences = f"vectors {largest_difference('cuda'):.1e}, scores {largest_score_difference('cuda'):.1e}"
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {differences}")
