"""A word's vectors wherever it stands in a text, of which nothing else is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from elmo.embed import Embedder
from elmo.errors import ElmoError
from elmo.explore.neighbours import Query
from elmo.plot.figures import Occurrences


def find_occurrences(
    embedder: Embedder, word: str, sentences: Iterable[list[str]], examples: Mapping[str, Query], most: int
) -> Occurrences:
    """The first occurrences of a word in a text, in whatever case; the text is read no further.

    Args:
        embedder: one that gives all layers.
        word: it.
        sentences: the text, as tokens, from a list or a stream.
        examples: the word in sentences, by what a picture calls them.
        most: how many occurrences are looked for.
    """
    if most < 1:
        raise ElmoError(f"--most is {most}: give a whole number, 1 or more")
    wanted = word.casefold()
    having = (tokens for tokens in sentences if wanted in map(str.casefold, tokens))
    found: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = []
    for window in embedder.windows(having):
        for tokens, vectors_LTD in zip(window.sentences, window.vectors, strict=True):
            places = [place for place, token in enumerate(tokens) if token.casefold() == wanted]
            found += [vectors_LTD[:, place].astype(np.float32) for place in places]
        if len(found) >= most:
            break
    if not found:
        raise ElmoError(f"{word!r} is not in the text: give text with it (--text), or another word")
    shown = embedder.embed([query.tokens for query in examples.values()])
    vectors = [vectors_LTD[:, query.position] for vectors_LTD, query in zip(shown, examples.values(), strict=True)]
    return Occurrences(np.stack(found[:most]), dict(zip(examples, vectors, strict=True)))
