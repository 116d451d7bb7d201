"""AllenNLP's biLM over ours: its parameters, its cached vocabulary, its carried state.

The modules hold their parameters under AllenNLP 2.10's names and in its shapes, so that state dicts, optimizers and
patterns over names go on working, and run them through our network (`formats/allennlp_table.py`). Where no
gradient is asked for they run on an engine. `allennlp.py` has the names to import.

Shapes: B sentences, T tokens, P projection, D = 2 * P, K LSTM layers, V cached words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from elmo import chars
from elmo.api import fingerprint
from elmo.chars import BOS, EOS
from elmo.config import ModelConfig
from elmo.engine import Engine, make_engine
from elmo.errors import ElmoError
from elmo.formats import read_model
from elmo.formats.allennlp_table import ENCODER, LSTM, to_ours, to_theirs
from elmo.formats.bundle import Bundle, Network, empty_bilm, fill_bilm
from elmo.model import BiLM, BiLMOutput, State

File = str | PathLike[str]
Result = TypeVar("Result")


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Character ids of tokenised sentences, padded with 0: `(B, T, 50)`, long."""
    return torch.from_numpy(chars.batch_to_ids(batch)).long()


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Leave each sentence's first and last token out: `(B, T, D)` and `(B, T)` to `(B, T - 2, D)` and `(B, T - 2)`."""
    lengths_B1 = mask.sum(dim=1, keepdim=True)
    inner_BT = torch.arange(1, mask.shape[1] - 1, device=mask.device) < lengths_B1 - 1
    return tensor[:, 1:-1].masked_fill(~inner_BT[:, :, None], 0), inner_BT


class _Borrower(nn.Module):
    """A biLM without weights, to be run with those that `functional_call` lends it; gradients reach the lender."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bilm = empty_bilm(config)

    def forward(self, run: Callable[[BiLM], Result]) -> Result:
        return run(self.bilm)


def _run(config: ModelConfig, theirs: dict[str, Tensor], run: Callable[[BiLM], Result]) -> Result:
    """Run our network with their weights, or with some of them where it needs no more."""
    lent = {f"bilm.{name}": weight for name, weight in to_ours(config, theirs).items()}
    result: Result = functional_call(_Borrower(config), lent, (run,))
    return result


class _ElmoCharacterEncoder(nn.Module):
    """Words without their context, with the boundaries added: `(B, T, 50)` to `(B, T + 2, P)`."""

    def __init__(self, options_file: File, weight_file: File, requires_grad: bool = False) -> None:
        """Read the weights; `requires_grad` says whether they are trained."""
        super().__init__()
        bundle = _read(options_file, weight_file)
        self.config = bundle.config
        self.output_dim = self.config.lstm.projection_dim
        self.requires_grad = requires_grad
        _hold(self, _weights(bundle, ENCODER), requires_grad)

    def get_output_dim(self) -> int:
        """P."""
        return self.output_dim

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Encode ids `(B, T, 50)`: `mask (B, T + 2)` and `token_embedding (B, T + 2, P)`."""

        def encode(bilm: BiLM) -> dict[str, Tensor]:
            ids = bilm.with_boundaries(inputs)
            return {"mask": bilm.mask(ids), "token_embedding": bilm.encode(ids)}

        return _run(self.config, _named(self, ENCODER), encode)


class _ElmoLstm(nn.Module):
    """The LSTMs' parameters, and the state that they carry from call to call; `_ElmoBiLm` runs them."""

    def __init__(self, bundle: Bundle, requires_grad: bool) -> None:
        super().__init__()
        lstm = bundle.config.lstm
        self.config = bundle.config
        self.input_size = self.hidden_size = lstm.projection_dim
        self.cell_size, self.num_layers = lstm.dim, lstm.n_layers
        self.stateful = True
        """Whether the state is carried; old code sets this to False to get the same vectors each time."""
        self._states: tuple[Tensor, Tensor] | None = None
        """`(K, B, 2 * P)` and `(K, B, 2 * cell)` of the most rows so far, forward and backward side by side."""
        _hold(self, _weights(bundle, LSTM), requires_grad)

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Forget the carried state, of all rows or of those where `mask (B,)` is true."""
        if mask is None:
            self._states = None
            return
        rows = 0 if self._states is None else self._states[0].shape[1]
        if self._states is None or len(mask) != rows:
            raise ElmoError(f"the mask has {len(mask)} rows, the carried state {rows}: give one of as many")
        kept = ~mask.bool()[None, :, None]
        self._states = self._states[0] * kept, self._states[1] * kept

    def start(self, rows: int, like: Tensor) -> State:
        """What a batch starts from: the state that its rows left behind; zeros of rows that are new."""
        if self._states is None or not self.stateful:
            return State.zeros(self.config, rows, like)
        m, c = (torch.stack(part.to(like).chunk(2, dim=2), dim=1) for part in self._states)
        return State(m, c).take(rows)

    def keep(self, new: State) -> None:
        """Carry what a batch left behind; rows that it did not have stay."""
        if not self.stateful:
            return
        old = self.start(0 if self._states is None else self._states[0].shape[1], new.m)
        both = old.put(State(new.m.detach(), new.c.detach()))
        self._states = torch.cat(both.m.unbind(1), dim=2), torch.cat(both.c.unbind(1), dim=2)


class _ElmoBiLm(nn.Module):
    """The biLM with its boundaries added: all layers, `(B, T + 2, D)` each, and the mask."""

    def __init__(
        self,
        options_file: File,
        weight_file: File,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
    ) -> None:
        """Read a model.

        Args:
            options_file: its `options.json`.
            weight_file: its HDF5 file.
            requires_grad: whether its weights are trained.
            vocab_to_cache: words whose vectors are computed once, to be looked up by `word_inputs`; the first one is
                the padding.
        """
        super().__init__()
        self._token_embedder = _ElmoCharacterEncoder(options_file, weight_file, requires_grad)
        self._elmo_lstm = _ElmoLstm(_read(options_file, weight_file), requires_grad)
        self._requires_grad = requires_grad
        self.num_layers = self._token_embedder.config.n_layers
        self._word_embedding: nn.Embedding | None = None
        self._bos_embedding: Tensor | None = None
        self._eos_embedding: Tensor | None = None
        self._packed: tuple[object, Engine] | None = None
        if vocab_to_cache:
            self.create_cached_cnn_embeddings(vocab_to_cache)

    def get_output_dim(self) -> int:
        """D."""
        return 2 * self._token_embedder.get_output_dim()

    def __getstate__(self) -> dict[str, object]:
        """What is copied and pickled: all but the packed weights, which are made again."""
        return vars(self) | {"_packed": None}

    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Compute the vectors of V words; word i has row i. Row 0 is the padding's: zero."""
        device = next(self.parameters()).device
        with torch.no_grad():
            ids = batch_to_ids([[word] for word in [BOS, EOS, *tokens]]).to(device)
            vectors = self._token_embedder(ids)["token_embedding"][:, 1]
        self._bos_embedding, self._eos_embedding = vectors[0], vectors[1]
        rows_VP = vectors[2:].clone()
        rows_VP[0] = 0
        words = nn.Embedding(len(rows_VP), rows_VP.shape[1], padding_idx=0, device="meta")
        words.weight = nn.Parameter(rows_VP, requires_grad=self._requires_grad)
        self._word_embedding = words

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """Run over a batch: `activations`, a list of `(B, T + 2, D)`, and `mask (B, T + 2)`.

        Args:
            inputs: `(B, T, 50)` character ids.
            word_inputs: `(B, T)` numbers of cached words, 0 behind a sentence. Where one is not in the cache, all are
                read by their characters.
        """
        trained = any(weight.requires_grad for weight in self.parameters())
        with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
            if self._word_embedding is not None and word_inputs is not None and self._all_cached(word_inputs):
                words_BTP, mask_BT = self._look_up(self._word_embedding, word_inputs)
            else:
                words_BTP, mask_BT = self._encode(inputs)
            state = self._elmo_lstm.start(len(mask_BT), words_BTP.detach())
            output = self._contextualise(words_BTP, mask_BT, state)
        self._elmo_lstm.keep(output.state)
        # A GPU's engine computes in inference mode, and what comes of that cannot be trained on; a copy can.
        layers = output.layers.clone() if output.layers.is_inference() else output.layers
        return {"activations": list(layers), "mask": mask_BT}

    def _all_cached(self, words_BT: Tensor) -> bool:
        assert self._word_embedding is not None
        known = (words_BT >= 0) & (words_BT < self._word_embedding.num_embeddings)
        return bool(known.all())

    def _look_up(self, table: nn.Embedding, words_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of cached words between the boundaries' and their mask: `(B, T + 2, P)`, `(B, T + 2)`."""
        assert self._bos_embedding is not None
        assert self._eos_embedding is not None
        lengths_B = (words_BT > 0).sum(dim=1)
        steps = torch.arange(words_BT.shape[1] + 2, device=words_BT.device)
        vectors_BTP = F.pad(table(words_BT), (0, 0, 1, 1))
        begins, ends = (steps == 0)[:, None], (steps == lengths_B[:, None] + 1)[:, :, None]
        vectors_BTP = torch.where(begins, self._bos_embedding.to(vectors_BTP), vectors_BTP)
        vectors_BTP = torch.where(ends, self._eos_embedding.to(vectors_BTP), vectors_BTP)
        return vectors_BTP, steps < lengths_B[:, None] + 2

    def _encode(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            encoded = self._token_embedder(inputs)
            return encoded["token_embedding"], encoded["mask"]
        bilm = empty_bilm(self._token_embedder.config)
        ids = bilm.with_boundaries(inputs)
        words_NC, inverse = torch.unique(ids.flatten(0, 1), dim=0, return_inverse=True)
        return F.embedding(inverse.view(ids.shape[:2]), self._engine().encode(words_NC)), bilm.mask(ids)

    def _contextualise(self, words_BTP: Tensor, mask_BT: Tensor, state: State) -> BiLMOutput:
        if torch.is_grad_enabled():
            config = self._token_embedder.config
            return _run(config, _named(self), lambda bilm: bilm.contextualise(words_BTP, mask_BT, state))
        places_BT = torch.arange(mask_BT.numel()).view(mask_BT.shape).masked_fill(~mask_BT.cpu(), -1)
        return self._engine().contextualise(words_BTP.flatten(0, 1), places_BT, state)

    def _engine(self) -> Engine:
        """The fast network, packed anew when a weight has changed: for where no gradient is asked for."""
        weights = fingerprint(self.parameters())
        if self._packed is None or self._packed[0] != weights:
            self._packed = weights, make_engine(self._network(), "fp32", "auto")[0]
        return self._packed[1]

    def _network(self) -> Network:
        config = self._token_embedder.config
        ours = to_ours(config, {name: weight.detach() for name, weight in self.named_parameters()})
        bilm = fill_bilm(empty_bilm(config), {name: weight.contiguous() for name, weight in ours.items()})
        return Network(config, bilm=bilm)


def given(name: str, file: File | None) -> File:
    """A file that must be given: AllenNLP took addresses, and had some for defaults."""
    if file is None or "://" in str(file):
        raise ElmoError(f"{name} is {file!r}: nothing is downloaded here, so give the path of a file")
    return file


def _read(options_file: File, weight_file: File) -> Bundle:
    options, weights = given("options_file", options_file), given("weight_file", weight_file)
    return read_model(Path(weights), options=Path(options))


def _weights(bundle: Bundle, part: str) -> Iterable[tuple[str, Tensor]]:
    """The weights of one of the two parts of a biLM, under AllenNLP's names within it."""
    for name, weight in to_theirs(bundle.config, bundle.network.read):
        if name.startswith(f"{part}."):
            yield name.removeprefix(f"{part}."), weight


def _hold(module: nn.Module, weights: Iterable[tuple[str, Tensor]], requires_grad: bool) -> None:
    """Give a module parameters of dotted names."""
    for name, weight in weights:
        *path, leaf = name.split(".")
        home = module
        for part in path:
            if not hasattr(home, part):
                home.add_module(part, nn.Module())
            home = home.get_submodule(part)
        own = weight.clone(memory_format=torch.contiguous_format)
        home.register_parameter(leaf, nn.Parameter(own, requires_grad=requires_grad))


def _named(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """A module's parameters by the names that they have in `_ElmoBiLm`."""
    return {f"{prefix}.{name}" if prefix else name: weight for name, weight in module.named_parameters()}
