"""The biLM on a CPU: the function of `BiLM.contextualise`, fast.

What makes it fast: the products' weights are packed once, by precision; a word that stands at several places goes
through the input product once; rows are sorted by length, so that a finished one leaves the batch and nothing is
padding; where the package was built with a compiler and the CPU has AVX-512 (`compiled.py`), a whole layer is one call,
with the gates applied to a product while it is in registers. Elsewhere PyTorch does it (`plain.py`). Cell states are
float32 in every precision.

What is moved between the layers is moved with numpy: PyTorch would take all threads for it, and these wait for more
work in a loop, on the cores that the kernels then want.

Shapes: B rows, N tokens of all rows in the order of time steps, P projection, D cell, W distinct words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmo.config import CharCNNConfig, ModelConfig
from elmo.engine import compiled, plain
from elmo.engine.precision import SCRATCH, Floats, Int64s, LSTMWeights, Precision, Read, Steps, Tokens, network_encoder
from elmo.errors import ElmoError
from elmo.model import BiLMOutput, State, checked

_WORDS_AT_ONCE = 128  # through the character encoder, 8 KB each and more


def supported(precision: Precision) -> bool:
    """Whether this CPU has what a precision needs, in one half of the engine or the other."""
    return compiled.compiled(precision) or plain.supported(precision)


class CpuEngine:
    """A biLM made ready for one precision; its weights are copied, so later changes of the biLM are not seen."""

    def __init__(self, config: ModelConfig, read: Read, precision: Precision, *, plainly: bool = False) -> None:
        """Pack the weights, read one by one.

        Args:
            config: what the biLM is made of.
            read: gives some rows of a weight.
            precision: of the products.
            plainly: do without the compiled half, even where it is there.
        """
        if not supported(precision):
            raise ElmoError(f"precision {precision!r} needs a CPU that has it; this one has not: give 'fp32'")
        self._config = config
        half = plain if plainly or not compiled.compiled(precision) else compiled
        self._stacks = [
            [half.LSTM(LSTMWeights(read, f"{stack}.{k}", config.lstm), precision) for k in range(config.lstm.n_layers)]
            for stack in ("forwards", "backwards")
        ]
        self._encoder: Callable[[Tensor], Tensor]
        if config.char_cnn is None:
            self._encoder = _WordTable(read)
        elif config.char_cnn.alphabet is not None or config.char_cnn.word_dim:
            self._encoder = network_encoder(config, read, torch.device("cpu"))  # what is below knows bytes alone
        else:
            self._encoder = _Encoder(half, config.char_cnn, config, read, precision)

    def encode(self, ids: Tensor) -> Tensor:
        """Word vectors without context: `(N, C)` character ids, `(N,)` word ids, to `(N, P)`."""
        if len(ids) == 0:
            return torch.zeros(0, self._config.lstm.projection_dim)
        return self._encoder(ids)

    def contextualise(
        self, words_WP: Tensor, places_BT: Tensor, state: State | None = None, *, layers: Sequence[int] | None = None
    ) -> BiLMOutput:
        """Do what `Engine.contextualise` says."""
        wanted, state = checked(self._config, len(places_BT), state, layers)
        steps = Steps.of(places_BT)
        words = words_WP.float().numpy()
        flat = places_BT.numpy().reshape(-1)
        out = np.zeros((len(wanted), len(flat), 2, self._config.lstm.projection_dim), dtype=np.float32)
        alike = state.rows == 1
        state = state.expand(len(places_BT)) if alike else state
        m_K2BP, c_K2BD = (np.array(part.float().numpy()) for part in (state.m, state.c))
        for d, where in enumerate((steps.forward, steps.backward)):
            tokens = Tokens(flat[where], steps.rows)
            first = _First.of(tokens) if alike else None
            x_NP, y_NP = words, words[tokens.inputs]
            for layer in range(max(wanted) + 1):
                if layer > 0:
                    m, c = (part[layer - 1, d][steps.order] for part in (m_K2BP, c_K2BD))
                    y_NP = SCRATCH.room(f"y {layer % 2}", y_NP.shape, torch.float32).numpy()
                    _run(self._stacks[d][layer - 1], x_NP, tokens, first, m, c, y_NP)
                    m_K2BP[layer - 1, d, steps.order], c_K2BD[layer - 1, d, steps.order] = m, c
                    if layer > 1 and self._config.lstm.use_skip_connections:
                        y_NP += x_NP
                    x_NP, tokens = y_NP, steps.in_order
                for place in [place for place, other in enumerate(wanted) if other == layer]:
                    out[place, where, d] = y_NP
        return BiLMOutput(
            layers=torch.from_numpy(out).view(len(wanted), *places_BT.shape, self._config.dim),
            mask=places_BT >= 0,
            state=State(torch.from_numpy(m_K2BP), torch.from_numpy(c_K2BD)),
        )


LSTM = compiled.LSTM | plain.LSTM


def _run(
    lstm: LSTM, x_NP: Floats, tokens: Tokens, first: _First | None, m_BP: Floats, c_BD: Floats, y_NP: Floats
) -> None:
    """Run a layer over a batch; where all rows start alike, the first step once for each word that some begin with."""
    if first is None:
        lstm(x_NP, tokens, m_BP, c_BD, y_NP)
        return
    n, distinct = len(first.which), len(first.tokens)
    inputs = tokens.inputs[first.tokens]
    m, c = m_BP[:distinct].copy(), c_BD[:distinct].copy()
    lstm(x_NP, Tokens(inputs, np.array([distinct])), m, c, np.empty((distinct, y_NP.shape[1]), dtype=np.float32))
    y_NP[:n] = m_BP[:n] = m[first.which]
    c_BD[:n] = c[first.which]
    lstm(x_NP, Tokens(tokens.inputs[n:], tokens.rows[1:]), m_BP, c_BD, y_NP[n:])


@dataclass(frozen=True)
class _First:
    """The first step of rows that start alike: the backward rows of a text nearly all begin with its full stop."""

    tokens: Int64s
    """Of the distinct inputs, a token each."""
    which: Int64s
    """`(B,)`, which of these each row begins with."""

    @classmethod
    def of(cls, tokens: Tokens) -> _First | None:
        """Nothing, where all are distinct."""
        begin = tokens.inputs[: tokens.rows[0]] if len(tokens.rows) else tokens.inputs
        _, first, which = np.unique(begin, return_index=True, return_inverse=True)
        return cls(first, which) if len(first) < len(begin) else None


class _WordTable:
    """The encoder of a model that reads words."""

    def __init__(self, read: Read) -> None:
        self._table = read("encoder.weight", slice(None)).clone()

    def __call__(self, ids_N: Tensor) -> Tensor:
        return F.embedding(ids_N, self._table)


class _Encoder:
    """The character encoder, its products packed."""

    def __init__(
        self, half: ModuleType, cnn: CharCNNConfig, config: ModelConfig, read: Read, precision: Precision
    ) -> None:
        def whole(name: str) -> Tensor:
            return read(f"encoder.{name}", slice(None))

        def linear(name: str) -> Callable[[Tensor], Tensor]:
            return half.Linear(  # type: ignore[no-any-return]  # of either half
                whole(f"{name}.weight").t(), whole(f"{name}.bias"), precision
            )

        self._convolutions = half.Convolutions(
            whole("characters.weight"),
            [(whole(f"convolutions.{i}.weight"), whole(f"convolutions.{i}.bias")) for i in range(len(cnn.filters))],
            cnn.activation,
            precision,
        )
        self._highway = half.highway
        self._highways = [
            (linear(f"highways.{i}.carry"), linear(f"highways.{i}.transform")) for i in range(cnn.n_highway)
        ]
        self._projection = linear("projection") if cnn.n_filters != config.lstm.projection_dim else None

    def __call__(self, ids_NC: Tensor) -> Tensor:
        return torch.cat([self._encode(piece) for piece in torch.split(ids_NC, _WORDS_AT_ONCE)])

    def _encode(self, ids_NC: Tensor) -> Tensor:
        x_NF: Tensor = self._convolutions(ids_NC)
        for carry, transform in self._highways:
            x_NF = self._highway(x_NF, carry(x_NF), transform(x_NF))
        return x_NF if self._projection is None else self._projection(x_NF).float()
