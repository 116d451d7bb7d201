"""What a word means where it stands: its senses, its nearest contexts, its substitutes. Run it with `make demo`."""

from __future__ import annotations

import numpy as np
from neighbours import held_out

import elmo
from elmo.explore.neighbours import Query, nearest

WORD = "bank"
SENTENCES = [
    "She sat on the bank of the river .",
    "They swam to the other bank of the river .",
    "The bank raised its interest rates again .",
    "The bank lent him the money for the house .",
]
LAYER_NAMES = ("words", "lower LSTM", "upper LSTM")
TO_REPLACE = [("She sat on the bank of the river .", 4), ("They lost the match by two goals .", 3)]


def similarities(model: elmo.Model) -> list[list[list[float]]]:
    """Cosines between the occurrences of the word, for each layer."""
    embedded = model.embed(SENTENCES, layers="all")
    places = [sentence.split().index(WORD) for sentence in SENTENCES]
    vectors = np.stack([layers[:, place] for layers, place in zip(embedded, places, strict=True)], axis=1)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    cosines: list[list[list[float]]] = (vectors @ vectors.transpose(0, 2, 1)).tolist()
    return cosines


def show_senses(model: elmo.Model) -> None:
    """A table of cosines for each layer."""
    print(f'One word, two senses. "{WORD}" in four sentences:\n')
    for number, sentence in enumerate(SENTENCES, start=1):
        print(f"  {number}  {sentence}")
    for layer, table in enumerate(similarities(model)):
        print(f"\nLayer {layer} ({LAYER_NAMES[layer]}): cosine between its vectors")
        print("     " + "".join(f"{number:>7}" for number in range(1, len(table) + 1)))
        for number, row in enumerate(table, start=1):
            print(f"  {number:>3}" + "".join(f"{cosine:7.2f}" for cosine in row))
    print("\nLayer 0 sees only the characters, so all its vectors are the same; the LSTM layers see the sentence.")


def show_contexts(model: elmo.Model) -> None:
    """The nearest of the held-out sentences, for one sentence of each sense."""
    text = held_out()
    print(f"\nNearest contexts of it among {len(text)} sentences that the model has not read (top layer):")
    queries = [Query(sentence, sentence.split().index(WORD)) for sentence in (SENTENCES[0], SENTENCES[2])]
    for query, hits in zip(queries, nearest(model.embedder(layers="top"), queries, text, 3), strict=True):
        print(f"\n  {' '.join(query.tokens)}")
        for hit in hits:
            print(f"    {hit.score:.2f}  {marked(list(hit.tokens), hit.position)}")


def marked(tokens: list[str], position: int) -> str:
    """Some words around a place, the word there in brackets."""
    around = [*tokens[:position], f"[{tokens[position]}]", *tokens[position + 1 :]]
    return " ".join(around[max(0, position - 7) : position + 8])


def show_substitutes(model: elmo.Model) -> None:
    """What else could stand in a place."""
    print("\nWhat both directions of the language model would put in its place:\n")
    for sentence, position in TO_REPLACE:
        words = ", ".join(one.word for one in model.substitutes(sentence, position, 6))
        print(f"  {marked(sentence.split(), position)}\n    {words}")


def main() -> None:
    """Show all three."""
    model = elmo.load()
    show_senses(model)
    show_contexts(model)
    show_substitutes(model)


if __name__ == "__main__":
    main()
