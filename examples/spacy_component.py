"""One word in two senses, in a spaCy pipeline: `python examples/spacy_component.py`."""

from __future__ import annotations

import spacy

TEXTS = [
    "She sat on the bank of the river.",
    "They swam to the other bank of the river.",
    "The bank raised its interest rates again.",
    "The bank lent him the money for the house.",
]


def main() -> None:
    """Print how similar the word is to itself elsewhere."""
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")  # the model reads sentences
    nlp.add_pipe("elmo", config={"layers": "top"})
    docs = list(nlp.pipe(TEXTS))
    print(f"{len(docs[0])} tokens, vectors {docs[0]._.elmo.shape}")
    banks = [next(token for token in doc if token.text == "bank") for doc in docs]
    for text, bank in zip(TEXTS, banks, strict=True):
        print("  ".join(f"{bank.similarity(other):.2f}" for other in banks), " ", text)


if __name__ == "__main__":
    main()
