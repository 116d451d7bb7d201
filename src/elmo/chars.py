"""Words to ids, as bilm-tf and AllenNLP number them for prediction (SEMANTICS section 1).

Shapes: N words, C characters a word (50 in published models), B sentences, T tokens of the longest sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elmo.config import ModelConfig
from elmo.errors import ElmoError
from elmo.vocab import Vocabulary

# Every id is one more than in training: 0 means "no token here". A byte b is b + 1, and the marks follow.
BEGIN_SENTENCE = 257
END_SENTENCE = 258
BEGIN_WORD = 259
END_WORD = 260
PAD = 261

BOS = "<S>"
EOS = "</S>"

CharIds = NDArray[np.int32]


def words_to_ids(words: Sequence[str], max_characters: int = 50, alphabet: str | None = None) -> CharIds:
    """Encode words, each on its own: `(N,)` strings to `(N, C)` ids.

    A row is begin-word, the first C - 2 symbols of the word, end-word, padding. `<S>` and `</S>` are the sentence
    boundaries. Symbols are the bytes of the word's UTF-8: the cut may split a character, and surrogates, which UTF-8
    cannot encode, are dropped. With an `alphabet` they are its characters, numbered from 1; all that are not in it
    share one number behind it, and then come the marks.
    """
    if isinstance(words, str):
        raise ElmoError(f"a list of words is expected, not the string {words[:40]!r}")
    room = max_characters - 2
    symbols, lengths = _symbols(words, room, alphabet)
    shift = 0 if alphabet is None else len(alphabet) + 1 - 256  # of the marks
    ids = np.full((len(words), max_characters), PAD + shift, dtype=np.int32)
    ids[:, 0] = BEGIN_WORD + shift
    ids[:, 1:-1][np.arange(room) < lengths[:, None]] = symbols
    ids[np.arange(len(words)), lengths + 1] = END_WORD + shift
    for row, word in enumerate(words):
        if word in (BOS, EOS):
            ids[row] = boundary_row(word, max_characters, alphabet)
    return ids


def _symbols(words: Sequence[str], room: int, alphabet: str | None) -> tuple[CharIds, NDArray[np.int64]]:
    """Ids of all words' symbols, one word after the other, and how many each word has."""
    pieces: Sequence[str | bytes]
    if alphabet is None:
        pieces = encoded = [word.encode("utf-8", "ignore")[:room] for word in words]
        symbols = np.frombuffer(b"".join(encoded), dtype=np.uint8) + np.int32(1)
    else:
        numbers, other = _numbers(alphabet), len(alphabet) + 1
        pieces = cut = [word[:room] for word in words]
        symbols = np.array([numbers.get(character, other) for word in cut for character in word], dtype=np.int32)
    return symbols, np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))


@lru_cache(maxsize=4)
def _numbers(alphabet: str) -> dict[str, int]:
    return {character: number for number, character in enumerate(alphabet, start=1)}


def boundary_row(boundary: str, max_characters: int = 50, alphabet: str | None = None) -> CharIds:
    """The row `(C,)` of `<S>` or `</S>`."""
    row = np.full(max_characters, PAD, dtype=np.int32)
    row[:3] = BEGIN_WORD, BEGIN_SENTENCE if boundary == BOS else END_SENTENCE, END_WORD
    return row if alphabet is None else row + np.int32(len(alphabet) + 1 - 256)


def refuse_string(sentences: object) -> None:
    """Refuse one string where sentences are expected: each of its letters would be one."""
    if isinstance(sentences, str):
        raise ElmoError(f"a list of sentences is expected, not the string {sentences[:40]!r}: put it in a list")


def batch_to_ids(sentences: Sequence[Sequence[str]], max_characters: int = 50, alphabet: str | None = None) -> CharIds:
    """Encode sentences, padded with zeros to the longest: `(B, T, C)`, without sentence boundaries."""
    refuse_string(sentences)
    return _padded(sentences, lambda words: words_to_ids(words, max_characters, alphabet))


def model_ids(words: Sequence[str], config: ModelConfig, vocab: Vocabulary | None) -> CharIds:
    """What a model reads of words, each on its own: `(N, C)` character ids, or `(N,)` ids of its vocabulary.

    Where it has a table of words beside its characters, a last column says which row of it: `(N, C + 1)`.
    """
    cnn = config.char_cnn
    if cnn is None:
        return _word_ids(words, vocab)
    length = cnn.max_characters_per_token
    characters = words_to_ids(words, length, cnn.alphabet)
    if not cnn.word_dim:
        return characters
    return np.column_stack([characters, _word_ids([word[: length - 2] for word in words], vocab)])


def model_batch(sentences: Sequence[Sequence[str]], config: ModelConfig, vocab: Vocabulary | None) -> CharIds:
    """What a model reads of sentences, padded with zeros: `model_ids` as `(B, T)` or `(B, T, C)`, no boundaries."""
    return _padded(sentences, lambda words: model_ids(words, config, vocab))


def _word_ids(words: Sequence[str], vocab: Vocabulary | None) -> CharIds:
    assert vocab is not None  # Bundle.words says what is missing
    return np.array(vocab.ids(words), dtype=np.int32) + np.int32(1)


def _padded(sentences: Sequence[Sequence[str]], encode: Callable[[list[str]], CharIds]) -> CharIds:
    types: dict[str, int] = {}
    rows = [[types.setdefault(word, len(types)) for word in sentence] for sentence in sentences]
    table = encode(list(types))
    ids = np.zeros((len(rows), max(map(len, rows), default=0), *table.shape[1:]), dtype=np.int32)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = table[row]
    return ids
