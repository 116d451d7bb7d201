"""Make the embedded model: a small biLM with random weights, until a pretrained one takes its place.

Run from the repository's root: `python scripts/make_default_model.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch

import elmo

CARD = """# The embedded model: random weights

A small biLM (2 layers, 128 cells, 32 out, each direction) whose weights were drawn at random, with bilm-tf's start
values, by `scripts/make_default_model.py`. It was trained on nothing and knows nothing: it is here so that everything
runs the moment it is installed, and will be replaced by a pretrained model.
"""


def main() -> None:
    """Draw the weights and write `src/elmo/models/default`."""
    torch.manual_seed(2018)
    bilm = elmo.BiLM(
        elmo.ModelConfig(
            lstm=elmo.LSTMConfig(
                dim=128, projection_dim=32, n_layers=2, cell_clip=3.0, proj_clip=3.0, use_skip_connections=True
            ),
            char_cnn=elmo.CharCNNConfig(filters=((1, 16), (2, 16), (3, 32), (4, 64)), n_highway=1),
        )
    )
    target = Path(__file__).parents[1] / "src" / "elmo" / "models" / "default"
    elmo.save(elmo.Model.of(bilm.eval(), card=CARD), target, overwrite=True)
    print(f"{target.relative_to(Path.cwd())}: {sum(p.numel() for p in bilm.parameters()):,} parameters")


if __name__ == "__main__":
    main()
