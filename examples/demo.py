"""One word in several contexts: how alike are its vectors, layer by layer? Run it with `make demo`."""

from __future__ import annotations

import numpy as np

import elmo

WORD = "bank"
SENTENCES = [
    "She sat on the bank of the river and watched the boats .",
    "The grassy bank of the stream was wet .",
    "He opened an account at the bank in town .",
    "The bank raised its interest rates again .",
]
LAYER_NAMES = ("words", "lower LSTM", "upper LSTM")


def similarities(model: elmo.Model) -> list[list[list[float]]]:
    """Cosines between the occurrences of the word, for each layer."""
    embedded = model.embed(SENTENCES, layers="all")
    places = [sentence.split().index(WORD) for sentence in SENTENCES]
    vectors = np.stack([layers[:, place] for layers, place in zip(embedded, places, strict=True)], axis=1)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    cosines: list[list[list[float]]] = (vectors @ vectors.transpose(0, 2, 1)).tolist()
    return cosines


def main() -> None:
    """Print the sentences, then a table of cosines for each layer."""
    model = elmo.load()
    print(f'The word "{WORD}" in four sentences:\n')
    for number, sentence in enumerate(SENTENCES, start=1):
        print(f"  {number}  {sentence}")
    for layer, table in enumerate(similarities(model)):
        print(f"\nLayer {layer} ({LAYER_NAMES[min(layer, 2)]}): cosine between its vectors")
        print("     " + "".join(f"{number:>7}" for number in range(1, len(table) + 1)))
        for number, row in enumerate(table, start=1):
            print(f"  {number:>3}" + "".join(f"{cosine:7.2f}" for cosine in row))
    print("\nLayer 0 sees only the characters, so all its vectors are the same; the LSTM layers see the sentence.")
    if model.card is not None and "random weights" in model.card:
        print("The embedded model still has random weights: the figures show the machinery, not the language.")


if __name__ == "__main__":
    main()
