"""Tokens of the raw text in the tasks' archives, for machines without spaCy: `elmo reproduce --tokens FILE` reads them.

python scripts/pretokenise.py ../shared/data/tasks -o tokens.xz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from elmo.reproduce.lab import Lab, Study
from elmo.tasks.texts import write_tokens


def main() -> None:
    """Read the two tasks with raw text, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    lab = Lab(Study(data=options.data, runs=Path("runs"), device=torch.device("cpu")))
    sets = [examples for name in ("squad", "inference") for examples in lab.data(name).sets]
    texts = [text for examples in sets for example in examples for text in vars(example).values()]
    write_tokens(options.out, [text for text in texts if hasattr(text, "raw")])


if __name__ == "__main__":
    main()
