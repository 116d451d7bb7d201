"""Make what tests/test_compat_*.py compare with: the results of the peers, for a tiny model.

    python scripts/make_compat_figures.py [--peers .peers]

Runs the scripts of tests/peers by AllenNLP's and simple_elmo's Pythons, which `make .peers/.made` sets up.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data" / "compat"
sys.path[:0] = [str(ROOT / "tests")]

from conftest import small_options, weight_shapes  # noqa: E402
from peers import material  # noqa: E402

SENTENCES = 43  # batches of 7, 32, 1 and 3
WORDS = 6  # at most


def run(peers: Path, peer: str, script: str, *arguments: object) -> None:
    """Run a script by a peer's Python."""
    quiet = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    python = str(peers / peer / "bin" / "python")
    command = [python, "-W", "ignore", str(ROOT / "tests" / "peers" / script), *map(str, arguments)]
    subprocess.run(command, check=True, env=quiet)


def main() -> None:
    """Write the model, the text and each script's results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers")
    peers: Path = parser.parse_args().peers
    DATA.mkdir(parents=True, exist_ok=True)
    options = small_options()
    rng = np.random.default_rng(8)
    with h5py.File(DATA / "weights.hdf5", "w") as file:
        for name, shape in weight_shapes(options).items():
            file[name] = rng.normal(0, 0.5, shape).astype(np.float32)
    (DATA / "options.json").write_text(json.dumps(options, indent=2) + "\n")
    sentences = [sentence[:WORDS] for sentence in material.drawn_sentences(SENTENCES)]
    text = DATA / "text.txt"
    text.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences), encoding="utf-8")
    for what in ("layers", "mix", "norm", "cached"):
        run(peers, "allennlp", "allennlp_code.py", what, DATA, text, DATA / f"{what}.npz")
    (DATA / "task.th").unlink(missing_ok=True)
    run(peers, "allennlp", "allennlp_code.py", "train", DATA, text, DATA / "train.npz", DATA / "task.th")
    run(peers, "simple_elmo", "simple_elmo_code.py", DATA, text, DATA / "simple_elmo.npz")
    for path in DATA.glob("*.npz"):
        with np.load(path) as stored:
            np.savez_compressed(path, **{name: stored[name] for name in stored.files})


if __name__ == "__main__":
    main()
