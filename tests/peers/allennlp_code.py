"""Code as users of AllenNLP wrote it, run by AllenNLP 2.10.1 and by this library: only the import differs.

    python allennlp_code.py layers|mix|norm|cached|train MODEL TEXT OUT.npz [STATE_DICT]

MODEL is a folder of bilm-tf's files, TEXT has a tokenised sentence a line. Only the standard library, numpy and torch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

if importlib.util.find_spec("allennlp"):
    from allennlp.modules.elmo import Elmo, _ElmoBiLm, batch_to_ids
else:
    from elmo.compat.allennlp import Elmo, _ElmoBiLm, batch_to_ids

ROWS = [7, 32, 1, 50, 3, 64, 20]  # batches of changing size: rows come and go, and so does their state
MIX = [0.3, -1.0, 0.7, 0.1, -0.4]

Batch = list[list[str]]
Arrays = dict[str, Any]


def batches(sentences: Batch) -> Iterator[Batch]:
    """The sentences in their order."""
    start = number = 0
    while start < len(sentences):
        rows = ROWS[number % len(ROWS)]
        yield sentences[start : start + rows]
        start, number = start + rows, number + 1


def layers(files: tuple[str, str], sentences: Batch) -> Arrays:
    """Every layer, boundaries included, and the state that is left."""
    bilm = _ElmoBiLm(*files).eval()
    found: Arrays = {}
    for number, batch in enumerate(batches(sentences)):
        output = bilm(batch_to_ids(batch))
        found[f"mask {number}"] = output["mask"]
        for layer, vectors in enumerate(output["activations"]):
            found[f"layer {layer} {number}"] = vectors
    for name, part in zip("mc", bilm._elmo_lstm._states, strict=True):
        found[f"state {name}"] = part
    return found


def mix(files: tuple[str, str], sentences: Batch) -> Arrays:
    """Two learned mixes, each with its own weights."""
    elmo = Elmo(*files, 2, dropout=0.0).eval()
    with torch.no_grad():
        for name, weight in elmo.named_parameters():
            if "scalar_mix_1" in name:
                weight.fill_(1.5 if name.endswith("gamma") else MIX[int(name[-1])])
    return representations(elmo, sentences)


def norm(files: tuple[str, str], sentences: Batch) -> Arrays:
    """Layer norm, boundaries kept, weights fixed."""
    n_layers = _ElmoBiLm(*files).num_layers
    elmo = Elmo(
        *files, 1, do_layer_norm=True, keep_sentence_boundaries=True, scalar_mix_parameters=MIX[:n_layers], dropout=0.5
    )
    return representations(elmo.eval(), sentences)


def cached(files: tuple[str, str], sentences: Batch) -> Arrays:
    """Words looked up by number; every fifth batch has a word that is not there, and is read by its characters."""
    words = sorted({word for sentence in sentences for word in sentence})
    numbers = {word: i for i, word in enumerate(["@@PADDING@@", *words])}
    elmo = Elmo(*files, 1, vocab_to_cache=list(numbers), dropout=0.0).eval()
    found: Arrays = {}
    for number, batch in enumerate(batches(sentences)):
        longest = max(map(len, batch))
        ids = torch.tensor([[numbers[w] for w in row] + [0] * (longest - len(row)) for row in batch])
        if number % 5 == 4:
            ids[0, 0] = len(numbers)
        found[f"mixed {number}"] = elmo(batch_to_ids(batch), ids)["elmo_representations"][0]
    return found


def representations(elmo: Any, sentences: Batch) -> Arrays:
    """All that a module returns."""
    found: Arrays = {}
    for number, batch in enumerate(batches(sentences)):
        output = elmo(batch_to_ids(batch))
        found[f"mask {number}"] = output["mask"]
        for k, vectors in enumerate(output["elmo_representations"]):
            found[f"output {k} {number}"] = vectors
    return found


class Tagger(torch.nn.Module):
    """A task model with ELMo at its input and its output."""

    def __init__(self, files: tuple[str, str]) -> None:
        """Three tags, the biLM trained too."""
        super().__init__()
        self.elmo = Elmo(*files, 2, requires_grad=True, dropout=0.0)
        torch.manual_seed(1)  # AllenNLP draws start values before it reads its weights
        width = self.elmo.get_output_dim()
        self.encoder = torch.nn.GRU(width, 8, batch_first=True)
        self.tags = torch.nn.Linear(8 + width, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of the tags."""
        at_input, at_output = self.elmo(ids)["elmo_representations"]
        encoded, _ = self.encoder(at_input)
        scores: torch.Tensor = self.tags(torch.cat([encoded, at_output], dim=-1))
        return scores


def train(files: tuple[str, str], sentences: Batch, saved: Path) -> Arrays:
    """Load a saved task model, or train and save one where there is none; what it then says, and its weights."""
    tagger = Tagger(files)
    found: Arrays = {}
    if saved.exists():
        tagger.load_state_dict(torch.load(saved), strict=True)
    else:
        # Plain steps: an optimizer that divides by a gradient's size makes much of one that is rounding alone.
        optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
        for step in range(4):
            batch = batch_to_ids(sentences[4 * step : 4 * step + 4])
            loss = tagger(batch).softmax(dim=-1)[..., 0].mean() + 0.01 * sum(
                w.square().sum() for w in tagger.parameters()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found[f"loss {step}"] = loss
        torch.save(tagger.state_dict(), saved)
        tagger.elmo._elmo_lstm._elmo_lstm.reset_states()
    tagger.eval()
    with torch.no_grad():
        found["scores"] = tagger(batch_to_ids(sentences[16:48]))
    return found | {f"weight {name}": weight for name, weight in tagger.state_dict().items()}


def main() -> None:
    """Run one of the functions and write what it gives."""
    what, folder, text, out, *rest = sys.argv[1:]
    files = (f"{folder}/options.json", f"{folder}/weights.hdf5")
    sentences = [line.split(" ") for line in Path(text).read_text(encoding="utf-8").split("\n")[:-1]]
    if what == "train":
        found = train(files, sentences, Path(rest[0]))
    else:
        with torch.no_grad():
            found = {"layers": layers, "mix": mix, "norm": norm, "cached": cached}[what](files, sentences)
    np.savez(out, **{name: value.detach().numpy() for name, value in found.items()})
    print(json.dumps({"torch": torch.__version__, "arrays": len(found)}))


if __name__ == "__main__":
    main()
