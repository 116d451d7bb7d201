"""`Embedder`: sentences in, arrays out, in input order, from a list or an endless stream, in bounded memory.

Sentences are read a window at a time, sorted by length within it and cut into batches by a budget of tokens, so that
little is padding. Which sentences share a window depends on the input alone, so a run that goes on after a cut gives
the same bits as one that was never cut.

A GPU is never waited for before it has more to do: its batches are enqueued, their vectors reduced and cast there and
copied into pinned memory, and the host cuts those of a batch into sentences while the next ones are computed.

Shapes: B sentences, T tokens, P projection, D width of a layer, L layers, N distinct words or tokens.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import operator
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypedDict, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.chars import BOS, EOS, model_ids, refuse_string
from elmo.config import ModelConfig
from elmo.engine import Engine, EngineName, Precision, make_engine
from elmo.engine.precision import Precision as Resolved
from elmo.errors import ElmoError
from elmo.formats.bundle import Bundle, Network, empty_bilm, fill_bilm
from elmo.model import BiLMOutput, ScalarMix, State, weight_shapes
from elmo.transfer import HostCopy, to_device, usable_device
from elmo.word_cache import WordCache

Layers = Literal["all", "average", "top", "mix"] | int | Sequence[int]
Pool = Literal["mean", "max"]
StateMode = Literal["zero", "carry", "warm"]
DType = Literal["float32", "float16"]
Vectors = NDArray[np.floating[Any]]
Sentence = str | Sequence[str]

Int64s = NDArray[np.int64]
Answer = Callable[[], list[Vectors]]
"""The vectors of a batch, an array a sentence, waiting for them if need be."""


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What suits a kind of device. Nothing in it may depend on the machine's state: a resumed run must do the same."""

    batch_tokens: int
    batch_rows: int
    """At most: a row costs a state, however short it is."""
    window_bytes: int
    """Vectors held until their turn comes."""
    window_batches: int
    cache_bytes: int
    """Word vectors kept over the whole run."""
    ahead: int
    """Batches that are enqueued before the vectors of an earlier one are waited for; 0: computed in the call."""


_CPU = _Limits(batch_tokens=2**11, batch_rows=2**11, window_bytes=2**24, window_batches=16, cache_bytes=2**25, ahead=0)
_GPU = _Limits(batch_tokens=2**14, batch_rows=2**11, window_bytes=2**31, window_batches=4, cache_bytes=2**28, ahead=2)

_CACHE_BYTES_A_WORD = 256  # what a word costs there beside its vector: its string and its place in the order
_CUT_AT_ONCE = 64  # sentences whose vectors, from a GPU, share memory
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
    batch_tokens: int | None = None
    """Tokens in a batch, padding included; by the device if not given: 2048 on a CPU, 16384 on a GPU."""
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
            value = getattr(self, name)
            if name == "batch_tokens" and value is None:
                continue
            if type(value) is not int or value < 1:
                raise ElmoError(f"{name} is {value!r}: give a whole number, 1 or more")

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
    batch_tokens: int | None
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
        self._limits = _CPU if self.device.type == "cpu" else _GPU
        self.batch_tokens = settings.batch_tokens or self._limits.batch_tokens
        self.layers = settings.layer_numbers(self.config.n_layers)
        self._mix = copy.deepcopy(bundle.mix or ScalarMix(self.config.n_layers)).to(self.device)
        self._vocab = bundle.words if self.config.n_words is not None else None
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
        self.cache = WordCache(max(1, self._limits.cache_bytes // word_bytes), self._encode)

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
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        if self._vocab is not None:
            digest.update("\n".join(self._vocab).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def embed(self, sentences: Iterable[Sentence]) -> list[Vectors]:
        """Embed sentences, all of which are there, without a GPU's waiting between windows: one array a sentence.

        A sentence is a list of tokens, or a string that is split at white space.
        """
        refuse_string(sentences)
        vectors: list[Vectors] = []
        for window in self.windows(map(as_tokens, sentences), ahead=True):
            vectors += window.vectors
        return vectors

    def embed_iter(self, sentences: Iterable[Sentence]) -> Iterator[Vectors]:
        """Embed sentences lazily, in order: one array a sentence.

        A sentence is a list of tokens, or a string that is split at white space.
        """
        refuse_string(sentences)
        return self._one_by_one(sentences)

    def _one_by_one(self, sentences: Iterable[Sentence]) -> Iterator[Vectors]:
        for window in self.windows(map(as_tokens, sentences)):
            vectors = window.vectors[::-1]
            del window  # what was taken is not held while the next window is computed
            while vectors:
                yield vectors.pop()

    def windows(self, sentences: Iterable[list[str]], *, ahead: bool = False) -> Iterator[Window]:
        """Embed sentences, given as tokens, window after window.

        Args:
            sentences: from a list or a stream.
            ahead: read and begin a window before the one before it is given back. A GPU need not wait then, but a
                stream would: what was read of it is not answered before more of it has come.
        """
        state: State | None = None
        started: deque[_Started] = deque()
        for group in self.groups(sentences):
            started.append(self._start(group, state, started[0] if started else None))
            state = started[-1].state
            if len(started) > (1 if ahead else 0):
                yield started.popleft().window()
        while started:
            yield started.popleft().window()

    def groups(self, sentences: Iterable[list[str]]) -> Iterator[list[list[str]]]:
        """Cut a stream into what is embedded together: a batch of rows where the state is carried, else a window.

        The first windows are small, so that a slow stream is answered soon.
        """
        if self.settings.state == "carry":
            yield from _by_count(sentences, self.settings.batch_size)
            return
        per_token = self.config.dim * len(self.layers) * 4
        held = self._limits.window_bytes // (per_token * self.batch_tokens)
        most = max(1, min(self._limits.window_batches, held))
        group: list[list[str]] = []
        tokens, batches = 0, 1
        for sentence in sentences:
            group.append(sentence)
            tokens += len(sentence) + 2
            if tokens >= self.batch_tokens * batches:
                yield group
                group, tokens, batches = [], 0, min(2 * batches, most)
        if group:
            yield group

    def embed_group(self, group: list[list[str]], state: State | None = None) -> Window:
        """Embed what `groups` cut; `state` is that of the window before, where the state is carried."""
        return self._start(group, state).window()

    def remember(self, group: list[list[str]], new_words: Tensor) -> None:
        """Bring the cache to where embedding this window brought it, from the word vectors that were new in it.

        What a product gives depends, in its last bits, on what it is computed together with: a run that goes on
        after a cut must not encode again, in other company, words that were encoded before.
        """
        with torch.inference_mode():
            self.cache.vectors(_Numbered.of(group).words, new_words.to(self.device))

    def _start(self, group: list[list[str]], state: State | None, before: _Started | None = None) -> _Started:
        """Enqueue the batches of a window, taking the vectors of earlier ones, of the window `before` too, meanwhile.

        Where the state is carried, each sentence starts from its row of `state`; else all start alike, and what they
        leave is dropped.
        """
        numbered = _Numbered.of(group)
        carry = self.settings.state == "carry"
        with torch.inference_mode():
            table_NP, new_words = self.cache.vectors(numbered.words)
            started = _Started(group, new_words)
            if not carry and self._begun is None:
                self._begun = self._begin()
            nothing = self.zero_state(0)
            carried = nothing if state is None else state.to(nothing.m)
            ends, order = [nothing], [np.zeros(0, dtype=np.int64)]
            for batch in self._batches(numbered.lengths):
                start = carried.take(len(group)).rows_at(to_device(batch, self.device)) if carry else self._begun
                places_BT = torch.from_numpy(numbered.places(batch, boundaries=carry))
                output = self._engine.contextualise(table_NP, places_BT, start, layers=self.layers)
                started.add(batch, self._answer(output.layers, numbered.lengths[batch], first=1 if carry else 0))
                if carry:
                    ends.append(output.state)
                    order.append(batch)
                del output  # the next batch may have its memory
                if before is not None:
                    before.take()
                started.take(leave=self._limits.ahead)
            if carry:
                in_order = to_device(np.argsort(np.concatenate(order)), self.device)
                started.state = carried.put(State.join(ends).rows_at(in_order))
            return started

    def batches(self, group: list[list[str]]) -> Iterator[list[int]]:
        """Places of the sentences of each batch, longest first: rows times the longest stay within the budget."""
        return (batch.tolist() for batch in self._batches(_lengths(group)))

    def _batches(self, lengths: Int64s) -> Iterator[Int64s]:
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            rows = max(1, self.batch_tokens // max(1, int(lengths[order[start]])))
            rows = min(rows, self._limits.batch_rows)
            yield order[start : start + rows]
            start += rows

    def _begin(self) -> State:
        """The state, of one row, behind the boundary that each direction meets first, where all start alike.

        Nobody asks what the last boundary gives, so no sentence need run over either: 2 tokens of about 20 saved. The
        two are encoded by themselves: a vector's last bits may depend on those that are computed with it, and what
        every sentence starts from must not depend on which came first.
        """
        both = torch.tensor([[_BOS], [_EOS]])  # a row for each
        table_2P = self._encode([BOS, EOS])
        end = self._engine.contextualise(table_2P, both, self.start_state(), layers=self.layers).state
        m, c = (torch.stack([part[:, 0, :1], part[:, 1, 1:]], dim=1) for part in (end.m, end.c))
        return State(m, c)

    def contextualise(self, rows: list[list[str]], state: State) -> BiLMOutput:
        """Run the biLM over rows of tokens as they are given; boundaries are the caller's.

        The layers of the settings come out, `(L, B, T, D)`, and the state that each row leaves.

        Args:
            rows: B lists of tokens; `<S>` and `</S>` are the boundaries.
            state: what to start from, of B rows, or of one for all.
        """
        numbered = _Numbered.of(rows)
        places_BT = numbered.places(np.arange(len(rows)))
        with torch.inference_mode():
            table_NP, _ = self.cache.vectors(numbered.words)
            return self._engine.contextualise(table_NP, torch.from_numpy(places_BT), state, layers=self.layers)

    def start_state(self) -> State:
        """What a sentence with nothing before it starts from, one row: zeros, or the model's stored state."""
        return self.zero_state(1) if self._warm is None else self._warm

    def zero_state(self, rows: int) -> State:
        """The state of rows that have read nothing, where the model is computed."""
        like = next(self._network.bilm.parameters()).detach() if self._network.loaded else None
        return State.zeros(self.config, rows, like)

    def _answer(self, layers_LBTD: Tensor, lengths: Int64s, first: int) -> Answer:
        """The vectors of sentences that begin at step `first` of their rows, when they are there."""
        if self._limits.ahead:
            return self._answer_from_device(layers_LBTD, lengths, first)
        reduced: NDArray[np.float32] = self._reduce(layers_LBTD).numpy()
        vectors = [self._pool(reduced[..., i, first : first + n, :]) for i, n in enumerate(lengths.tolist())]
        return lambda: vectors

    def _answer_from_device(self, layers_LBTD: Tensor, lengths: Int64s, first: int) -> Answer:
        """The same, with all but the cutting done there: what is copied is a vector a token, or a sentence."""
        reduced = self._reduce(layers_LBTD)
        dtype = torch.float16 if self.settings.dtype == "float16" else torch.float32
        steps = np.arange(reduced.shape[-2]) - first
        real_BT = (steps >= 0) & (steps < lengths[:, None])
        if self.settings.pool is not None:
            pooled = HostCopy(_pooled(reduced, real_BT, self.settings.pool).to(dtype))
            # Copies in every case: a view would keep the whole batch alive.
            return lambda: [vectors.copy() for vectors in np.moveaxis(pooled.wait().numpy(), -2, 0)]
        where_N = to_device(np.flatnonzero(real_BT), reduced.device)
        tokens = HostCopy(reduced.to(dtype).flatten(-3, -2).index_select(-2, where_N))
        ends = np.cumsum(lengths).tolist()

        def cut() -> list[Vectors]:
            flat, spans, vectors = tokens.wait().numpy(), list(zip([0, *ends], ends, strict=False)), []
            for at in range(0, len(spans), _CUT_AT_ONCE):
                some = spans[at : at + _CUT_AT_ONCE]
                begin = some[0][0]
                # Copies, since a view would keep the whole batch alive, but of some sentences together: small pieces
                # of new memory cost eight times as much.
                copied = flat[..., begin : some[-1][1], :].copy()
                vectors += [copied[..., start - begin : end - begin, :] for start, end in some]
            return vectors

        return cut

    def _reduce(self, layers_LBTD: Tensor) -> Tensor:
        """The layers that come out: `(L, B, T, D)`, or `(B, T, D)` where one comes out."""
        if self.settings.layers == "mix":
            mixed: Tensor = self._mix(layers_LBTD)
            return mixed.float()
        layers = layers_LBTD.float()
        if self.settings.layers == "average":
            # Not PyTorch's on a CPU: it would take all threads for so little.
            return layers.mean(dim=0) if layers.is_cuda else torch.from_numpy(layers.cpu().numpy().mean(axis=0))
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
        return self._engine.encode(to_device(model_ids(words, self.config, self._vocab), self.device))


class _Started:
    """A window on its way: of its batches, some are answered and some still computed."""

    def __init__(self, group: list[list[str]], new_words: Tensor) -> None:
        self.state: State | None = None
        self._group = group
        self._new_words = new_words
        self._vectors: list[Vectors | None] = [None] * len(group)
        self._waiting: deque[tuple[Int64s, Answer]] = deque()

    def add(self, batch: Int64s, answer: Answer) -> None:
        """Expect the vectors of the sentences at some places."""
        self._waiting.append((batch, answer))

    def take(self, leave: int = 0) -> None:
        """Take the vectors of all batches but the last few, waiting for them."""
        while len(self._waiting) > leave:
            batch, answer = self._waiting.popleft()
            for place, vectors in zip(batch.tolist(), answer(), strict=True):
                self._vectors[place] = vectors

    def window(self) -> Window:
        """The whole, when it is there."""
        self.take()
        return Window(self._group, cast(list[Vectors], self._vectors), self._new_words, self.state)


@dataclass(frozen=True)
class _Numbered:
    """Sentences as numbers."""

    words: list[str]
    """The distinct words; the boundaries are the first two."""
    tokens: Int64s
    """`(N,)`, which of them each token is, one sentence after the other."""
    lengths: Int64s
    """`(B,)`."""

    @classmethod
    def of(cls, sentences: list[list[str]]) -> _Numbered:
        """Number the words in the order in which they are met."""
        numbers: defaultdict[str, int] = defaultdict(itertools.count(2).__next__, {BOS: _BOS, EOS: _EOS})
        lengths = _lengths(sentences)
        tokens = itertools.chain.from_iterable(sentences)
        tokens_N = np.fromiter(map(numbers.__getitem__, tokens), dtype=np.int64, count=int(lengths.sum()))
        return cls(list(numbers), tokens_N, lengths)

    def places(self, rows: Int64s, *, boundaries: bool = False) -> Int64s:
        """Some of the sentences as an engine reads them, `(B, T)`, with the boundaries or without; -1 behind."""
        lengths = self.lengths[rows]
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        first = 1 if boundaries else 0
        steps = np.arange(lengths.max(initial=0))
        real_BT = steps < lengths[:, None]
        places_BT = np.full((len(rows), len(steps) + 2 * first), -1, dtype=np.int64)
        places_BT[:, first : first + len(steps)][real_BT] = self.tokens[(starts[:, None] + steps)[real_BT]]
        if boundaries:
            places_BT[:, 0] = _BOS
            places_BT[np.arange(len(rows)), lengths + 1] = _EOS
        return places_BT


def _pooled(reduced: Tensor, real_BT: NDArray[np.bool_], pool: Pool) -> Tensor:
    """The mean or the largest over the real tokens of each row, `(..., B, T, D)` to `(..., B, D)`; zeros of none."""
    if real_BT.shape[1] == 0:
        return reduced.new_zeros(*reduced.shape[:-2], reduced.shape[-1])
    padding_BT1 = to_device(~real_BT, reduced.device)[..., None]
    counts_B1 = to_device(real_BT.sum(axis=1), reduced.device)[:, None]
    if pool == "mean":
        return reduced.masked_fill(padding_BT1, 0).sum(dim=-2) / counts_B1.clamp_min(1)
    return reduced.masked_fill(padding_BT1, -torch.inf).amax(dim=-2).masked_fill(counts_B1 == 0, 0)


def _lengths(sentences: list[list[str]]) -> Int64s:
    return np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))


def as_tokens(sentence: Sentence) -> list[str]:
    """The tokens of a sentence: a string is split at white space."""
    if isinstance(sentence, str):
        return sentence.split()
    if not isinstance(sentence, Sequence) or not (
        set(map(type, sentence)) <= {str} or all(isinstance(token, str) for token in sentence)  # the first is fast
    ):
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
    there = here if device is None else usable_device(device)
    if there.type == here.type and there.index in (None, here.index):
        return network
    weights = {name: weight.to(there) for name, weight in network.bilm.state_dict().items()}
    return Network(network.config, bilm=fill_bilm(empty_bilm(network.config), weights))
