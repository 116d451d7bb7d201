"""Check that AllenNLP reads what `elmo` exports, and gives the same vectors.

AllenNLP 2.10.1 needs a Python of its own (3.10), so this takes two steps, one in each environment:

    python scripts/check_allennlp_export.py write MODEL FOLDER   # here: export MODEL, and embed some sentences with it
    python scripts/check_allennlp_export.py compare FOLDER       # where AllenNLP is: load the export, embed, compare

AllenNLP carries its LSTM state from batch to batch; all sentences are one batch here, which starts from zero, as ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

LIMIT = 1e-5
SENTENCES = [
    "The cat sat on the mat .",
    "Hello",
    "A longer sentence , with (unusual) tokens: naïve café 日本語 don't 3.14 !",
    "Pneumonoultramicroscopicsilicovolcanoconiosis-is-longer-than-fifty-characters is cut .",
    "He sees the court of the judge , and the judge dismisses the claim of the party .",
]


def write(model: str, folder: Path) -> None:
    """Export a model as bilm-tf's files, and write down its vectors."""
    import elmo

    loaded = elmo.load(model)
    elmo.save(loaded, folder, format="bilm-tf")
    vectors = loaded.embed(SENTENCES, layers="all")  # (layers, tokens, dim) each
    np.savez(folder.with_suffix(".npz"), *vectors)
    folder.with_suffix(".json").write_text(json.dumps(SENTENCES), encoding="utf-8")


def compare(folder: Path) -> float:
    """The largest difference between AllenNLP's vectors and those written down, over all layers."""
    import torch
    from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids

    sentences = [sentence.split() for sentence in json.loads(folder.with_suffix(".json").read_text(encoding="utf-8"))]
    network = _ElmoBiLm(str(folder / "options.json"), str(folder / "weights.hdf5")).eval()
    with torch.no_grad():
        layers = [layer.numpy() for layer in network(batch_to_ids(sentences))["activations"]]
    worst = 0.0
    with np.load(folder.with_suffix(".npz")) as stored:
        for row, sentence in enumerate(sentences):
            ours = stored[f"arr_{row}"]
            theirs = np.stack([layer[row, 1 : len(sentence) + 1] for layer in layers])  # without <S> and </S>
            if ours.shape != theirs.shape:
                sys.exit(f"sentence {row}: shape {ours.shape}, AllenNLP has {theirs.shape}")
            worst = max(worst, float(np.abs(ours - theirs).max()))
    return worst


def main() -> None:
    """Do one of the two steps."""
    if len(sys.argv) == 4 and sys.argv[1] == "write":
        write(sys.argv[2], Path(sys.argv[3]))
    elif len(sys.argv) == 3 and sys.argv[1] == "compare":
        worst = compare(Path(sys.argv[2]))
        print(f"largest difference: {worst:.2e} (allowed: {LIMIT:g})")
        sys.exit(int(not worst <= LIMIT))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
