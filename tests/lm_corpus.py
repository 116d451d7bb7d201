"""A small prepared corpus in memory, with the interface of `elmo.lm.corpus`, and a text with something to learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from elmo.chars import words_to_ids
from elmo.vocab import SPECIAL_WORDS, Vocabulary

Sentences = list[list[str]]


@dataclass
class MemoryShard:
    tokens: Any
    starts: Any


@dataclass
class MemorySplit:
    shards: list[MemoryShard]

    @property
    def n_sentences(self) -> int:
        return sum(len(shard.starts) - 1 for shard in self.shards)

    @property
    def n_tokens(self) -> int:
        return sum(len(shard.tokens) for shard in self.shards)


class MemoryCorpus:
    def __init__(self, train: list[Sentences], valid: Sentences, n_words: int = 1000) -> None:
        """Each list of `train` becomes a shard; the vocabulary holds the most frequent words."""
        tokens = [word for shard in train for sentence in shard for word in sentence]
        counted = {word: tokens.count(word) for word in dict.fromkeys(tokens)}
        frequent = sorted(counted, key=lambda word: (-counted[word], word))[:n_words]
        self.vocab = Vocabulary([*SPECIAL_WORDS, *frequent])
        held_out = [word for sentence in valid for word in sentence]
        self.types = list(dict.fromkeys(["<S>", "</S>", *tokens, *held_out]))
        self.n_types = len(self.types)
        self._splits = {"train": [self._shard(shard) for shard in train], "valid": [self._shard(valid)]}
        ends = sum(map(len, train))
        unknown = len(tokens) - sum(counted[word] for word in frequent)
        counted |= {"<S>": ends, "</S>": ends, "<UNK>": unknown}
        self._counts = np.array([counted[word] for word in self.vocab], dtype=np.int64)
        self.digest = hashlib.sha256(repr((train, valid, n_words)).encode()).hexdigest()

    def _shard(self, sentences: Sentences) -> MemoryShard:
        places = {word: place for place, word in enumerate(self.types)}
        tokens = [places[word] for sentence in sentences for word in sentence]
        starts = np.cumsum([0, *map(len, sentences)])
        return MemoryShard(np.array(tokens, dtype=np.uint32), starts.astype(np.uint64))

    def characters(self) -> Any:
        return words_to_ids(self.types)

    def targets(self) -> Any:
        return np.array(self.vocab.ids(self.types), dtype=np.int32)

    def counts(self) -> Any:
        return self._counts

    def split(self, name: Literal["train", "valid"]) -> MemorySplit:
        return MemorySplit(self._splits[name])


def sentences(number: int, seed: int = 0) -> Sentences:
    """Sentences of a small grammar, so that what comes next can be learned in either direction."""
    rng = np.random.default_rng(seed)
    nouns, verbs = ["cat", "dog", "bird", "child", "teacher"], ["sees", "hears", "likes", "follows"]
    result = []
    for _ in range(number):
        subject, thing = rng.choice(nouns, 2)
        sentence = ["the", str(subject), str(rng.choice(verbs)), "the", str(thing)]
        sentence += [str(rng.choice(["today", "again"]))] * int(rng.integers(0, 2))
        result.append([*sentence, "."])
    return result


def small_corpus(number: int = 300) -> MemoryCorpus:
    return MemoryCorpus([sentences(number, 0), sentences(number // 2, 1)], sentences(40, 2))
