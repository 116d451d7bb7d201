"""AllenNLP 2.10.1, in its own environment (Python 3.10)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from allennlp.modules.elmo import Elmo, batch_to_ids
from measure import measure

torch.set_grad_enabled(False)
model = Elmo(f"{sys.argv[1]}/options.json", f"{sys.argv[1]}/weights.hdf5", 1, dropout=0.0).eval()


def embed(sentences: list[list[str]], rows: int) -> list[Any]:
    """All sentences in batches of `rows`, in their order."""
    vectors: list[Any] = []
    for start in range(0, len(sentences), rows):
        ids = batch_to_ids(sentences[start : start + rows])
        vectors.extend(model(ids)["elmo_representations"][0].numpy())
    return vectors


measure("AllenNLP 2.10.1", embed, [8, 32, 128])
