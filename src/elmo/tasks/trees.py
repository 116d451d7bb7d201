"""Texts with a label: trees of the Stanford Sentiment Treebank, or a label and a text a line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elmo.errors import ElmoError
from elmo.tasks.files import lines, plain, wrong
from elmo.tasks.metrics import Span

# A word may have white space in it, but no plain space: the treebank has one with a no-break space.
_NODE = re.compile(
    r"""[ ]*(?:
        \( [ ]* (?P<label>[^() \t]+) [ ]+ (?P<word>[^() \t]+) [ ]* \)
      | \( [ ]* (?P<inner>[^() \t]+) (?= [ ]*\( )
      | (?P<end>\))
    )[ ]*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class LabelledText:
    """A text and what it is said to be."""

    tokens: tuple[str, ...]
    label: str = ""
    """Nothing if not known."""
    phrases: tuple[Span, ...] = ()
    """Parts of it with labels of their own: the label, the first token, and the token behind the last."""


def read_labelled(path: str) -> list[LabelledText]:
    """Labelled texts, one a line.

    A line is a tree such as `(3 (2 It) (4 (2 works) (2 .)))`, with a label for each part, or a label, a tab, and tokens
    with spaces between them. Words of trees are made plain, see `plain`.
    """
    found = [
        _tree(path, number, line) if line.lstrip().startswith("(") else _row(path, number, line)
        for number, line in lines(path)
        if line.strip()
    ]
    if not found:
        raise ElmoError(f"{path} has no labelled text in it")
    return found


def _row(path: str, number: int, line: str) -> LabelledText:
    label, _, text = line.partition("\t")
    if not label.strip() or not text.split():
        raise wrong(path, number, f"{line!r:.40}", "a tree such as (3 (2 It) (3 works)), or a label, a tab, and tokens")
    return LabelledText(tuple(text.split()), label.strip())


def _tree(path: str, number: int, line: str) -> LabelledText:
    words: list[str] = []
    phrases: list[Span] = []
    begun: list[tuple[str, int]] = []
    place = 0
    while place < len(line):
        node = _NODE.match(line, place)
        if node is None or bool(words and not begun) or bool(node["end"] and not begun):
            at = f"{line[place:]!r:.30} at character {place + 1}"
            raise wrong(path, number, at, "one tree, its nodes (LABEL WORD) or (LABEL NODE NODE ...)")
        if node["inner"]:
            begun.append((node["inner"], len(words)))
        elif node["word"]:
            phrases.append((node["label"], len(words), len(words) + 1))
            words.append(plain(node["word"]))
        else:
            label, start = begun.pop()
            phrases.append((label, start, len(words)))
        place = node.end()
    if begun:
        raise wrong(path, number, f"the line's end with {len(begun)} open brackets", "an end for each")
    return LabelledText(tuple(words), phrases[-1][0], tuple(phrases))
