"""AllenNLP 0.9's `ElmoEmbedder`, which its command was made of.

Shapes: B sentences, T tokens, D width of a layer, L layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.compat.allennlp_bilm import File, _ElmoBiLm, batch_to_ids, given, remove_sentence_boundaries
from elmo.errors import ElmoError
from elmo.files import check_new_file, new_file
from elmo.sinks import Record, SentenceKeys, write_records

Vectors = NDArray[np.float32]

_OUTPUTS = ("all", "top", "average")


class ElmoEmbedder:
    """All layers of tokenised sentences, as arrays, the state carried from one call to the next (AllenNLP 0.9)."""

    def __init__(
        self, options_file: File | None = None, weight_file: File | None = None, cuda_device: int = -1
    ) -> None:
        """Read a model; `cuda_device` is a GPU's number, -1 the CPU.

        AllenNLP downloaded the original model where no files were given; here they must be given.
        """
        bilm = _ElmoBiLm(given("options_file", options_file), given("weight_file", weight_file))
        self.cuda_device = cuda_device
        self.elmo_bilm = bilm if cuda_device < 0 else bilm.cuda(cuda_device)

    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """All layers of a batch, `(B, L, T, D)`, and its mask, `(B, T)`."""
        ids = batch_to_ids(batch)
        with torch.no_grad():
            output = self.elmo_bilm(ids if self.cuda_device < 0 else ids.cuda(self.cuda_device))
        layers = [remove_sentence_boundaries(layer, output["mask"]) for layer in output["activations"]]
        return torch.stack([vectors for vectors, _ in layers], dim=1), layers[0][1]

    def embed_sentence(self, sentence: Sequence[str]) -> Vectors:
        """All layers of one sentence, `(L, T, D)`."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Vectors]:
        """All layers of each sentence, `(L, T, D)`, of their own length."""
        vectors, _ = self.batch_to_embeddings(batch)
        return [row[:, : len(sentence)].cpu().numpy() for row, sentence in zip(vectors, batch, strict=True)]

    def embed_sentences(self, sentences: Iterable[Sequence[str]], batch_size: int = 64) -> Iterator[Vectors]:
        """Embed a stream in batches, lazily."""
        stream = iter(sentences)
        while batch := list(islice(stream, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: str | PathLike[str],
        output_format: str = "all",
        batch_size: int = 64,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Embed a file of tokenised sentences, one a line, into an HDF5 file, and close it.

        Args:
            input_file: the open file; empty lines are refused.
            output_file_path: where to write; what is there is replaced.
            output_format: "all" for `(L, T, D)`, "top" or "average" for `(T, D)`.
            batch_size: rows of a batch, each of which carries its state into the next.
            forget_sentences: leave out the table from sentences to their numbers, `sentence_to_index`.
            use_sentence_keys: name each dataset by its sentence instead of its number (and leave the table out).
        """
        with input_file:
            if output_format not in _OUTPUTS:
                raise ElmoError(f"output_format is {output_format!r}: give one of {', '.join(_OUTPUTS)}")
            sentences = [line.split() for line in input_file]
        if blank := [number for number, tokens in enumerate(sentences) if not tokens]:
            raise ElmoError(f"the input has empty lines (counted from 0: {blank[:5]}): remove them")
        keys = SentenceKeys()
        for number, tokens in enumerate(sentences if use_sentence_keys else []):
            keys.check(number, tokens)
        embedded = zip(sentences, self.embed_sentences(sentences, batch_size), strict=True)
        check_new_file(Path(output_file_path), overwrite=True)
        with new_file(Path(output_file_path)) as beside:
            write_records(
                beside,
                ([Record(i, tokens, _reduce(v, output_format))] for i, (tokens, v) in enumerate(embedded)),
                format="hdf5",
                about={},
                sentence_to_index=not (forget_sentences or use_sentence_keys),
                sentence_keys=use_sentence_keys,
            )


def _reduce(layers_LTD: Vectors, output_format: str) -> Vectors:
    if output_format == "average":
        return np.asarray(layers_LTD.mean(axis=0))
    return layers_LTD if output_format == "all" else np.asarray(layers_LTD[-1])
