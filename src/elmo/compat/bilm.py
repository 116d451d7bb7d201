"""bilm-tf's API over this library, on PyTorch instead of TensorFlow's graphs.

    from elmo.compat.bilm import Batcher, BidirectionalLanguageModel, weight_layers    # was: from bilm import ...

There are no placeholders and no sessions: the model is called with what a batcher gives, and an op is a tensor here.
docs/migration.md has the native calls.

Shapes: B sentences, T tokens of the longest, C characters of a word, P projection, D = 2 * P, L layers, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmo.api import load
from elmo.chars import BOS, EOS, batch_to_ids
from elmo.compat.allennlp_bilm import remove_sentence_boundaries
from elmo.config import ModelConfig
from elmo.errors import ElmoError
from elmo.files import check_new_file, new_file, new_hdf5
from elmo.formats import read_model
from elmo.formats.bilm_tf import open_hdf5
from elmo.formats.bundle import Bundle, empty_bilm, fill_bilm
from elmo.jobs import embed_file
from elmo.lines import LineReader
from elmo.model import BiLM, ScalarMix, State
from elmo.vocab import read_words

File = str | PathLike[str]
Ids = NDArray[np.int64]

UNKNOWN = "<UNK>"
_WORDS_AT_ONCE = 4096


class Batcher:
    """Sentences to character ids, boundaries added."""

    def __init__(self, lm_vocab_file: File | None, max_token_length: int) -> None:
        """Set up; `lm_vocab_file` is not read, as a word's characters do not depend on it."""
        self._max_token_length = max_token_length

    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> Ids:
        """Ids `(B, T + 2, C)` of tokens given without boundaries; 0 behind a sentence."""
        bounded = [[BOS, *sentence, EOS] for sentence in sentences]
        return batch_to_ids(bounded, self._max_token_length).astype(np.int64)


class TokenBatcher:
    """Sentences to the numbers of words, boundaries added."""

    def __init__(self, lm_vocab_file: File) -> None:
        """Read the vocabulary, which must have `<S>` and `</S>`; without `<UNK>` it must have every word, too."""
        self._ids = {word: i for i, word in enumerate(read_words(lm_vocab_file))}
        if missing := {BOS, EOS} - self._ids.keys():
            raise ElmoError(f"the vocabulary {lm_vocab_file} lacks {', '.join(sorted(missing))}: add them")

    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> Ids:
        """Ids `(B, T + 2)` of tokens given without boundaries; 0 behind a sentence, a word's number and 1 elsewhere."""
        ids = np.zeros((len(sentences), max(map(len, sentences), default=0) + 2), dtype=np.int64)
        for row, sentence in zip(ids, sentences, strict=True):
            row[: len(sentence) + 2] = [self._id(word) + 1 for word in (BOS, *sentence, EOS)]
        return ids

    def _id(self, word: str) -> int:
        number = self._ids.get(word, self._ids.get(UNKNOWN))
        if number is None:  # bilm-tf would take it for padding
            raise ElmoError(f"{word!r} is not in the vocabulary, which has no {UNKNOWN}: add one of them")
        return number


class BidirectionalLanguageModel(nn.Module):
    """The frozen biLM, its state carried from one call to the next, and the mixes that `weight_layers` puts on it."""

    def __init__(
        self,
        options_file: File,
        weight_file: File,
        use_character_inputs: bool = True,
        embedding_weight_file: File | None = None,
        max_batch_size: int = 128,
    ) -> None:
        """Read a model.

        Args:
            options_file: its `options.json`.
            weight_file: its HDF5 file.
            use_character_inputs: whether it is called with what a `Batcher` gives, or a `TokenBatcher`.
            embedding_weight_file: for the latter, what `dump_token_embeddings` wrote.
            max_batch_size: how many rows' state bilm-tf had room for; of no effect here.
        """
        super().__init__()
        bundle = read_model(Path(weight_file), options=Path(options_file))
        if use_character_inputs:
            self.bilm = bundle.bilm
        elif embedding_weight_file is None:
            raise ElmoError("use_character_inputs is False: give embedding_weight_file (see dump_token_embeddings)")
        else:
            self.bilm = _reads_words(bundle, Path(embedding_weight_file))
        self.mixes = nn.ModuleDict()
        self._state: State | None = None

    def forward(self, ids: Tensor | Ids) -> dict[str, Any]:
        """Run over a batch: what were ops in bilm-tf, and `mixes`, where `weight_layers` keeps its parameters.

        `lm_embeddings (B, L, T, D)` and `mask (B, T)` are without the boundaries, `lengths (B,)` counts none;
        `token_embeddings (B, T + 2, P)` is the word layer with them.
        """
        ids = torch.as_tensor(ids).to(next(self.bilm.parameters()).device)
        state = self.bilm.zero_state(0) if self._state is None else self._state
        with torch.no_grad():
            output = self.bilm(ids, state.take(len(ids)))
        self._state = state.put(output.state)
        inner = [remove_sentence_boundaries(layer, output.mask) for layer in output.layers]
        mask_BT = inner[0][1]
        return {
            "lm_embeddings": torch.stack([layer for layer, _ in inner], dim=1),
            "lengths": mask_BT.sum(dim=1),
            "token_embeddings": output.layers[0, ..., : self.bilm.config.lstm.projection_dim],
            "mask": mask_BT,
            "mixes": self.mixes,
        }


def weight_layers(
    name: str,
    bilm_ops: dict[str, Any],
    l2_coef: float | None = None,
    use_top_only: bool = False,
    do_layer_norm: bool = False,
) -> dict[str, Tensor]:
    """Mix a biLM's layers: `weighted_op (B, T, D)`, and `regularization_op`, the penalty of the mix's weights.

    Args:
        name: which mix; a name that was used before, with this biLM, is the same mix with the same parameters.
        bilm_ops: what a `BidirectionalLanguageModel` returned.
        l2_coef: of the penalty; none if not given.
        use_top_only: the top layer alone, scaled by the mix's gamma.
        do_layer_norm: normalise each layer over the tokens of the batch, without the boundaries.
    """
    layers_LBTD = bilm_ops["lm_embeddings"].transpose(0, 1)
    mixes: nn.ModuleDict = bilm_ops["mixes"]
    if name not in mixes:
        mixes[name] = ScalarMix(len(layers_LBTD), do_layer_norm).to(layers_LBTD.device)
    mix = mixes[name]
    assert isinstance(mix, ScalarMix)
    if use_top_only:
        return {"weighted_op": mix.gamma * layers_LBTD[-1], "regularization_op": torch.zeros(())}
    return {"weighted_op": mix(layers_LBTD, bilm_ops["mask"]), "regularization_op": mix.penalty(l2_coef or 0.0)}


def dump_token_embeddings(vocab_file: File, options_file: File, weight_file: File, outfile: File) -> None:
    """Write the vectors of a vocabulary's words, without context, as the dataset `embedding (V, P)`."""
    model = load(weight_file, options=options_file)
    words, width = read_words(vocab_file), model.config.lstm.projection_dim
    vectors = model.embed_iter(([word] for word in words), layers=0)
    check_new_file(Path(outfile), overwrite=True)
    with new_file(Path(outfile)) as beside, new_hdf5(beside) as (file, check):
        dataset = file.create_dataset("embedding", (len(words), width), dtype="float32")
        for start in range(0, len(words), _WORDS_AT_ONCE):
            rows = words[start : start + _WORDS_AT_ONCE]
            dataset[start : start + len(rows)] = np.stack([next(vectors)[0, :width] for _ in rows])
            check()


def dump_bilm_embeddings(
    vocab_file: File | None, dataset_file: File, options_file: File, weight_file: File, outfile: File
) -> None:
    """Write all layers of the sentences of a file, one a line: a dataset `(L, T, D)` for each, named by its number.

    Each starts from the state of the one before it. The vocabulary is not read, as the model reads characters.
    """
    embedder = load(weight_file, options=options_file).embedder(layers="all", state="carry", batch_size=1)
    try:
        with open(dataset_file, "rb") as file:
            sentences = (line.split() for line in LineReader(file, str(dataset_file)))
            embed_file(embedder, sentences, outfile, format="hdf5", overwrite=True)
    except OSError as error:
        raise ElmoError(f"cannot read {dataset_file}: {error.strerror}") from error


def _reads_words(bundle: Bundle, table: Path) -> BiLM:
    """A model's LSTMs on a table of words instead of characters; row 0 is the mask's."""
    with open_hdf5(table, str(table)) as file:
        dataset = file.get("embedding")
        width = bundle.config.lstm.projection_dim
        if dataset is None or dataset.ndim != 2 or dataset.shape[1] != width or dataset.dtype.kind != "f":
            raise ElmoError(f"{table} has no dataset 'embedding' of words {width} wide: see dump_token_embeddings")
        if dataset.external or dataset.is_virtual:
            raise ElmoError(f"{table}: 'embedding' is not stored in the file itself")
        words_VP = torch.from_numpy(dataset[...].astype(np.float32))
    bilm = empty_bilm(ModelConfig(lstm=bundle.config.lstm, n_words=len(words_VP)))
    weights = {name: bundle.network.read(name).contiguous() for name in bilm.state_dict() if name != "encoder.weight"}
    return fill_bilm(bilm, weights | {"encoder.weight": torch.cat([torch.zeros(1, width), words_VP])})
