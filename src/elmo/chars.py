"""Words to character ids, as bilm-tf and AllenNLP number them for prediction (SEMANTICS section 1).

Shapes: N words, C characters a word (50), B sentences, T tokens of the longest sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ElmoError

# Every id is one more than in training: 0 means "no token here". A byte b is b + 1.
BEGIN_SENTENCE = 257
END_SENTENCE = 258
BEGIN_WORD = 259
END_WORD = 260
PAD = 261

BOS = "<S>"
EOS = "</S>"

CharIds = NDArray[np.int32]


def words_to_ids(words: Sequence[str], max_characters: int = 50) -> CharIds:
    """Encode words, each on its own: `(N,)` strings to `(N, C)` ids.

    A row is begin-word, the first C - 2 bytes of the word's UTF-8, end-word, padding. The cut may split a character.
    `<S>` and `</S>` are the sentence boundaries. Surrogates, which UTF-8 cannot encode, are dropped.
    """
    if isinstance(words, str):
        raise ElmoError(f"a list of words is expected, not the string {words[:40]!r}")
    room = max_characters - 2
    encoded = [word.encode("utf-8", "ignore")[:room] for word in words]
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    ids = np.full((len(encoded), max_characters), PAD, dtype=np.int32)
    ids[:, 0] = BEGIN_WORD
    ids[:, 1:-1][np.arange(room) < lengths[:, None]] = np.frombuffer(b"".join(encoded), dtype=np.uint8) + np.int32(1)
    ids[np.arange(len(encoded)), lengths + 1] = END_WORD
    for row, word in enumerate(words):
        if word in (BOS, EOS):
            ids[row] = boundary_row(word, max_characters)
    return ids


def boundary_row(boundary: str, max_characters: int = 50) -> CharIds:
    """The row `(C,)` of `<S>` or `</S>`."""
    row = np.full(max_characters, PAD, dtype=np.int32)
    row[:3] = BEGIN_WORD, BEGIN_SENTENCE if boundary == BOS else END_SENTENCE, END_WORD
    return row


def batch_to_ids(sentences: Sequence[Sequence[str]], max_characters: int = 50) -> CharIds:
    """Encode sentences, padded with zeros to the longest: `(B, T, C)`, without sentence boundaries."""
    longest = max(map(len, sentences), default=0)
    ids = np.zeros((len(sentences), longest, max_characters), dtype=np.int32)
    types: dict[str, int] = {}
    rows = [[types.setdefault(word, len(types)) for word in sentence] for sentence in sentences]
    table = words_to_ids(list(types), max_characters)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = table[row]
    return ids
