"""`Embedder`: sentences in, arrays out, in input order, from a list or an endless stream, in bounded memory.

Sentences are read a window at a time, sorted by length within it and cut into batches by a budget of tokens, so that
little is padding. Which sentences share a window depends on the input alone, so a run that goes on after a cut gives
the same bits as one that was never cut.

Shapes: B sentences, T tokens, P projection, D width of a layer, L layers, N distinct words.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypedDict, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.chars import BOS, EOS, words_to_ids
from elmo.config import ModelConfig
from elmo.engine import Engine, EngineName, Precision, make_engine
from elmo.engine.precision import Precision as Resolved
from elmo.errors import ElmoError
from elmo.formats.bundle import Bundle, Network, empty_bilm, fill_bilm
from elmo.model import BiLMOutput, ScalarMix, State, weight_shapes

Layers = Literal["all", "average", "top", "mix"] | int | Sequence[int]
Pool = Literal["mean", "max"]
StateMode = Literal["zero", "carry", "warm"]
DType = Literal["float32", "float16"]
Vectors = NDArray[np.floating[Any]]
Sentence = str | Sequence[str]

_WINDOW_BYTES = 2**24  # vectors held until their turn comes
_WINDOW_BATCHES = 16
_CACHE_BYTES = 2**25  # word vectors kept over the whole run
_CACHE_BYTES_A_WORD = 256  # what a word costs there beside its vector: its string and its place in the order


_BOS, _EOS = 0, 1  # the boundaries' places among the distinct words of a window

_NAMED_LAYERS = ("all", "average", "top", "mix")
_LAYERS_ALLOWED = f"give one of {', '.join(_NAMED_LAYERS)}, a layer's number or a list of numbers"


@dataclass(frozen=True, kw_only=True)
class EmbedSettings:
    """Everything that decides what the vectors are; two runs with the same settings give the same file."""

    layers: Layers = "average"
    """"all", "average", "top", "mix" (the model's learned mix), one layer's number, or a list of numbers."""
    pool: Pool | None = None
    """One vector a sentence instead of one a token: "mean" or "max" over its tokens (zeros if it has none)."""
    precision: Precision = "fp32"
    """Of the arithmetic: "fp32" gives the published numbers; "bf16" (where the CPU has it) and "int8" are faster and
    close; "auto" takes the fastest that is as good as the published numbers for any task."""
    state: StateMode = "zero"
    """What a sentence starts from: nothing; the row's sentence of the batch before; the model's stored state."""
    dtype: DType = "float32"
    """Of the vectors that come out."""
    batch_tokens: int = 2048
    """Tokens in a batch, padding included (states "zero" and "warm")."""
    batch_size: int = 64
    """Rows of a batch where the state is carried."""
    engine: EngineName = "auto"
    """"reference" takes the readable network instead of the fast one (which "auto" takes for all but small models)."""

    def __post_init__(self) -> None:
        """Refuse what is not known, by name."""
        object.__setattr__(self, "layers", _layers(self.layers))
        for name, choices in (
            ("pool", (None, *get_args(Pool))),
            ("precision", get_args(Precision)),
            ("state", get_args(StateMode)),
            ("dtype", get_args(DType)),
            ("engine", get_args(EngineName)),
        ):
            value = getattr(self, name)
            if (value is not None and not isinstance(value, str)) or value not in choices:
                allowed = ", ".join("none" if choice is None else choice for choice in choices)
                raise ElmoError(f"{name} is {value!r}: give one of {allowed}")
        for name in ("batch_tokens", "batch_size"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ElmoError(f"{name} is {getattr(self, name)!r}: give a whole number, 1 or more")

    @property
    def runs_on(self) -> tuple[str, str]:
        """What decides the engine: settings that agree in it can share one."""
        return self.precision, self.engine

    def layer_numbers(self, n_layers: int) -> tuple[int, ...]:
        """The layers that must be computed in a model of `n_layers`."""
        if isinstance(self.layers, str):
            return (n_layers - 1,) if self.layers == "top" else tuple(range(n_layers))
        numbers = (self.layers,) if isinstance(self.layers, int) else tuple(self.layers)
        if not numbers or not all(0 <= number < n_layers for number in numbers):
            raise ElmoError(f"layers is {self.layers!r}: {_LAYERS_ALLOWED}, from 0 to {n_layers - 1}")
        return numbers


class EmbedOptions(TypedDict, total=False):
    """The fields of `EmbedSettings` as keyword arguments."""

    layers: Layers
    pool: Pool | None
    precision: Precision
    state: StateMode
    dtype: DType
    batch_tokens: int
    batch_size: int
    engine: EngineName


@dataclass(frozen=True)
class Window:
    """Sentences that were embedded together."""

    sentences: list[list[str]]
    vectors: list[Vectors]
    """One array a sentence: `(T, D)`, `(L, T, D)` for several layers; `(D,)`, `(L, D)` where pooled."""
    new_words: Tensor
    """`(N, P)`, the vectors of words that had to be encoded for it."""
    state: State | None
    """What the next window starts from, where the state is carried."""


class Embedder:
    """Embeds sentences with fixed settings; keeps the vectors of frequent words between calls."""

    def __init__(
        self,
        bundle: Bundle,
        settings: EmbedSettings,
        *,
        device: str | torch.device | None = None,
        like: Embedder | None = None,
    ) -> None:
        """Get ready to embed with a model.

        Args:
            bundle: the model, such as what `elmo.load` returns.
            settings: what to compute.
            device: where to compute it; where the model is if not given. A model elsewhere is copied there.
            like: an embedder of the same weights and device, whose engine will do if it has the precision.
        """
        self.settings = settings
        self._engine: Engine
        self.precision: Resolved
        self._network: Network = _on_device(bundle.network, device) if like is None else like._network
        self.device = _device(self._network)
        self.layers = settings.layer_numbers(self.config.n_layers)
        self._mix = copy.deepcopy(bundle.mix or ScalarMix(self.config.n_layers)).to(self.device)
        self._vocab = bundle.words if self.config.char_cnn is None else None
        self._warm: State | None = None
        self._begun: State | None = None
        if settings.state == "warm":
            if bundle.warm is None:
                raise ElmoError(
                    "this model has no warm start state: make one with 'elmo convert IN OUT --warm-with TEXT'"
                )
            self._warm = bundle.warm.to(self.zero_state(0).m)
        if like is not None and like.settings.runs_on == settings.runs_on:
            self._engine, self.precision = like._engine, like.precision
        else:
            self._engine, self.precision = make_engine(self._network, settings.precision, settings.engine)
        word_bytes = 4 * self.config.lstm.projection_dim + _CACHE_BYTES_A_WORD
        self.cache = WordCache(max(1, _CACHE_BYTES // word_bytes), self._encode)

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self._network.config

    def digest(self) -> str:
        """A fingerprint of all that the vectors are made of, the settings apart."""
        digest = hashlib.sha256(json.dumps(self.config.to_options(), sort_keys=True).encode())
        parts = [*self._mix.state_dict().values()] if self.settings.layers == "mix" else []
        parts += [self._warm.m, self._warm.c] if self._warm is not None else []
        weights = (self._network.read(name) for name in weight_shapes(self.config))
        for tensor in itertools.chain(weights, parts):
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        if self._vocab is not None:
            digest.update("\n".join(self._vocab).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def embed_iter(self, sentences: Iterable[Sentence]) -> Iterator[Vectors]:
        """Embed sentences lazily, in order: one array a sentence.

        A sentence is a list of tokens, or a string that is split at white space.
        """
        for window in self.windows(map(as_tokens, sentences)):
            vectors = window.vectors[::-1]
            del window  # what was taken is not held while the next window is computed
            while vectors:
                yield vectors.pop()

    def windows(self, sentences: Iterable[list[str]]) -> Iterator[Window]:
        """Embed sentences, given as tokens, window after window."""
        state: State | None = None
        for group in self.groups(sentences):
            window = self.embed_group(group, state)
            state = window.state
            yield window
            del window

    def groups(self, sentences: Iterable[list[str]]) -> Iterator[list[list[str]]]:
        """Cut a stream into what is embedded together: a batch of rows where the state is carried, else a window.

        The first windows are small, so that a slow stream is answered soon.
        """
        if self.settings.state == "carry":
            yield from _by_count(sentences, self.settings.batch_size)
            return
        per_token = self.config.dim * len(self.layers) * 4
        most = max(1, min(_WINDOW_BATCHES, _WINDOW_BYTES // (per_token * self.settings.batch_tokens)))
        group: list[list[str]] = []
        tokens, batches = 0, 1
        for sentence in sentences:
            group.append(sentence)
            tokens += len(sentence) + 2
            if tokens >= self.settings.batch_tokens * batches:
                yield group
                group, tokens, batches = [], 0, min(2 * batches, most)
        if group:
            yield group

    def embed_group(self, group: list[list[str]], state: State | None = None) -> Window:
        """Embed what `groups` cut; `state` is that of the window before, where the state is carried."""
        types = _types(group)
        with torch.inference_mode():
            table, new_words = self.cache.vectors(list(types))
            if self.settings.state != "carry":
                vectors, _ = self._embed_batches(group, types, table, None)
                return Window(group, vectors, new_words, None)
            nothing = self.zero_state(0)
            carried = nothing if state is None else state.to(nothing.m)
            vectors, ends = self._embed_batches(group, types, table, carried.take(len(group)))
            return Window(group, vectors, new_words, carried.put(ends))

    def remember(self, group: list[list[str]], new_words: Tensor) -> None:
        """Bring the cache to where embedding this window brought it, from the word vectors that were new in it.

        What a product gives depends, in its last bits, on what it is computed together with: a run that goes on
        after a cut must not encode again, in other company, words that were encoded before.
        """
        with torch.inference_mode():
            self.cache.vectors(list(_types(group)), new_words.to(self.device))

    def _embed_batches(
        self, group: list[list[str]], types: dict[str, int], table_NP: Tensor, starts: State | None
    ) -> tuple[list[Vectors], State]:
        """Embed sentences batch by batch: their vectors, and the state that each leaves.

        Each starts from its row of `starts`; where there are none, all start alike, and what they leave is dropped.
        """
        vectors: dict[int, Vectors] = {}
        ends = [self.zero_state(0)]
        if starts is None and self._begun is None:
            self._begun = self._begin(table_NP)
        for batch in self.batches(group):
            sentences = [group[i] for i in batch]
            if starts is not None:
                embedded, end = self._embed_batch(sentences, types, table_NP, starts.rows_at(batch), boundaries=True)
                ends.append(end)
            else:
                assert self._begun is not None
                embedded, _ = self._embed_batch(sentences, types, table_NP, self._begun)
            vectors.update(zip(batch, embedded, strict=True))
        joined = State.join(ends)
        if starts is not None:
            order = list(vectors)  # as they were embedded
            joined = joined.rows_at(sorted(range(len(order)), key=order.__getitem__))
        return [vectors[i] for i in range(len(group))], joined

    def batches(self, group: list[list[str]]) -> Iterator[list[int]]:
        """Places of the sentences of each batch, longest first: rows times the longest stay within the budget."""
        order = sorted(range(len(group)), key=lambda i: -len(group[i]))
        start = 0
        while start < len(order):
            rows = max(1, self.settings.batch_tokens // max(1, len(group[order[start]])))
            yield order[start : start + rows]
            start += rows

    def _begin(self, table_NP: Tensor) -> State:
        """The state, of one row, behind the boundary that each direction meets first, where all start alike.

        Nobody asks what the last boundary gives, so no sentence need run over either: 2 tokens of about 20 saved.
        """
        both = torch.tensor([[_BOS], [_EOS]], device=self.device)  # a row for each
        end = self._engine.contextualise(table_NP[:2], both, self.start_state(), layers=self.layers).state
        m, c = (torch.stack([part[:, 0, :1], part[:, 1, 1:]], dim=1) for part in (end.m, end.c))
        return State(m, c)

    def _embed_batch(
        self,
        sentences: list[list[str]],
        types: dict[str, int],
        table_NP: Tensor,
        state: State,
        *,
        boundaries: bool = False,
    ) -> tuple[list[Vectors], State]:
        first = 1 if boundaries else 0
        rows = [[BOS, *sentence, EOS] for sentence in sentences] if boundaries else sentences
        output = self._run(rows, types, table_NP, state)
        reduced = self._reduce(output.layers)
        return [self._pool(reduced[..., i, first : first + len(s), :]) for i, s in enumerate(sentences)], output.state

    def _run(self, rows: list[list[str]], types: dict[str, int], table_NP: Tensor, state: State) -> BiLMOutput:
        places_BT = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int64)
        for places, words in zip(places_BT, rows, strict=True):
            places[: len(words)] = [types[word] for word in words]
        return self._engine.contextualise(
            table_NP, torch.from_numpy(places_BT).to(self.device), state, layers=self.layers
        )

    def contextualise(self, rows: list[list[str]], state: State) -> BiLMOutput:
        """Run the biLM over rows of tokens as they are given; boundaries are the caller's.

        The layers of the settings come out, `(L, B, T, D)`, and the state that each row leaves.

        Args:
            rows: B lists of tokens; `<S>` and `</S>` are the boundaries.
            state: what to start from, of B rows, or of one for all.
        """
        types = _types(rows)
        with torch.inference_mode():
            table_NP, _ = self.cache.vectors(list(types))
            return self._run(rows, types, table_NP, state)

    def start_state(self) -> State:
        """What a sentence with nothing before it starts from, one row: zeros, or the model's stored state."""
        return self.zero_state(1) if self._warm is None else self._warm

    def zero_state(self, rows: int) -> State:
        """The state of rows that have read nothing, where the model is computed."""
        like = next(self._network.bilm.parameters()).detach() if self._network.loaded else None
        return State.zeros(self.config, rows, like)

    def _reduce(self, layers_LBTD: Tensor) -> NDArray[np.float32]:
        """The layers that come out: `(L, B, T, D)`, or `(B, T, D)` where one comes out."""
        if self.settings.layers == "mix":
            mixed: Tensor = self._mix(layers_LBTD)
            return mixed.float().cpu().numpy()
        layers: NDArray[np.float32] = layers_LBTD.float().cpu().numpy()
        if self.settings.layers == "average":
            average: NDArray[np.float32] = layers.mean(axis=0)
            return average
        return layers[0] if isinstance(self.settings.layers, int) or self.settings.layers == "top" else layers

    def _pool(self, vectors: NDArray[np.float32]) -> Vectors:
        if self.settings.pool is not None:
            if vectors.shape[-2] == 0:
                vectors = np.zeros(vectors.shape[:-2] + vectors.shape[-1:], dtype=np.float32)
            else:
                vectors = vectors.max(axis=-2) if self.settings.pool == "max" else vectors.mean(axis=-2)
        # A copy in every case: a view would keep the whole batch alive.
        return vectors.astype(self.settings.dtype, copy=True)

    def _encode(self, words: list[str]) -> Tensor:
        """Vectors of words without their context, `(N, P)`."""
        if self.config.char_cnn is None:
            assert self._vocab is not None  # seen to in __init__
            ids = np.asarray(self._vocab.ids(words), dtype=np.int32) + 1
        else:
            ids = words_to_ids(words, self.config.char_cnn.max_characters_per_token)
        return self._engine.encode(torch.from_numpy(ids).to(self.device))


class WordCache:
    """Vectors of the words met last, in one table of fixed size: a word's characters are encoded once, not per use."""

    _LONGEST_WORD = 64  # characters; a longer word is rare, and as a key it would cost memory without bound

    def __init__(self, capacity: int, encode: Callable[[list[str]], Tensor]) -> None:
        """Keep at most `capacity` words; `encode` makes `(N, P)` vectors of N words."""
        self._encode = encode
        self._capacity = capacity
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._table_NP: Tensor | None = None
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def clear(self) -> None:
        """Forget all words."""
        with self._lock:
            self._slots.clear()
            self._table_NP = None
            self.hits = 0
            self.misses = 0

    def vectors(self, words: list[str], new_words: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Vectors of distinct words, `(N, P)`, and those of them that were not here, encoded unless they are given."""
        with self._lock:
            return self._vectors(words, new_words)

    def _vectors(self, words: list[str], new_words: Tensor | None) -> tuple[Tensor, Tensor]:
        known = [i for i, word in enumerate(words) if word in self._slots]
        new = [i for i, word in enumerate(words) if word not in self._slots]
        self.hits += len(known)
        self.misses += len(new)
        if new_words is None:
            new_words = self._encode([words[i] for i in new])
        # index_copy_ and index_select, not brackets: these take all threads even for a few rows, which then keep the
        # cores busy for milliseconds in waiting for more.
        result = new_words.new_empty(len(words), new_words.shape[1])
        result.index_copy_(0, _index(new, result), new_words)
        if known:
            result.index_copy_(0, _index(known, result), self._lookup([words[i] for i in known]))
        self._store([(words[i], row) for row, i in enumerate(new)], new_words)
        return result, new_words

    def _lookup(self, words: list[str]) -> Tensor:
        assert self._table_NP is not None
        for word in words:
            self._slots.move_to_end(word)
        return self._table_NP.index_select(0, _index([self._slots[word] for word in words], self._table_NP))

    def _store(self, words: list[tuple[str, int]], encoded_NP: Tensor) -> None:
        kept = [(word, row) for word, row in words if len(word) <= self._LONGEST_WORD][-self._capacity :]
        slots = []
        for word, _ in kept:
            full = len(self._slots) >= self._capacity
            slots.append(self._slots.popitem(last=False)[1] if full else len(self._slots))
            self._slots[word] = slots[-1]
        if self._table_NP is None:
            self._table_NP = encoded_NP.new_empty(self._capacity, encoded_NP.shape[1])
        rows = encoded_NP.index_select(0, _index([row for _, row in kept], encoded_NP))
        self._table_NP.index_copy_(0, _index(slots, rows), rows)


def _index(places: list[int], like: Tensor) -> Tensor:
    return torch.tensor(places, dtype=torch.long, device=like.device)


def as_tokens(sentence: Sentence) -> list[str]:
    """The tokens of a sentence: a string is split at white space."""
    if isinstance(sentence, str):
        return sentence.split()
    if not isinstance(sentence, Sequence) or not all(isinstance(token, str) for token in sentence):
        raise ElmoError(f"a sentence is a string or a list of strings, not {sentence!r:.80}")
    return list(sentence)


def _layers(layers: object) -> Layers:
    """Layers as a name, a number or a tuple of numbers, whatever kind of number or list was given."""
    if isinstance(layers, str):
        if layers in _NAMED_LAYERS:
            return cast(Layers, layers)
    else:
        with contextlib.suppress(TypeError):
            return operator.index(cast(SupportsIndex, layers))
        with contextlib.suppress(TypeError):
            return tuple(operator.index(number) for number in cast(Iterable[SupportsIndex], layers))
    raise ElmoError(f"layers is {layers!r:.50}: {_LAYERS_ALLOWED}")


def _types(group: list[list[str]]) -> dict[str, int]:
    """The distinct words of a window, numbered; the boundaries are the first two."""
    types: dict[str, int] = {BOS: _BOS, EOS: _EOS}
    for sentence in group:
        for word in sentence:
            types.setdefault(word, len(types))
    return types


def _by_count(sentences: Iterable[list[str]], count: int) -> Iterator[list[list[str]]]:
    group: list[list[str]] = []
    for sentence in sentences:
        group.append(sentence)
        if len(group) == count:
            yield group
            group = []
    if group:
        yield group


def _device(network: Network) -> torch.device:
    return next(network.bilm.parameters()).device if network.loaded else torch.device("cpu")


def _on_device(network: Network, device: str | torch.device | None) -> Network:
    here = _device(network)
    try:
        there = here if device is None else torch.device(device)
        if there.type == here.type and there.index in (None, here.index):
            return network
        torch.zeros(1, device=there).item()  # some devices, such as "meta", can be named but not computed on
        weights = {name: weight.to(there) for name, weight in network.bilm.state_dict().items()}
    except (RuntimeError, AssertionError, TypeError) as error:  # torch's own words for a device that it does not have
        raise ElmoError(f"device is {str(device)!r}, which cannot be used here: {error}") from error
    return Network(network.config, bilm=fill_bilm(empty_bilm(network.config), weights))
