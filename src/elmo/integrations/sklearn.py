"""scikit-learn: sentences to features, in a `Pipeline`, a grid search or by themselves (`elmo[sklearn]`).

    make_pipeline(ElmoVectorizer(), LogisticRegression()).fit(sentences, labels)

Nothing is learned in `fit`, so nothing need be fitted. A model that is given by its path is loaded when it is first
used, by each estimator for itself, and is no part of a pickle or a clone. A grid search over what follows embeds the
same text again for each candidate, unless the pipeline has a `memory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from elmo.api import Device, Model, load
from elmo.embed import Embedder, EmbedOptions, Layers, Pool, Sentence, StateMode, Vectors, as_tokens
from elmo.engine import Precision
from elmo.errors import ElmoError, MissingExtraError

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
except ImportError as error:
    raise MissingExtraError("ElmoVectorizer", "sklearn") from error


class _Transformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both have in common; scikit-learn reads the parameters off each class's own constructor."""

    model: str | PathLike[str] | Model | None
    layers: Layers
    precision: Precision
    state: StateMode
    language: str | None
    batch_tokens: int | None
    device: Device

    def fit(self, X: Iterable[Sentence], y: object = None) -> Self:
        """Learn nothing, but load the model and refuse what it cannot do; X and y are not looked at."""
        self._embedder()
        return self

    def _embedder(self, pool: Pool | None = None) -> Embedder:
        if self.state == "carry":
            raise ElmoError("state is 'carry': give zero or warm, for a sample must not depend on those before it")
        settings: EmbedOptions = {
            "layers": self.layers,
            "pool": pool,
            "precision": self.precision,
            "state": self.state,
            "batch_tokens": self.batch_tokens,
        }
        return self._loaded().embedder(device=self.device, **settings)

    def _loaded(self) -> Model:
        if isinstance(self.model, Model):
            return self.model
        given, model = getattr(self, "_kept", (None, None))
        if model is None or given != self.model:
            model = load(self.model)
            self._kept = self.model, model
        return model

    def _sentences(self, X: Iterable[Sentence]) -> list[list[list[str]]]:
        """The sentences of each sample, as tokens."""
        if isinstance(X, str):
            raise ElmoError(f"a list of sentences is expected, not the string {X[:40]!r}: put it in a list")
        if hasattr(X, "columns") or getattr(X, "shape", ())[1:] == (1,):
            raise ElmoError("a list of sentences is expected, not a table: give its column of text alone")
        samples = [sample.tolist() if isinstance(sample, np.ndarray) else sample for sample in X]
        if self.language is None:
            return [[as_tokens(sample)] for sample in samples]
        from elmo.text import Tokenizer

        tokenizer = Tokenizer(self.language)
        texts = [sample for sample in samples if isinstance(sample, str)]
        if len(texts) < len(samples):
            given = next(sample for sample in samples if not isinstance(sample, str))
            raise ElmoError(f"language is {self.language!r}, so each sample is raw text, not {given!r:.80}")
        return [[sentence.tokens for sentence in tokenizer(text)] for text in texts]

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: all but a model that can be loaded again."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_kept"}

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        """Strings come in, float32 comes out; there is nothing to fit."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []  # float32, whatever comes in
        tags.requires_fit = False
        return tags


class ElmoVectorizer(ClassNamePrefixFeaturesOutMixin, _Transformer):  # type: ignore[misc]
    """Sentences or documents to one vector each.

    Args:
        model: a path that `elmo.load` takes, a loaded model (which clones copy), or None for the embedded one.
        layers: as in `EmbedSettings`; several layers are put side by side.
        pool: "mean" or "max" over the tokens; a sample without a word is zeros.
        precision: as in `EmbedSettings`.
        state: "zero" or "warm".
        language: None for one sentence a sample, a list of tokens or a string that is split at white space; a code
            such as "en" for raw text of any number of sentences (`elmo[text]`), pooled over all their tokens.
        batch_tokens: as in `EmbedSettings`.
        device: where to compute.
    """

    def __init__(
        self,
        model: str | PathLike[str] | Model | None = None,
        *,
        layers: Layers = "average",
        pool: Pool = "mean",
        precision: Precision = "fp32",
        state: StateMode = "zero",
        language: str | None = None,
        batch_tokens: int | None = None,
        device: Device = None,
    ) -> None:
        self.model = model
        self.layers = layers
        self.pool = pool
        self.precision = precision
        self.state = state
        self.language = language
        self.batch_tokens = batch_tokens
        self.device = device

    def fit(self, X: Iterable[Sentence], y: object = None) -> Self:
        """Learn nothing, but load the model and refuse what it cannot do; X and y are not looked at."""
        self._pooling_embedder()
        return self

    def transform(self, X: Iterable[Sentence]) -> NDArray[np.float32]:
        """`(samples, dim)`, or `(samples, layers * dim)` for several layers."""
        samples, embedder = self._sentences(X), self._pooling_embedder()
        vectors = embedder.embed_iter(chain.from_iterable(samples))
        pooled = np.zeros((len(samples), self._n_features_out), dtype=np.float32)
        for row, sentences in zip(pooled, samples, strict=True):
            parts = [next(vectors).reshape(-1) for _ in sentences]
            lengths = list(map(len, sentences))
            if any(lengths):
                row[:] = self._join(parts, lengths)
        return pooled

    def _pooling_embedder(self) -> Embedder:
        if self.pool not in ("mean", "max"):
            raise ElmoError(f"pool is {self.pool!r}: give mean or max, or take ElmoTokens for a vector a token")
        return self._embedder(self.pool)

    def _join(self, parts: Sequence[Vectors], lengths: Sequence[int]) -> Vectors:
        """The pool over a document's tokens, from those over its sentences'."""
        if self.pool == "max":
            joined: Vectors = np.max([part for part, length in zip(parts, lengths, strict=True) if length], axis=0)
            return joined
        return np.asarray(np.average(parts, axis=0, weights=lengths))

    @property
    def _n_features_out(self) -> int:
        """Columns, for scikit-learn's names of them."""
        embedder = self._pooling_embedder()
        several = embedder.settings.layers == "all" or isinstance(embedder.settings.layers, tuple)
        return embedder.config.dim * (len(embedder.layers) if several else 1)


class ElmoTokens(_Transformer):
    """Sentences to one vector a token: what a tagger, or a pooling of one's own, starts from.

    Args:
        model: a path that `elmo.load` takes, a loaded model (which clones copy), or None for the embedded one.
        layers: as in `EmbedSettings`.
        precision: as in `EmbedSettings`.
        state: "zero" or "warm".
        language: None for one sentence a sample, a list of tokens or a string that is split at white space; a code
            such as "en" for raw text of any number of sentences (`elmo[text]`), whose tokens follow one another.
        batch_tokens: as in `EmbedSettings`.
        device: where to compute.
    """

    def __init__(
        self,
        model: str | PathLike[str] | Model | None = None,
        *,
        layers: Layers = "average",
        precision: Precision = "fp32",
        state: StateMode = "zero",
        language: str | None = None,
        batch_tokens: int | None = None,
        device: Device = None,
    ) -> None:
        self.model = model
        self.layers = layers
        self.precision = precision
        self.state = state
        self.language = language
        self.batch_tokens = batch_tokens
        self.device = device

    def transform(self, X: Iterable[Sentence]) -> NDArray[np.object_]:
        """`(samples,)` of arrays `(tokens, dim)`, or `(layers, tokens, dim)` for several layers."""
        samples, embedder = self._sentences(X), self._embedder()
        vectors = embedder.embed_iter(chain.from_iterable(sentences or [[]] for sentences in samples))
        found = np.empty(len(samples), dtype=object)
        for place, sentences in enumerate(samples):
            found[place] = np.concatenate([next(vectors) for _ in sentences or [[]]], axis=-2)
        return found
