"""BERT-base of Hugging Face, random weights, for scale: `bert_worker.py - TEXT OUT COUNT ONE_BY_ONE PRECISION`.

Its tokenizer's vocabulary would have to be downloaded, so each word is one piece here; real text has about 1.2 a word.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

import torch
from measure import measure
from transformers import BertConfig, BertModel

torch.manual_seed(0)
torch.set_grad_enabled(False)
precision = sys.argv[6]
model: Any = BertModel(BertConfig()).eval()
if precision == "int8":
    model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def embed(sentences: list[list[str]], rows: int) -> list[Any]:
    """All sentences in batches of `rows`, those of like length together."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    vectors: list[Any] = [None] * len(sentences)
    for start in range(0, len(order), rows):
        places = order[start : start + rows]
        ids = [torch.tensor([zlib.crc32(word.encode()) % 30_000 for word in sentences[i]] + [102]) for i in places]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        hidden = model(input_ids=padded, attention_mask=mask).last_hidden_state
        for i, row in zip(places, hidden.numpy(), strict=True):
            vectors[i] = row[: len(sentences[i])]
    return vectors


measure(f"BERT-base {precision}", embed, [8, 32, 128])
