"""AllenNLP's ELMo over this library: change the import, keep the code, the saved models and the numbers.

    from elmo.compat.allennlp import Elmo, batch_to_ids      # was: from allennlp.modules.elmo import ...
    from elmo.compat.allennlp import ElmoEmbedder            # was: from allennlp.commands.elmo import ... (up to 0.9)

The biLM is in `allennlp_bilm.py`; here is what task models put on it. docs/migration.md has the native calls.

Shapes: B sentences, T tokens, D width of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from elmo.compat.allennlp_bilm import (
    File,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
    given,
    remove_sentence_boundaries,
)
from elmo.compat.allennlp_embedder import ElmoEmbedder
from elmo.errors import ElmoError
from elmo.model import ScalarMix as OurMix

__all__ = [
    "Elmo",
    "ElmoEmbedder",
    "ElmoTokenEmbedder",
    "ScalarMix",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "batch_to_ids",
    "remove_sentence_boundaries",
]

_EPS = 1e-13  # of the layer norm in AllenNLP 2.10; 0.9 had 1e-12


class ScalarMix(nn.Module):
    """`gamma * sum_k softmax(w)_k tensor_k`, each `w` a parameter of its own."""

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        """Set the mix up.

        Args:
            mixture_size: how many tensors it mixes.
            do_layer_norm: normalise each tensor first, over all unmasked positions and dimensions of the batch.
            initial_scalar_parameters: `w`, before the softmax; zeros if not given.
            trainable: whether `w` and `gamma` are.
        """
        super().__init__()
        start = [0.0] * mixture_size if initial_scalar_parameters is None else list(initial_scalar_parameters)
        if len(start) != mixture_size:
            raise ElmoError(f"{len(start)} initial_scalar_parameters are given for a mixture_size of {mixture_size}")
        self.mixture_size = mixture_size
        self.do_layer_norm = do_layer_norm
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(w)]), requires_grad=trainable) for w in start
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix tensors `(..., D)` of one shape; `mask (...)` says what the layer norm counts."""
        mix = OurMix(self.mixture_size, self.do_layer_norm, eps=_EPS)
        weights = {"weights": torch.cat(list(self.scalar_parameters)), "gamma": self.gamma[0]}
        mixed: Tensor = functional_call(mix, weights, (list(tensors), None if mask is None else mask.bool()))
        return mixed


class Elmo(nn.Module):
    """ELMo vectors inside a task model: mixes over one biLM."""

    def __init__(
        self,
        options_file: File | None,
        weight_file: File | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: nn.Module | None = None,
    ) -> None:
        """Read a model and put mixes on it.

        Args:
            options_file: its `options.json`; None with `module`.
            weight_file: its HDF5 file; None with `module`.
            num_output_representations: how many vectors a token gets, each with a mix of its own.
            requires_grad: whether the biLM is trained, too.
            do_layer_norm: normalise each layer over the batch, the boundaries counted.
            dropout: on the mixed vectors.
            vocab_to_cache: words whose vectors are computed once (see `_ElmoBiLm`).
            keep_sentence_boundaries: return the vectors of `<S>` and `</S>` too.
            scalar_mix_parameters: fixed weights of the layers, before the softmax, instead of learned ones.
            module: a biLM of another kind, with `num_layers`, `get_output_dim()` and the results of `_ElmoBiLm`.
        """
        super().__init__()
        if module is not None:
            if options_file is not None or weight_file is not None:
                raise ElmoError("module is given: leave options_file and weight_file None")
            self._elmo_lstm = module
        else:
            self._elmo_lstm = _ElmoBiLm(
                given("options_file", options_file), given("weight_file", weight_file), requires_grad, vocab_to_cache
            )
        self._has_cached_vocab = vocab_to_cache is not None
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(p=dropout)
        self._num_mixes = num_output_representations
        for k in range(num_output_representations):
            mix = ScalarMix(
                self._elmo_lstm.num_layers,  # type: ignore[arg-type]  # an attribute of a module may be anything
                do_layer_norm,
                scalar_mix_parameters,
                trainable=scalar_mix_parameters is None,
            )
            self.add_module(f"scalar_mix_{k}", mix)

    @property
    def _scalar_mixes(self) -> list[nn.Module]:
        return [self.get_submodule(f"scalar_mix_{k}") for k in range(self._num_mixes)]

    def get_output_dim(self) -> int:
        """D."""
        dim: int = self._elmo_lstm.get_output_dim()  # type: ignore[operator]  # as above
        return dim

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """Embed sentences given without boundaries: `elmo_representations`, a list of `(B, T, D)`, and `mask (B, T)`.

        With boundaries kept, T is two more. Dimensions between B and T come out as they went in.

        Args:
            inputs: `(B, ..., T, 50)` character ids.
            word_inputs: `(B, ..., T)` numbers of cached words.
        """
        shape = inputs.shape[:-1] if word_inputs is None else word_inputs.shape
        if word_inputs is not None:
            word_inputs = word_inputs.reshape(-1, shape[-1]) if self._has_cached_vocab else None
        if inputs.dim() > 3:
            inputs = inputs.reshape(-1, *inputs.shape[-2:])
        output = self._elmo_lstm(inputs, word_inputs)
        vectors, mask = [], output["mask"]
        for mix in self._scalar_mixes:
            mixed, mask = mix(output["activations"], output["mask"]), output["mask"]
            if not self._keep_sentence_boundaries:
                mixed, mask = remove_sentence_boundaries(mixed, mask)
            vectors.append(self._dropout(mixed).reshape(*shape[:-1], *mixed.shape[1:]))
        return {"elmo_representations": vectors, "mask": mask.reshape(*shape[:-1], mask.shape[1])}


class ElmoTokenEmbedder(nn.Module):
    """One ELMo vector a token, projected if asked for."""

    def __init__(
        self,
        options_file: File | None = None,
        weight_file: File | None = None,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
    ) -> None:
        """Read a model; `projection_dim` puts a linear layer of that width on it, the rest is `Elmo`'s.

        AllenNLP downloaded the original model where no files were given; here they must be given.
        """
        super().__init__()
        self._elmo = Elmo(
            options_file,
            weight_file,
            1,
            requires_grad,
            do_layer_norm,
            dropout,
            vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
        )
        self._projection = nn.Linear(self._elmo.get_output_dim(), projection_dim) if projection_dim else None
        self.output_dim = projection_dim or self._elmo.get_output_dim()

    def get_output_dim(self) -> int:
        """Width of a vector."""
        return self.output_dim

    def forward(self, elmo_tokens: Tensor, word_inputs: Tensor | None = None) -> Tensor:
        """Embed `(B, ..., T, 50)` character ids, or cached words: `(B, ..., T, output_dim)`."""
        vectors: Tensor = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        return vectors if self._projection is None else self._projection(vectors)
