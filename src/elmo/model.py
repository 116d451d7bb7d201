"""The model of "Deep contextualized word representations" (Peters et al., 2018), in the order of its section 3.

`CharEncoder` makes a word's vector from its characters, `BiLM` puts two stacks of LSTMs on it, `ScalarMix` makes the
ELMo vector from the layers, `Elmo` puts that into a task model. No files, no devices, no optimizers here.

Shapes: B sentences, T tokens, C characters of a word, N words, P projection, D = 2 * P, L layers (the word layer
included), K LSTM layers (L - 1), 2 directions (forward, backward).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmo.chars import BOS, EOS, boundary_row
from elmo.config import N_MARKS, CharCNNConfig, ModelConfig
from elmo.errors import ElmoError
from elmo.lstm import ProjectedLSTM, reverse

LayerNorm = Literal["bilm-tf", "allennlp"]

_HIGHWAY = ("carry", "transform")
_CONV_BUFFER = 2**23  # outputs of the widest convolution at a time: 32 MB in float32, however many words come


class Highway(nn.Module):
    """`g * relu(x W_transform) + (1 - g) * x` with `g = sigmoid(x W_carry)`."""

    def __init__(self, dim: int) -> None:
        """Start with the gate nearly closed, so that the input passes."""
        super().__init__()
        self.carry = nn.Linear(dim, dim)
        self.transform = nn.Linear(dim, dim)
        for linear in (self.carry, self.transform):
            nn.init.normal_(linear.weight, std=dim**-0.5)
        nn.init.constant_(self.carry.bias, -2.0)
        nn.init.zeros_(self.transform.bias)

    def forward(self, x_NF: Tensor) -> Tensor:
        """Keep the shape `(N, F)`."""
        gate = torch.sigmoid(self.carry(x_NF))
        return gate * F.relu(self.transform(x_NF)) + (1 - gate) * x_NF


class CharEncoder(nn.Module):
    """Character convolutions, maximum over positions, highways, projection: a word's vector without its context.

    Some models have a table of `n_words` frequent words beside the filters.
    """

    def __init__(self, config: CharCNNConfig, projection_dim: int, n_words: int | None = None) -> None:
        """Start as bilm-tf does."""
        super().__init__()
        self.n_characters = config.max_characters_per_token
        # Row 0 is the mask id's: zero, and kept so by padding_idx.
        self.characters = nn.Embedding(config.n_symbols + N_MARKS + 1, config.embedding_dim, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_dim, number, width) for width, number in config.filters
        )
        self.activation = F.relu if config.activation == "relu" else torch.tanh
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))
        self.words = nn.Embedding(n_words + 1, config.word_dim, padding_idx=0) if n_words is not None else None
        projected = config.has_projection(projection_dim)
        self.projection = nn.Linear(config.width, projection_dim) if projected else None
        widest = max(number * (config.max_characters_per_token - width + 1) for width, number in config.filters)
        self._words_at_once = max(1, _CONV_BUFFER // widest)
        self._initialise(config)

    def _initialise(self, config: CharCNNConfig) -> None:
        with torch.no_grad():
            nn.init.uniform_(self.characters.weight, -1.0, 1.0)[0].zero_()
        for conv, (width, _) in zip(self.convolutions, config.filters, strict=True):
            assert isinstance(conv, nn.Conv1d)
            assert conv.bias is not None
            if config.activation == "relu":
                nn.init.uniform_(conv.weight, -0.05, 0.05)
            else:
                nn.init.normal_(conv.weight, std=(width * config.embedding_dim) ** -0.5)
            nn.init.zeros_(conv.bias)
        if self.projection is not None:
            nn.init.normal_(self.projection.weight, std=config.width**-0.5)
            nn.init.zeros_(self.projection.bias)

    def forward(self, ids_NC: Tensor) -> Tensor:
        """Encode words: `(N, C)` character ids, with a table of words `(N, C + 1)`, to `(N, P)`."""
        chunks = torch.split(ids_NC, self._words_at_once)
        return torch.cat([self._encode(chunk) for chunk in chunks])

    def _encode(self, ids_NC: Tensor) -> Tensor:
        characters = self.characters(ids_NC[:, : self.n_characters]).transpose(1, 2)  # (N, E, C)
        x_NF = torch.cat([self.activation(conv(characters).amax(dim=-1)) for conv in self.convolutions], dim=1)
        return self.finish(x_NF, ids_NC)

    def finish(self, x_NF: Tensor, ids_NC: Tensor) -> Tensor:
        """What follows the convolutions: `(N, F)` to `(N, P)`."""
        for highway in self.highways:
            x_NF = highway(x_NF)
        if self.words is not None:
            x_NF = torch.cat([self.words(ids_NC[:, self.n_characters]), x_NF], dim=1)
        return x_NF if self.projection is None else self.projection(x_NF)


class WordEncoder(nn.Embedding):
    """A word table instead of characters; row 0 is the mask's, word w of the vocabulary has row w + 1."""

    def __init__(self, n_words: int, projection_dim: int) -> None:
        """Start at N(0, 1), as an embedding does."""
        super().__init__(n_words + 1, projection_dim, padding_idx=0)


@dataclass(frozen=True)
class State:
    """What the LSTMs remember between two calls: an argument and a result, never hidden in a module."""

    m: Tensor
    """Outputs, `(K, 2, B, P)`."""
    c: Tensor
    """Cells, `(K, 2, B, cell)`."""

    @property
    def rows(self) -> int:
        """B."""
        return self.m.shape[2]

    def to(self, like: Tensor) -> State:
        """The state on the device and in the precision of a tensor."""
        return State(self.m.to(like), self.c.to(like))

    def rows_at(self, places: Sequence[int] | Tensor) -> State:
        """The rows at some places, in that order."""
        index = torch.as_tensor(places, dtype=torch.long, device=self.m.device)
        return State(self.m.index_select(2, index), self.c.index_select(2, index))

    def where(self, kept: Tensor) -> State:
        """This state with zeros in the rows that are not kept, `(B,)`."""
        kept = kept.bool()[:, None]
        return State(self.m * kept, self.c * kept)

    @staticmethod
    def join(states: Sequence[State]) -> State:
        """The rows of several states, one after the other."""
        return State(torch.cat([state.m for state in states], dim=2), torch.cat([state.c for state in states], dim=2))

    @staticmethod
    def zeros(config: ModelConfig, rows: int, like: Tensor | None = None) -> State:
        """The state of rows that have read nothing, on the device and in the precision of a tensor."""
        shape = (config.lstm.n_layers, 2, rows)
        like = torch.empty(0) if like is None else like
        return State(like.new_zeros(*shape, config.lstm.projection_dim), like.new_zeros(*shape, config.lstm.dim))

    def take(self, rows: int) -> State:
        """The first `rows` rows; where there are fewer, zeros (a sentence with nothing before it) are added."""
        more = max(0, rows - self.rows)
        return State(F.pad(self.m[:, :, :rows], (0, 0, 0, more)), F.pad(self.c[:, :, :rows], (0, 0, 0, more)))

    def put(self, new: State) -> State:
        """This state with its first rows replaced by `new`; rows that `new` lacks stay."""
        return State.join([new, State(self.m[:, :, new.rows :], self.c[:, :, new.rows :])])

    def expand(self, rows: int) -> State:
        """A state of one row, given to every row."""
        return State(self.m.expand(-1, -1, rows, -1), self.c.expand(-1, -1, rows, -1))


@dataclass(frozen=True)
class BiLMOutput:
    """What the biLM says of a batch."""

    layers: Tensor
    """`(L, B, T, D)`, or as many of the L as were asked for; zero where there is no token."""
    mask: Tensor
    """`(B, T)`, true where there is a token."""
    state: State
    """What the next batch starts from where the state is carried."""


class BiLM(nn.Module):
    """The bidirectional language model: a token encoder and a stack of LSTMs in each direction."""

    def __init__(self, config: ModelConfig) -> None:
        """Build the network with bilm-tf's start values."""
        super().__init__()
        self.config = config
        self.encoder: CharEncoder | WordEncoder
        if config.char_cnn is not None:
            self.encoder = CharEncoder(config.char_cnn, config.lstm.projection_dim, config.n_words)
        else:
            assert config.n_words is not None
            self.encoder = WordEncoder(config.n_words, config.lstm.projection_dim)
        self.forwards = nn.ModuleList(ProjectedLSTM(config.lstm) for _ in range(config.lstm.n_layers))
        self.backwards = nn.ModuleList(ProjectedLSTM(config.lstm) for _ in range(config.lstm.n_layers))

    def forward(
        self, char_ids: Tensor, state: State | None = None, *, layers: Sequence[int] | None = None
    ) -> BiLMOutput:
        """Run over sentences as they are given: boundary tokens are the caller's (see `with_boundaries`).

        Args:
            char_ids: `(B, T, C)` character ids, all 0 where a shorter sentence has no token; `(B, T)` word ids for a
                model that reads words.
            state: what to start from, of B rows, or of one for all; zeros if not given.
            layers: which layers to compute and return, in this order; all if not given.
        """
        mask_BT = self.mask(char_ids)
        return self.contextualise(self.encode(char_ids), mask_BT, state, layers=layers)

    def mask(self, ids: Tensor) -> Tensor:
        """Where there is a token: `(B, T)`."""
        return ids.ne(0) if isinstance(self.encoder, WordEncoder) else ids.ne(0).any(dim=-1)

    def encode(self, ids: Tensor) -> Tensor:
        """Word vectors without context, `(B, T, P)`; each distinct word goes through the encoder once."""
        if isinstance(self.encoder, WordEncoder):
            vectors: Tensor = self.encoder(ids)
            return vectors
        words_NC, inverse = torch.unique(ids.flatten(0, -2), dim=0, return_inverse=True)
        return F.embedding(inverse.view(ids.shape[:-1]), self.encoder(words_NC))

    def contextualise(
        self, x_BTP: Tensor, mask_BT: Tensor, state: State | None = None, *, layers: Sequence[int] | None = None
    ) -> BiLMOutput:
        """Run the LSTMs over word vectors; no further up than the highest layer asked for.

        The state of a layer that is not computed comes out as it went in.
        """
        state = self.zero_state(len(x_BTP)) if state is None else state
        wanted, state = checked(self.config, len(x_BTP), state, layers)
        state = state.expand(len(x_BTP)) if state.rows == 1 else state
        lengths_B = mask_BT.sum(dim=1)
        top = max(wanted)
        forward, m_fwd, c_fwd = self._direction(self.forwards[:top], x_BTP, lengths_B, state.m[:, 0], state.c[:, 0])
        reversed_BTP = reverse(x_BTP, lengths_B)
        backward, m_bwd, c_bwd = self._direction(
            self.backwards[:top], reversed_BTP, lengths_B, state.m[:, 1], state.c[:, 1]
        )
        x_BTP = x_BTP * mask_BT[:, :, None]
        both = {0: (x_BTP, x_BTP)} | {
            k + 1: (forward[k], reverse(backward[k], lengths_B)) for k in range(top) if k + 1 in wanted
        }
        return BiLMOutput(
            layers=torch.stack([torch.cat(both[layer], dim=-1) for layer in wanted]),
            mask=mask_BT,
            state=State(torch.stack([m_fwd, m_bwd], dim=1), torch.stack([c_fwd, c_bwd], dim=1)),
        )

    def _direction(
        self, lstms: nn.ModuleList, x_BTP: Tensor, lengths_B: Tensor, m_KBP: Tensor, c_KBD: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        outputs: list[Tensor] = []
        ms, cs = list(m_KBP), list(c_KBD)
        for k, lstm in enumerate(lstms):
            y_BTP, ms[k], cs[k] = lstm(x_BTP, lengths_B, ms[k], cs[k])
            # The state handed on is the LSTM's own output: the residual is added outside the recurrence. A row's
            # padding is zero in its output, so a padded input does not leak upwards.
            x_BTP = x_BTP + y_BTP if k > 0 and self.config.lstm.use_skip_connections else y_BTP
            outputs.append(x_BTP)
        return outputs, torch.stack(ms), torch.stack(cs)

    def zero_state(self, rows: int) -> State:
        """The state of rows that have read nothing."""
        return State.zeros(self.config, rows, next(self.forwards.parameters()).detach())

    def with_boundaries(self, ids: Tensor) -> Tensor:
        """Put `<S>` before and `</S>` behind each sentence: `(B, T, ...)` to `(B, T + 2, ...)`."""
        lengths_B = self.mask(ids).sum(dim=1)
        padded = F.pad(ids, (1, 1) if self.config.char_cnn is None else (0, 0, 1, 1))
        padded[:, 0] = self._boundary(BOS, 1, ids)
        padded[torch.arange(len(ids), device=ids.device), lengths_B + 1] = self._boundary(EOS, 2, ids)
        return padded

    def _boundary(self, boundary: str, word: int, like: Tensor) -> Tensor:
        """Ids of a boundary, the first or second word of a vocabulary (raised by 1): `()`, `(C,)` or `(C + 1,)`."""
        cnn = self.config.char_cnn
        if cnn is None:
            return like.new_tensor(word)
        characters = boundary_row(boundary, cnn.max_characters_per_token, cnn.alphabet).tolist()
        return like.new_tensor([*characters, word] if cnn.word_dim else characters)


def checked(
    config: ModelConfig, rows: int, state: State | None, layers: Sequence[int] | None
) -> tuple[tuple[int, ...], State]:
    """The layers to compute and the state to start from, for a batch of `rows`; refuses what does not fit.

    A state of one row is every row's.
    """
    wanted = tuple(range(config.n_layers)) if layers is None else tuple(layers)
    if not wanted or not set(wanted) <= set(range(config.n_layers)):
        raise ElmoError(f"layers {list(wanted)}: give some of 0 to {config.n_layers - 1}")
    state = State.zeros(config, 1) if state is None else state
    if state.rows not in (1, rows):
        raise ElmoError(f"a state of {state.rows} rows is given for a batch of {rows}: see State.take")
    return wanted, state


class ScalarMix(nn.Module):
    """The paper's equation 1: `gamma * sum_j softmax(w)_j h_j`, `w` starting at 0 and `gamma` at 1."""

    def __init__(
        self, n_layers: int, layer_norm: bool = False, *, weights: Sequence[float] | None = None, eps: float = 1e-12
    ) -> None:
        """Set the mix up.

        Args:
            n_layers: L, the word layer included.
            layer_norm: normalise each layer first, by one mean and one variance over all tokens of the batch.
            weights: fixed `w`, before the softmax; then neither `w` nor `gamma` is trained.
            eps: added to the variance.
        """
        super().__init__()
        if weights is not None and len(weights) != n_layers:
            raise ElmoError(f"{len(weights)} mix weights are given for {n_layers} layers")
        start = torch.zeros(n_layers) if weights is None else torch.tensor(list(weights), dtype=torch.float32)
        self.weights = nn.Parameter(start, requires_grad=weights is None)
        self.gamma = nn.Parameter(torch.ones(()), requires_grad=weights is None)
        self.layer_norm = layer_norm
        self.eps = eps

    def forward(self, layers: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix layers `(L, B, T, D)` into `(B, T, D)`; `mask (B, T)` says which tokens the layer norm counts."""
        if len(layers) != len(self.weights):
            raise ElmoError(f"{len(layers)} layers are given to a mix of {len(self.weights)}")
        if self.layer_norm:
            layers = [self._normalise(layer, mask) for layer in layers]
        layers_LBTD = layers if isinstance(layers, Tensor) else torch.stack(list(layers))
        shares_L = torch.softmax(self.weights, dim=0).to(layers_LBTD.dtype)
        mixed: Tensor = self.gamma * torch.tensordot(shares_L, layers_LBTD, dims=1)
        return mixed

    def _normalise(self, x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        counted = x_BTD if mask_BT is None else x_BTD[mask_BT.bool()]
        if counted.numel() == 0:  # nothing to take a mean of, and NaN would spread
            return x_BTD
        variance, mean = torch.var_mean(counted, correction=0)
        return (x_BTD - mean) / torch.sqrt(variance + self.eps)

    def penalty(self, lambda_: float) -> Tensor:
        """`lambda * sum w^2`, to be added to a task's loss: it pulls the mix to the plain average."""
        return lambda_ * self.weights.square().sum()


@dataclass(frozen=True)
class ElmoOutput:
    """What `Elmo` gives a task model."""

    vectors: tuple[Tensor, ...]
    """One `(B, T, D)` for each output, zero where there is no token."""
    mask: Tensor
    """`(B, T)`, true where there is a token."""
    state: State
    """What the next batch starts from where the state is carried."""


class HasBiLM(Protocol):
    """Anything that carries a biLM, such as what `elmo.load` returns."""

    @property
    def bilm(self) -> BiLM:
        """The network."""


class Elmo(nn.Module):
    """ELMo vectors inside a task model, at its input, its output or both: one learned mix for each place."""

    def __init__(
        self,
        model: BiLM | HasBiLM,
        num_outputs: int = 1,
        dropout: float = 0.5,
        layer_norm: bool | LayerNorm = False,
        trainable: bool = False,
        *,
        mix_weights: Sequence[float] | None = None,
        keep_boundaries: bool = False,
    ) -> None:
        """Put mixes on a biLM, which is shared, not copied.

        Args:
            model: what `elmo.load` returns, or a `BiLM`.
            num_outputs: how many vectors a token gets, each with a mix of its own.
            dropout: on the mixed vectors.
            layer_norm: of each layer over the batch. "bilm-tf" (or True) leaves the sentence boundaries out of the
                mean and the variance, "allennlp" counts them.
            trainable: whether gradients reach the biLM (`requires_grad` of its parameters is set to this).
            mix_weights: fixed weights of the layers, before the softmax, instead of learned ones.
            keep_boundaries: return the vectors of `<S>` and `</S>` too, so that T grows by 2.
        """
        super().__init__()
        if layer_norm not in (False, True, "bilm-tf", "allennlp"):
            raise ElmoError(f"layer_norm is {layer_norm!r}: give False, True, 'bilm-tf' or 'allennlp'")
        if type(num_outputs) is not int or num_outputs < 1:
            raise ElmoError(f"num_outputs is {num_outputs!r}: give a whole number, 1 or more")
        if not 0 <= dropout <= 1:
            raise ElmoError(f"dropout is {dropout!r}: give a share from 0 to 1")
        self.bilm = model if isinstance(model, BiLM) else model.bilm
        self.bilm.requires_grad_(trainable)
        self.trainable = trainable
        self.keep_boundaries = keep_boundaries
        self.norm_counts_boundaries = layer_norm == "allennlp"
        eps = 1e-13 if layer_norm == "allennlp" else 1e-12
        self.mixes = nn.ModuleList(
            ScalarMix(self.bilm.config.n_layers, bool(layer_norm), weights=mix_weights, eps=eps)
            for _ in range(num_outputs)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, char_ids: Tensor, state: State | None = None) -> ElmoOutput:
        """Embed sentences given without boundaries: `(B, T, C)` character ids (`(B, T)` word ids for a word model)."""
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            output = self.bilm(self.bilm.with_boundaries(char_ids), state)
        inner_BT = self._inner(output.mask)
        counted_BT = output.mask if self.norm_counts_boundaries else inner_BT
        mask_BT = output.mask if self.keep_boundaries else inner_BT[:, 1:-1]
        vectors = []
        for mix in self.mixes:
            mixed = mix(output.layers, counted_BT)
            mixed = mixed if self.keep_boundaries else mixed[:, 1:-1]
            vectors.append(self.dropout(mixed * mask_BT[:, :, None]))
        return ElmoOutput(tuple(vectors), mask_BT, output.state)

    @staticmethod
    def _inner(mask_BT: Tensor) -> Tensor:
        """The mask less each sentence's first and last token."""
        inner = F.pad(mask_BT[:, 1:], (0, 1))  # drops one at the end
        return torch.cat([inner.new_zeros(len(inner), 1), inner[:, 1:]], dim=1)

    def penalty(self, lambda_: float) -> Tensor:
        """The sum of the mixes' penalties."""
        return torch.stack([mix.penalty(lambda_) for mix in self.mixes if isinstance(mix, ScalarMix)]).sum()


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight in `BiLM(config).state_dict()`, without the network."""
    lstm, cnn, width = config.lstm, config.char_cnn, config.lstm.projection_dim
    shapes: dict[str, tuple[int, ...]] = {}
    if cnn is None:
        assert config.n_words is not None
        shapes["encoder.weight"] = (config.n_words + 1, width)
    else:
        shapes["encoder.characters.weight"] = (cnn.n_symbols + N_MARKS + 1, cnn.embedding_dim)
        for i, (window, number) in enumerate(cnn.filters):
            shapes[f"encoder.convolutions.{i}.weight"] = (number, cnn.embedding_dim, window)
            shapes[f"encoder.convolutions.{i}.bias"] = (number,)
        filters, inputs = cnn.n_filters, cnn.width
        linears = [(f"highways.{i}.{part}", filters, filters) for i in range(cnn.n_highway) for part in _HIGHWAY]
        linears += [("projection", width, inputs)] if cnn.has_projection(width) else []
        for name, outputs, inputs in linears:
            shapes[f"encoder.{name}.weight"] = (outputs, inputs)
            shapes[f"encoder.{name}.bias"] = (outputs,)
        if config.n_words is not None:
            shapes["encoder.words.weight"] = (config.n_words + 1, cnn.word_dim)
    for stack in ("forwards", "backwards"):
        for k in range(lstm.n_layers):
            shapes[f"{stack}.{k}.kernel"] = (2 * width, 4 * lstm.dim)
            shapes[f"{stack}.{k}.bias"] = (4 * lstm.dim,)
            if lstm.has_projection:
                shapes[f"{stack}.{k}.projection"] = (lstm.dim, width)
    return shapes


def parameter_count(config: ModelConfig) -> int:
    """Number of parameters of a model, its mask row not counted."""
    shapes = weight_shapes(config)
    tables = ("encoder.characters.weight", "encoder.words.weight", "encoder.weight")
    masks = [shapes[name][1] for name in tables if name in shapes]
    return sum(map(math.prod, shapes.values())) - sum(masks)
