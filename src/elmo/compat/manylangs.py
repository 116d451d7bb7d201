"""ELMoForManyLangs' `Embedder`, with its arguments and shapes: `from elmo.compat.manylangs import Embedder`.

What differs from the original:

- Vectors do not depend on chance. The original sorts sentences by length, shuffles its batches, and carries the LSTM
  state from one batch to the next, so a second call, or one with more than `batch_size` sentences, gave other vectors
  each time. Here each sentence starts from zeros, as the first batch of a new `Embedder` did there.
- `<S>` and `</S>` as tokens are the sentence boundaries, too, and not only `<bos>` and `<eos>`.
- An empty list of sentences gives an empty list, and a layer that the model has not is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from elmo.api import load
from elmo.chars import BOS, EOS
from elmo.embed import Layers, Vectors
from elmo.errors import ElmoError

_AVERAGE, _ALL = -1, -2
_BOUNDARIES = {"<bos>": BOS, "<eos>": EOS}


class Embedder:
    """Embeds sentences with a model of ELMoForManyLangs, or any other that `elmo.load` reads."""

    def __init__(self, model_dir: str | PathLike[str], batch_size: int = 64) -> None:
        """Load a model.

        Args:
            model_dir: the model's folder.
            batch_size: has no effect on the vectors; kept since old code gives it.
        """
        if type(batch_size) is not int or batch_size < 1:
            raise ElmoError(f"batch_size is {batch_size!r}: give a whole number, 1 or more")
        self.model = load(model_dir)
        self.batch_size = batch_size

    def sents2elmo(self, sents: Sequence[Sequence[str]], output_layer: int = _AVERAGE) -> list[Vectors]:
        """Vectors of sentences, one array each.

        Args:
            sents: lists of tokens.
            output_layer: 0 the word layer, 1 and 2 those of the LSTMs, -1 the average of all: `(tokens, dim)`; -2 all
                of them: `(layers, tokens, dim)`.
        """
        n_layers = self.model.config.n_layers
        if type(output_layer) is not int or not _ALL <= output_layer < n_layers:
            raise ElmoError(
                f"output_layer is {output_layer!r}: give 0 to {n_layers - 1}, -1 for the average or -2 for all layers"
            )
        named: dict[int, Layers] = {_AVERAGE: "average", _ALL: "all"}
        tokens = [[_BOUNDARIES.get(token, token) for token in sent] for sent in sents]
        return self.model.embed(tokens, layers=named.get(output_layer, output_layer))
