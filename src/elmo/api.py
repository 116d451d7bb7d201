"""`elmo.load`, `elmo.save` and what they load and save: a model that embeds and, with its head, predicts words."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Unpack, cast, get_args

import torch
from torch import Tensor

from elmo.chars import model_batch, refuse_string
from elmo.embed import Embedder, EmbedOptions, EmbedSettings, Sentence, Vectors, as_tokens
from elmo.errors import ElmoError
from elmo.formats import Format, left_out, read_model, write_model
from elmo.formats.bundle import Bundle
from elmo.formats.hub import PREFIX, snapshot
from elmo.formats.native import Dtype
from elmo.lm.scores import Perplexity, ScoreOptions, Scorer, Scores, Substitute, head_of, perplexity, without_boundaries
from elmo.model import State

EMBEDDED = "default"
"""The embedded model's name, where a command wants one."""

Device = str | torch.device | None

_EMBEDDERS_KEPT = 4
_VALUES_SAMPLED = 16  # of each weight
_LOCK = threading.Lock()


@dataclass(frozen=True, kw_only=True, eq=False)
class Model(Bundle):
    """A biLM and what came with it, ready to embed. `elmo.load` makes one. May be used from several threads."""

    _embedders: dict[tuple[EmbedSettings, object], Embedder] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def embed(
        self, sentences: Sequence[Sentence], *, device: Device = None, **settings: Unpack[EmbedOptions]
    ) -> list[Vectors]:
        """Embed sentences: one array a sentence, `(tokens, dim)`.

        Args:
            sentences: each a list of tokens, or a string that is split at white space.
            device: where to compute; where the model is if not given.
            **settings: the fields of `EmbedSettings`: `layers` ("average" if not given, "all", "top", "mix", a number
                or a list of numbers; several layers come out as `(layers, tokens, dim)`), `pool` ("mean" or "max"
                over the tokens), `precision`, `state` ("zero", "carry", "warm"), `dtype`, `batch_tokens` (by the
                device if not given), `batch_size`.
        """
        return self.embedder(device=device, **settings).embed(sentences)

    def embed_iter(
        self, sentences: Iterable[Sentence], *, device: Device = None, **settings: Unpack[EmbedOptions]
    ) -> Iterator[Vectors]:
        """Embed a stream of sentences lazily, in order, in bounded memory; the settings are those of `embed`."""
        return self.embedder(device=device, **settings).embed_iter(sentences)

    def embedder(self, *, device: Device = None, **settings: Unpack[EmbedOptions]) -> Embedder:
        """The embedder for some settings; it is kept, with its word vectors, until the weights change.

        One that is held elsewhere goes on with the weights that it was made with. While weights are trainable, none
        is kept.
        """
        known = [f.name for f in fields(EmbedSettings)]
        if unknown := settings.keys() - set(known):
            raise ElmoError(f"unknown setting {min(unknown)!r}: known are {', '.join(known)}")
        asked = EmbedSettings(**settings)
        if self.network.loaded and any(weight.requires_grad for weight in self.bilm.parameters()):
            return Embedder(self, asked, device=device)
        mix = () if self.mix is None else self.mix.parameters()
        warm = () if self.warm is None else (self.warm.m, self.warm.c)
        network = self.bilm.parameters() if self.network.loaded else ()
        weights = (str(device), self.network.loaded, fingerprint(chain(network, mix, warm)))
        with _LOCK:
            if (asked, weights) not in self._embedders:
                alike = [e for (_, others), e in self._embedders.items() if others == weights]
                like = next((e for e in alike if e.settings.runs_on == asked.runs_on), alike[0] if alike else None)
                while len(self._embedders) >= _EMBEDDERS_KEPT:
                    del self._embedders[next(iter(self._embedders))]
                self._embedders[asked, weights] = Embedder(self, asked, device=device, like=like)
            return self._embedders[asked, weights]

    def score(
        self, sentences: Sequence[Sentence], *, device: Device = None, **settings: Unpack[ScoreOptions]
    ) -> list[Scores]:
        """Log probabilities of every word of sentences, forward and backward, for a model with its head.

        Args:
            sentences: each a list of tokens, or a string that is split at white space.
            device: where to compute; where the model is if not given.
            **settings: `state` ("zero" if not given: each sentence by itself; "carry": as in training, each goes on
                from the one before it; "warm"), `batch_size` (1 if not given: with "carry", this many sentences are
                read side by side, and each goes on from the one that many before it, which is faster), and
                `precision`, `batch_tokens`, `engine` as in `EmbedSettings`.
        """
        return list(self.score_iter(sentences, device=device, **settings))

    def score_iter(
        self, sentences: Iterable[Sentence], *, device: Device = None, **settings: Unpack[ScoreOptions]
    ) -> Iterator[Scores]:
        """Score a stream of sentences lazily, in order, in bounded memory; the settings are those of `score`.

        An empty sentence has one prediction in each direction, and leaves a carried state as it was.
        """
        refuse_string(sentences)
        return self._scorer(device, settings).score(map(as_tokens, sentences))

    def perplexity(
        self,
        sentences: Iterable[Sentence],
        *,
        device: Device = None,
        report: Callable[[int, int], None] = lambda sentences, tokens: None,
        **settings: Unpack[ScoreOptions],
    ) -> Perplexity:
        """Perplexity of a text, forward, backward and both, by the full softmax, in bounded memory.

        Sentences with no word in them are left out, and so are boundaries that stand in the text, as in training.

        Args:
            sentences: each a list of tokens, or a string that is split at white space.
            device: where to compute; where the model is if not given.
            report: told after each sentence how many sentences and words were read.
            **settings: those of `score`, but `state` is "carry" if not given: the text is one stream, as where
                training validates.
        """
        refuse_string(sentences)
        carried: ScoreOptions = {"state": "carry"}
        scorer = self._scorer(device, carried | settings)
        return perplexity(scorer.score(without_boundaries(map(as_tokens, sentences))), report)

    def substitutes(
        self,
        tokens: Sentence,
        position: int,
        k: int = 10,
        *,
        special_words: bool = False,
        divide_by_unigram: bool = True,
        device: Device = None,
        **settings: Unpack[ScoreOptions],
    ) -> list[Substitute]:
        """The words that could stand at a position, best first, whatever stands there.

        The probability is the product of what the forward direction says after the words before, and the backward
        direction before the words behind, divided by the word's own, made to sum to 1 over the words considered.

        Args:
            tokens: the sentence, a list of tokens or a string that is split at white space.
            position: which token, from 0.
            k: how many words.
            special_words: consider `<S>`, `</S>` and `<UNK>` as well.
            divide_by_unigram: divide the product by how likely the head finds a word without context. Were the two
                sides of a word independent given the word, that would be its probability given both; the product
                alone counts its frequency twice, and has words that fit anywhere come first.
            device: where to compute; where the model is if not given.
            **settings: `state` ("zero" or "warm"), `precision`, `engine`.
        """
        scorer = self._scorer(device, settings)
        return scorer.substitutes(
            as_tokens(tokens), position, k, special_words=special_words, divide_by_unigram=divide_by_unigram
        )

    def _scorer(self, device: Device, settings: ScoreOptions) -> Scorer:
        known = sorted(ScoreOptions.__annotations__)
        if unknown := settings.keys() - set(known):
            raise ElmoError(f"unknown setting {min(unknown)!r}: known are {', '.join(known)}")
        rows: ScoreOptions = {"batch_size": 1}
        head, vocab = head_of(self)  # before an engine is made for nothing
        return Scorer(self.embedder(device=device, layers="top", **(rows | settings)), head, vocab)

    def __getstate__(self) -> dict[str, object]:
        """What is copied and pickled: all but the embedders, which are made again."""
        return {name: value for name, value in vars(self).items() if name != "_embedders"} | {"_embedders": {}}

    def batch_to_ids(self, sentences: Sequence[Sentence]) -> Tensor:
        """Ids for `Elmo` or `BiLM`, padded with 0: `(B, T, C)` of characters, `(B, T)` for a model that reads words.

        With a table of words beside the characters there is one more column, of the words: `(B, T, C + 1)`.
        """
        refuse_string(sentences)
        vocab = self.words if self.config.n_words is not None else None
        return torch.from_numpy(model_batch([as_tokens(sentence) for sentence in sentences], self.config, vocab))

    def warmed(self, sentences: Iterable[Sentence]) -> Model:
        """This model with a start state made from neutral text.

        It is the mean of the states that the sentences leave behind when each starts from the one before.
        """
        refuse_string(sentences)
        embedder = Embedder(self, EmbedSettings(layers="top", state="carry", batch_size=1))
        m, c, count = torch.tensor(0.0), torch.tensor(0.0), 0
        for window in embedder.windows(map(as_tokens, sentences)):
            assert window.state is not None
            m, c, count = m + window.state.m.cpu(), c + window.state.c.cpu(), count + 1
        if count == 0:
            raise ElmoError("the text for the warm start state has no sentence")
        return replace(self, warm=State(m / count, c / count))


def fingerprint(weights: Iterable[Tensor]) -> tuple[object, ...]:
    """What changes with weights, without reading all of them: PyTorch counts what is written to a tensor in place.

    It does not count what is written to its `.data`, as some optimizers do, and nothing in inference mode: where the
    tensors are and a few of their values tell of most of that.
    """
    return tuple(
        (w.data_ptr(), 0 if w.is_inference() else w._version, tuple(_some(w.detach().reshape(-1)))) for w in weights
    )


def _some(values: Tensor) -> list[float]:
    """A few of the values, from other columns as well as other rows: the step is odd, widths hardly ever are."""
    found: list[float] = values[:: len(values) // _VALUES_SAMPLED | 1].tolist()
    return found


def load(
    path: str | PathLike[str] | None = None,
    *,
    options: str | PathLike[str] | None = None,
    vocab: str | PathLike[str] | None = None,
) -> Model:
    """Load a model.

    Args:
        path: the embedded model if not given, or if it is "default" and nothing has that name; else a model in any
            published format, told by what is there: a native folder; an HDF5 file of bilm-tf or AllenNLP, or its
            folder; a TensorFlow checkpoint (its folder, prefix or any of its files); a TF Hub module; an
            ELMoForManyLangs folder; a zip of NLPL; AllenNLP's `model.tar.gz` or `best.th`. See docs/formats.md. With
            `hf://owner/name`, such a folder of the Hugging Face hub (native, or HDF5), kept in its local cache.
        options: the `options.json`, where it is not with the weights.
        vocab: the vocabulary of a model that reads words, or of a checkpoint, where it is not beside it.
    """
    if is_embedded(path):
        if options is not None or vocab is not None:
            raise ElmoError("options and vocab belong to a model: give its path")
        with resources.as_file(resources.files("elmo") / "models" / "default") as folder:
            bundle = read_model(folder)
    else:
        assert path is not None
        bundle = read_model(
            snapshot(path) if isinstance(path, str) and path.startswith(PREFIX) else Path(path),
            options=None if options is None else Path(options),
            vocab=None if vocab is None else Path(vocab),
        )
    return Model(**{f.name: getattr(bundle, f.name) for f in fields(Bundle)})


def is_embedded(path: str | PathLike[str] | None) -> bool:
    """Whether `load` takes a path for the embedded model."""
    return path is None or (str(path) == EMBEDDED and not Path(path).exists())


def dtype_of(model: Bundle) -> Dtype:
    """What to `save` a model as, for it to be stored as it came: in a native folder's type, else float32."""
    for known in get_args(Dtype):
        if model.stored is not None and model.stored.dtype == known:
            return cast(Dtype, known)
    return "float32"


def save(
    model: Bundle,
    path: str | PathLike[str],
    *,
    format: Format = "native",
    dtype: Dtype = "float32",
    max_file_mb: float | None = None,
    overwrite: bool = False,
) -> None:
    """Save a model as a folder, or as a zip.

    Args:
        model: what `load` returns.
        path: the folder, or the zip; it appears whole or not at all.
        format: "native"; "bilm-tf" (which has no place for a warm start state, a learned mix or a head, and warns of
            each that it leaves out; its `vocab.txt` has the words); "nlpl", the same as a zip; "token-cache", the same
            with a table of the vectors of the vocabulary's words, which is read in place of the characters.
        dtype: of the large weights in a native folder: "float32" keeps every bit; "bfloat16" and "float16" take half
            the room, "int8" (with a scale for each output) a quarter. Biases and other small weights stay float32.
            What is loaded is float32 again; saved once more in the same type it gives the same bytes.
        max_file_mb: split the weights of a native folder into files of at most so many MB (of 1,000,000 bytes).
        overwrite: replace a model that is there.
    """
    write_model(model, Path(path), format=format, dtype=dtype, max_file_mb=max_file_mb, overwrite=overwrite)
    for note in left_out(model, format):
        warnings.warn(note, stacklevel=2)
