"""simple_elmo's `ElmoModel` over this library: the same numbers without TensorFlow.

    from elmo.compat.simple_elmo import ElmoModel            # was: from simple_elmo import ElmoModel

As there, each call starts from a zero state, and within it sentences are read in batches whose rows hand their state
on; with `warmup` the first batch is read twice, so that it, too, starts from something. What is put right here, because
nobody could have wanted it as it was, is said at each method. docs/migration.md has the native calls.

Shapes: N sentences, T tokens of the longest, D width of a layer, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.api import Model, load
from elmo.chars import BOS, EOS, refuse_string
from elmo.embed import Sentence, Vectors, as_tokens
from elmo.errors import ElmoError
from elmo.lm.scores import Likeliest, Scorer, head_of
from elmo.model import State
from elmo.vocab import Vocabulary

Layers = Literal["average", "top", "all"]
Array = NDArray[np.float64]

_FIRST_CHOICE = "model.hdf5"  # of several HDF5 files in a folder


class Session:
    """Carries the state from one call to the next, as a TensorFlow session did that was given to both."""

    def __init__(self) -> None:
        self.state: State | None = None


class ElmoModel:
    """A model to be loaded, then asked for vectors or substitutes."""

    def __init__(self) -> None:
        self._loaded: Model | None = None
        self.batch_size = 32
        """Sentences that are read side by side."""
        self.max_chars: int | None = None
        """Characters of a word, its two marks included; None of a model that reads words."""
        self.vector_size = 0
        """D."""
        self.n_layers = 0
        """L."""

    def load(
        self, directory: str | PathLike[str], max_batch_size: int = 32, limit: int = 100, full: bool = False
    ) -> str:
        """Load a model.

        Args:
            directory: anything that `elmo.load` takes; of several HDF5 files in a folder, `model.hdf5`.
            max_batch_size: how many sentences are read side by side: it decides which one's state a sentence gets.
            limit: how many words simple_elmo kept the characters of; of no effect here.
            full: the model is to have its language model head, for `get_elmo_substitutes`.
        """
        if type(max_batch_size) is not int or max_batch_size < 1:
            raise ElmoError(f"max_batch_size is {max_batch_size!r}: give a whole number, 1 or more")
        chosen = Path(directory) / _FIRST_CHOICE
        model = load(chosen if chosen.is_file() else directory)
        if full:
            head_of(model)
        cnn = model.config.char_cnn
        self._loaded = model
        self.batch_size = max_batch_size
        self.max_chars = None if cnn is None else cnn.max_characters_per_token
        self.vector_size, self.n_layers = model.config.dim, model.config.n_layers
        return "The model is now loaded."

    def get_elmo_vectors(
        self,
        texts: Sequence[Sentence],
        warmup: bool = True,
        layers: Layers = "average",
        session: Session | None = None,
    ) -> Array:
        """Vectors of the tokens of sentences: `(N, T, D)`, or `(N, L, T, D)` for "all" layers.

        Behind a sentence's end all is zero. (simple_elmo had the word layer's vector of nothing there, which is none.)

        Args:
            texts: each a list of tokens.
            warmup: read the first batch twice, and take what the second time gives.
            layers: "average" of all, "top" or "all".
            session: carries the state on from an earlier call; each call starts from zero if not given.
        """
        vectors = self._embed(texts, warmup, layers, session)
        longest = max((v.shape[-2] for v in vectors), default=0)
        padded = np.zeros((len(vectors), *self._before(layers), longest, self.vector_size))
        for row, v in zip(padded, vectors, strict=True):
            row[..., : v.shape[-2], :] = v
        return padded

    def get_elmo_vector_average(
        self,
        texts: Sequence[Sentence],
        warmup: bool = True,
        layers: Layers = "average",
        session: Session | None = None,
    ) -> Array:
        """The mean vector of each sentence, made to length 1: `(N, D)`, or `(N, L, D)` for "all" layers.

        The mean is over the sentence's tokens. (simple_elmo took it over the longest sentence of the batch, so that the
        others changed the result, and of "all" layers it mixed layers and tokens.) No tokens give zeros. The arguments
        are those of `get_elmo_vectors`.
        """
        means = np.zeros((len(texts), *self._before(layers), self.vector_size))
        for row, v in zip(means, self._embed(texts, warmup, layers, session), strict=True):
            if v.shape[-2]:
                mean = v.astype(np.float64).mean(axis=-2)
                row[...] = mean / np.linalg.norm(mean)
        return means

    def get_elmo_substitutes(
        self, data: Sequence[Sentence], topn: int = 3, nodelimiters: bool = True
    ) -> list[list[dict[str, Any]]]:
        """What each direction finds likeliest in the place of each token: a list for each sentence, in their order.

        A token has `word` (`<UNK>` where the vocabulary lacks it), `forward`, from all tokens before it, and
        `backward`, from all behind it; each of these has `candidates` (numbers), `candidate_words` and `logp` (`ln p`),
        best first.

        simple_elmo forgot the state after each token, so that it predicted from one neighbour alone; gave scores
        before the softmax as `logp`; had the candidates in no order; lost sentences at the end, and needed as many as
        a batch has.

        Args:
            data: each a list of tokens.
            topn: how many candidates.
            nodelimiters: pass over `<S>` and `</S>`.
        """
        refuse_string(data)
        head, vocab = head_of(self._model)
        scorer = Scorer(self._model.embedder(layers="top", batch_size=1), head, vocab)
        without = (BOS, EOS) if nodelimiters else ()
        found = []
        for tokens in map(as_tokens, data):
            both = scorer.likeliest(tokens, topn, without=without) if tokens else ()
            directions = zip(*(_candidates(one, vocab) for one in both), strict=True)
            words = (vocab.words[number] for number in vocab.ids(tokens))
            found.append(
                [
                    {"word": word, "forward": forward, "backward": backward}
                    for word, (forward, backward) in zip(words, directions, strict=True)
                ]
            )
        return found

    @property
    def _model(self) -> Model:
        if self._loaded is None:
            raise ElmoError("no model is loaded: call load(directory) first")
        return self._loaded

    def _before(self, layers: Layers) -> tuple[int, ...]:
        if layers not in get_args(Layers):
            raise ElmoError(f"layers is {layers!r}: give one of {', '.join(get_args(Layers))}")
        return (self.n_layers,) if layers == "all" else ()

    def _embed(self, texts: Sequence[Sentence], warmup: bool, layers: Layers, session: Session | None) -> list[Vectors]:
        """An array a sentence, `(tokens, D)` or `(L, tokens, D)`."""
        self._before(layers)
        refuse_string(texts)
        embedder = self._model.embedder(layers=layers, state="carry", batch_size=self.batch_size)
        batches = list(embedder.groups(map(as_tokens, texts)))
        state = None if session is None else session.state
        vectors: list[Vectors] = []
        for number, batch in enumerate(batches[:1] * bool(warmup) + batches):
            window = embedder.embed_group(batch, state)
            state = window.state
            vectors += window.vectors if number or not warmup else []
        if session is not None:
            session.state = state
        return vectors


def _candidates(likeliest: Likeliest, vocab: Vocabulary) -> list[dict[str, Any]]:
    return [
        {"candidates": ids, "candidate_words": [vocab.words[i] for i in ids], "logp": logs}
        for ids, logs in zip(likeliest.ids.tolist(), likeliest.log_probs.tolist(), strict=True)
    ]
