"""Nearest contexts of a word in two senses, as a Markdown table: `python examples/neighbours.py`.

The text that is searched is held_out.tsv: every held-out sentence with one of the words (see held_out.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import elmo
from elmo.explore.neighbours import Query, nearest

QUERIES = [
    ("play", "He made a superb play in the last minute of the game ."),
    ("play", "She wrote a play for the theatre in London ."),
    ("bank", "They sat on the bank of the river ."),
    ("bank", "The bank raised its interest rates again ."),
    ("spring", "In the spring of 1920 he went back to Paris ."),
    ("spring", "The water of the spring was cold and clear ."),
    ("right", "You have the right to vote ."),
    ("right", "Turn right at the next corner ."),
    ("match", "They won the match by three goals ."),
    ("match", "The two values must match ."),
]
AROUND = 8  # words shown on each side


def held_out() -> list[list[str]]:
    """The sentences of held_out.tsv."""
    lines = (Path(__file__).parent / "held_out.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[1].split(" ") for line in lines]


def in_context(tokens: Sequence[str], position: int) -> str:
    """The words around one, which is bold."""
    first, last = max(0, position - AROUND), position + AROUND + 1
    shown = [f"**{token}**" if place == position else token for place, token in enumerate(tokens)][first:last]
    return f"{'... ' if first else ''}{' '.join(shown)}{' ...' if last < len(tokens) else ''}"


def main() -> None:
    """Search once for all queries, by the vectors that `model.embed` gives, and print the nearest of each."""
    model = elmo.load()
    queries = [Query(sentence, sentence.split().index(word)) for word, sentence in QUERIES]
    found = nearest(model.embedder(), queries, held_out(), 1, same_word=True)
    print("| asked | nearest in held-out text | cosine |\n|---|---|---|")
    for query, (hit, *_) in zip(queries, found, strict=True):
        asked, answer = in_context(query.tokens, query.position), in_context(hit.tokens, hit.position)
        print(f"| {asked} | {answer} | {hit.score:.2f} |".replace("_", "\\_"))


if __name__ == "__main__":
    main()
