"""Held-out perplexity of a unigram model on a prepared corpus, to compare a language model with.

`python scripts/unigram_perplexity.py corpus`: frequencies of the training split, one added to each, over the same
positions that the forward direction predicts (the words and the end of each sentence).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from elmo.lm.batches import EOS_TYPE
from elmo.lm.corpus import Corpus


def main() -> None:
    """Print it."""
    corpus = Corpus.open(Path(sys.argv[1]))
    counts, targets, valid = np.asarray(corpus.counts()) + 1.0, np.asarray(corpus.targets()), corpus.split("valid")
    counts[targets[0]] = 0  # `<S>` is never predicted forward
    logs = np.log(counts / counts.sum(), where=counts > 0, out=np.full(len(counts), -np.inf))
    words = np.concatenate([targets[np.asarray(shard.tokens)] for shard in valid.shards])
    total = logs[words].sum() + valid.n_sentences * logs[targets[EOS_TYPE]]
    print(f"{np.exp(-total / (len(words) + valid.n_sentences)):.1f}")


if __name__ == "__main__":
    main()
