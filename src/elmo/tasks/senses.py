"""Word senses by the nearest neighbour: section 5.3 of the paper.

In training text with known senses, a sense's vector is the mean of those of its uses, each of length 1. A word is given
the sense of its lemma and part of speech whose vector is nearest to its own, of length 1 as well; the first sense of an
inventory if training has none. An expression of several words has the mean of their vectors.

A mean is shorter than 1, the more so the more its uses differ, and a word that stands at a wide angle to two senses is
nearer to the shorter mean. Held-out parts of SemCor speak for that and against the cosine, on the layers that know of
the context (`scripts/sense_measures.py`).

Shapes: L layers, S senses, T tokens, D width of a layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmo.embed import Embedder, Vectors
from elmo.tasks.metrics import SenseScore, sense_score
from elmo.tasks.sense_readers import Inventory, Lemma, SenseInstance, SenseSentence, lemma_of_key
from elmo.tasks.vectors import Report, embed_in_text_order

FIRST = "first sense"
FREQUENT = "most frequent sense"


@dataclass(frozen=True)
class SenseCounts:
    """How often each sense of each lemma stands in the training text."""

    of: Mapping[Lemma, Mapping[str, int]]

    @classmethod
    def count(cls, sentences: Sequence[SenseSentence]) -> SenseCounts:
        """Count; a use with several right senses counts for each."""
        counts: defaultdict[Lemma, Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for instance in sentence.instances:
                for lemma, key in _senses(instance):
                    counts[lemma][key] += 1
        return cls(dict(counts))

    def most_frequent(self, lemma: Lemma, inventory: Inventory) -> str | None:
        """The most frequent sense of a lemma, of several alike the inventory's first; if unseen, its first of all."""
        ordered = inventory.get(lemma, ())
        if (counts := self.of.get(lemma)) is None:
            return first_sense(lemma, inventory)
        rank = {key: place for place, key in enumerate(ordered)}
        return min(counts, key=lambda key: (-counts[key], rank.get(key, len(rank))))


@dataclass(frozen=True)
class SenseVectors:
    """A vector for each sense that training has seen."""

    places: Mapping[Lemma, Mapping[str, int]]
    """Where the senses of a lemma are among the vectors."""
    vectors: NDArray[np.float32]
    """`(L, S, D)`."""

    @classmethod
    def learn(cls, embedder: Embedder, sentences: Sequence[SenseSentence], report: Report) -> SenseVectors:
        """The mean vector of each sense's uses, by layer; the embedder has a list of layers in its settings."""
        places: defaultdict[Lemma, dict[str, int]] = defaultdict(dict)
        n_senses = 0
        for sentence in sentences:
            for instance in sentence.instances:
                for lemma, key in _senses(instance):
                    if key not in places[lemma]:
                        places[lemma][key] = n_senses
                        n_senses += 1
        sums = np.zeros((len(embedder.layers), n_senses, embedder.config.dim), np.float32)
        counts = np.zeros(n_senses, np.float32)
        for place, vectors_LTD in embed_in_text_order(embedder, [one.tokens for one in sentences], report):
            for instance in sentences[place].instances:
                vector_LD = vector_of(instance, vectors_LTD)
                for lemma, key in _senses(instance):
                    sums[:, places[lemma][key]] += vector_LD
                    counts[places[lemma][key]] += 1
        sums /= counts[:, None]
        return cls(dict(places), sums)

    def nearest(self, lemma: Lemma, vector_LD: NDArray[np.float32]) -> list[str] | None:
        """The nearest sense of a lemma by each layer; None if training has not seen it."""
        if (places := self.places.get(lemma)) is None:
            return None
        keys = list(places)
        distances_LK = np.linalg.norm(self.vectors[:, list(places.values())] - vector_LD[:, None], axis=-1)
        return [keys[place] for place in distances_LK.argmin(axis=1)]


@dataclass(frozen=True)
class SenseScores:
    """What `disambiguate` found."""

    sets: Mapping[str, Mapping[str, SenseScore]]
    """Test set to system to score; systems are the two baselines and `layer 0`, `layer 1` ..."""
    unseen: Mapping[str, int]
    """Test set to the number of instances whose lemma training has not seen."""

    def total(self) -> dict[str, SenseScore]:
        """Scores of all sets put together."""
        systems = next(iter(self.sets.values()))
        return {name: sum((of[name] for of in self.sets.values()), SenseScore(0, 0, 0)) for name in systems}


def first_sense(lemma: Lemma, inventory: Inventory) -> str | None:
    """The first sense of an inventory."""
    return inventory.get(lemma, (None,))[0]


def vector_of(instance: SenseInstance, vectors_LTD: Vectors) -> NDArray[np.float32]:
    """The mean of the vectors of an instance's words, brought to length 1: `(L, D)`."""
    found: NDArray[np.float32] = vectors_LTD[:, instance.start : instance.end].mean(axis=1, dtype=np.float32)
    found /= np.maximum(np.linalg.norm(found, axis=-1, keepdims=True), 1e-12)
    return found


def disambiguate(
    embedder: Embedder,
    train: Sequence[SenseSentence],
    tests: Mapping[str, Sequence[SenseSentence]],
    inventory: Inventory,
    *,
    report: Callable[[str, int, int], None] = lambda what, sentences, tokens: None,
) -> SenseScores:
    """Score the senses that each layer gives to the words of test sets, and two baselines that ask no context.

    Args:
        embedder: has a list of layers in its settings.
        train: text with known senses, such as SemCor.
        tests: test sets by name.
        inventory: the senses of lemmas; the first is the answer where training has none.
        report: told, of each data set, how many sentences and tokens are embedded.
    """
    counts = SenseCounts.count(train)
    senses = SenseVectors.learn(embedder, train, lambda sentences, tokens: report("train", sentences, tokens))
    sets: dict[str, dict[str, SenseScore]] = {}
    unseen: dict[str, int] = {}
    for name, sentences in tests.items():

        def reading(sentences: int, tokens: int, name: str = name) -> None:
            report(name, sentences, tokens)

        gold: list[tuple[str, ...]] = []
        answers: defaultdict[str, list[str | None]] = defaultdict(list)
        new = 0
        for place, vectors_LTD in embed_in_text_order(embedder, [one.tokens for one in sentences], reading):
            for instance in sentences[place].instances:
                gold.append(instance.keys)
                first = first_sense(instance.lemma, inventory)
                answers[FIRST].append(first)
                answers[FREQUENT].append(counts.most_frequent(instance.lemma, inventory))
                nearest = senses.nearest(instance.lemma, vector_of(instance, vectors_LTD))
                new += nearest is None
                for number, layer in enumerate(embedder.layers):
                    answers[f"layer {layer}"].append(first if nearest is None else nearest[number])
        systems = [FIRST, FREQUENT, *(f"layer {layer}" for layer in embedder.layers)]
        sets[name] = {system: sense_score(gold, answers[system]) for system in systems}
        unseen[name] = new
    return SenseScores(sets, unseen)


def _senses(instance: SenseInstance) -> list[tuple[Lemma, str]]:
    """The lemma and key of each right sense; a key that is none of WordNet's is left out."""
    return [(lemma, key) for key in instance.keys if (lemma := lemma_of_key(key)) is not None]
