"""Static word vectors for task models: what a word is without its sentence, the `x` of the paper's `[x; ELMo]`.

    pip install gensim
    python scripts/static_vectors.py CORPUS -o src/elmo/models/static [--dim 100] [--epochs 3]

CORPUS is what `elmo prepare` made. Skip-grams with negative samples (word2vec, by gensim) over the words of its
vocabulary; a word outside it is left out, as gensim does with rare words.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from elmo.lm.corpus import Corpus
from elmo.tasks.words import WordVectors
from elmo.vocab import SPECIAL_WORDS


class Sentences:
    """The training part as lists of words, as often as it is asked for."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._words = np.array(corpus.vocab.words, dtype=object)
        self._targets = np.asarray(corpus.targets())

    def __iter__(self) -> Iterator[list[str]]:
        for shard in self._corpus.split("train").shards:
            starts = shard.starts.astype(np.int64)
            for block in range(0, len(starts) - 1, 2**14):
                cuts = starts[block : block + 2**14 + 1]
                ids = self._targets[np.asarray(shard.tokens[cuts[0] : cuts[-1]])]
                for sentence in np.split(ids, cuts[1:-1] - cuts[0]):
                    yield self._words[sentence[sentence >= len(SPECIAL_WORDS)]].tolist()


def main() -> None:
    """Train and write."""
    from gensim.models import Word2Vec

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    corpus = Corpus.open(options.corpus, verify=False)
    frequencies = dict(zip(corpus.vocab.words, np.asarray(corpus.counts()).tolist(), strict=True))
    model = Word2Vec(
        vector_size=options.dim, window=5, min_count=1, sg=1, negative=5, sample=1e-4, workers=options.workers, seed=0
    )
    words = corpus.vocab.words[len(SPECIAL_WORDS) :]
    model.build_vocab_from_freq({word: frequencies[word] for word in words})
    split = corpus.split("train")
    model.train(Sentences(corpus), total_words=split.n_tokens, total_examples=split.n_sentences, epochs=options.epochs)
    vectors = np.stack([model.wv[word] for word in words])
    WordVectors(tuple(words), vectors).write(options.out)


if __name__ == "__main__":
    main()
