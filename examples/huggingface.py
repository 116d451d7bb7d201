"""ELMo in transformers, datasets and sentence-transformers: `python examples/huggingface.py`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel, logging

import elmo
from elmo.integrations.hf import ElmoFeatureExtractor, ElmoModel
from elmo.integrations.sentence_transformers import ElmoEmbeddings

SENTENCES = ["We sat on the bank of the river .", "The bank raised its rates .", "They swam in the lake ."]


def with_transformers(model: elmo.Model, folder: Path) -> None:
    """A folder that both libraries read."""
    ElmoModel.of(model).save_pretrained(folder)
    loaded = AutoModel.from_pretrained(folder)  # and elmo.load(folder)
    features = ElmoFeatureExtractor()(SENTENCES, return_tensors="pt")
    with torch.inference_mode():
        output = loaded(**features, output_hidden_states=True)
    print(f"{type(loaded).__name__}: {tuple(output.last_hidden_state.shape)}, {len(output.hidden_states)} layers")


def with_datasets(model: elmo.Model) -> None:
    """A column of vectors."""
    table = datasets.Dataset.from_dict({"text": SENTENCES})
    table = table.map(lambda batch: {"vector": model.embed(batch["text"], pool="mean")}, batched=True)
    print(f"datasets: {table.column_names}, vectors of {len(table[0]['vector'])}")


def with_sentence_transformers(model: elmo.Model) -> None:
    """An encoder of sentences, which can be trained."""
    words = ElmoEmbeddings(model)
    encoder = SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension())], device="cpu")
    print(f"sentence-transformers: {tuple(encoder.encode(SENTENCES).shape)}")


def main() -> None:
    """Show all three."""
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    model = elmo.load()
    with TemporaryDirectory() as folder:
        with_transformers(model, Path(folder))
    with_datasets(model)
    with_sentence_transformers(model)


if __name__ == "__main__":
    main()
