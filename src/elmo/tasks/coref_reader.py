"""Documents with their coreferent mentions, as two formats have them.

CoNLL-U with the brackets of CorefUD in its last column (`Entity=(1-person(2)`), documents beginning with `# newdoc`, as
OntoGUM has it; and the columns of CoNLL 2012, documents beginning with `#begin document`, as OntoNotes has it, whose
brackets and quotes are made plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from elmo.errors import ElmoError
from elmo.tasks.files import lines, plain, wrong

Mention = tuple[int, int]
"""First token, and the token behind the last, counted from the beginning of the document."""
Clusters = tuple[tuple[Mention, ...], ...]
"""Each has the mentions of one thing."""

_MARK = re.compile(r"\([^()|]+\)?|[^()|]+\)")
_PIECE = re.compile(r"\[(\d+)/\d+\]$")
_COLUMNS = 12  # of CoNLL 2012, at least: each predicate of a sentence adds one


@dataclass(frozen=True)
class Document:
    """A text whose mentions may be known."""

    name: str
    sentences: tuple[tuple[str, ...], ...]
    speakers: tuple[str, ...]
    """Of each sentence, empty where unknown."""
    clusters: Clusters = ()
    """In the order of their first mentions."""

    @property
    def tokens(self) -> list[str]:
        """Those of all sentences."""
        return [token for sentence in self.sentences for token in sentence]


@dataclass
class _Open:
    """A document that is being read."""

    path: str
    name: str
    begun: int
    sentences: list[tuple[str, ...]] = field(default_factory=list)
    speakers: list[str] = field(default_factory=list)
    speaker: str = ""
    tokens: list[str] = field(default_factory=list)
    length: int = 0
    """Tokens of the sentences that have ended."""
    waiting: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Mentions without an end: first token and line of each."""
    mentions: dict[Mention, str] = field(default_factory=dict)
    """A mention is of one cluster, the first that closes it: no score has a place for two."""

    def add(self, token: str, marks: str, line: int) -> None:
        """A token, and the brackets at it."""
        place = self.length + len(self.tokens)
        self.tokens.append(token)
        found = _MARK.findall(marks)
        if "".join(found) != marks.replace("|", ""):
            raise wrong(self.path, line, f"{marks!r:.60}", "brackets such as (1, (1) or 1), one behind the other")
        for mark in found:
            name = mark.strip("()").split("-")[0]
            if mark.startswith("("):
                self.waiting.setdefault(name, []).append((place, line))
            if mark.endswith(")"):
                self._close(name, place, line)

    def _close(self, name: str, place: int, line: int) -> None:
        if not self.waiting.get(name):
            raise wrong(self.path, line, f"the end of a mention of {name!r}", "its beginning, before it")
        start, _ = self.waiting[name].pop()
        piece = _PIECE.search(name)
        if piece is None or piece[1] == "1":  # of a mention in pieces, the first stands for all
            self.mentions.setdefault((start, place + 1), _PIECE.sub("", name))

    def end_sentence(self) -> None:
        """What follows is of another sentence."""
        if self.tokens:
            self.sentences.append(tuple(self.tokens))
            self.speakers.append(self.speaker)
            self.length += len(self.tokens)
        self.tokens, self.speaker = [], ""

    def end(self) -> Document:
        """The whole."""
        self.end_sentence()
        for name, begun in self.waiting.items():
            if begun:
                raise wrong(self.path, begun[0][1], f"the beginning of a mention of {name!r}", "its end, behind it")
        if not self.sentences:
            raise wrong(self.path, self.begun, f"document {self.name!r} without a sentence", "some")
        clusters: dict[str, list[Mention]] = {}
        for mention in sorted(self.mentions):
            clusters.setdefault(self.mentions[mention], []).append(mention)
        return Document(
            self.name, tuple(self.sentences), tuple(self.speakers), tuple(tuple(one) for one in clusters.values())
        )


def read_documents(path: str) -> list[Document]:
    """Documents of a file, either format."""
    numbered = list(lines(path))
    first = next((line for _, line in numbered if line.strip()), "")
    columns = first.startswith("#begin document")
    documents = [one.end() for one in (_read_columns if columns else _read_conllu)(path, numbered)]
    if not documents:
        raise ElmoError(f"{path} has no document in it: they begin with '# newdoc' or '#begin document'")
    return documents


def _read_conllu(path: str, numbered: Iterable[tuple[int, str]]) -> list[_Open]:
    found: list[_Open] = []
    for number, line in numbered:
        key, _, value = line.removeprefix("#").partition("=")
        key = key.strip() if line.startswith("#") else ""
        if key in ("newdoc", "newdoc id"):
            found.append(_Open(path, value.strip() or str(len(found) + 1), number))
        elif key == "speaker" and found:
            found[-1].speaker = value.strip()
        elif line.strip() and not line.startswith("#"):
            if not found:
                raise wrong(path, number, "a word outside of a document", "'# newdoc' or '#begin document' before it")
            _add_conllu(found[-1], line, number)
        elif not line.strip() and found:
            found[-1].end_sentence()
    return found


def _add_conllu(document: _Open, line: str, number: int) -> None:
    fields = line.split("\t")
    if len(fields) != 10:
        raise wrong(document.path, number, f"{len(fields)} columns", "10, with tabs between them, as CoNLL-U has them")
    marks = "".join(
        value for entry in fields[9].split("|") for key, _, value in [entry.partition("=")] if key == "Entity"
    )
    if "-" in fields[0] or "." in fields[0]:
        if marks:
            raise wrong(document.path, number, f"a mention at {fields[0]!r}", "mentions of words only")
        return
    if fields[0] != str(len(document.tokens) + 1):
        raise wrong(document.path, number, f"token number {fields[0]!r}", str(len(document.tokens) + 1))
    if not fields[1].strip():
        raise wrong(document.path, number, "no word", "one in column 2")
    document.add(fields[1], marks, number)


def _read_columns(path: str, numbered: Iterable[tuple[int, str]]) -> list[_Open]:
    found: list[_Open] = []
    inside = False
    for number, line in numbered:
        if line.startswith("#begin document"):
            if inside:
                raise wrong(path, number, "the beginning of a document", "'#end document' before it")
            found.append(_Open(path, line.removeprefix("#begin document").strip(), number))
            inside = True
        elif line.startswith("#end document"):
            inside = False
        elif line.strip() and not line.startswith("#"):
            if not inside:
                raise wrong(path, number, "a word outside of a document", "'#begin document' before it")
            _add_columns(found[-1], line.split(), number)
        elif not line.strip() and inside:
            found[-1].end_sentence()
    if inside:
        raise wrong(path, found[-1].begun, "a document without an end", "'#end document' behind it")
    return found


def _add_columns(document: _Open, fields: list[str], number: int) -> None:
    if len(fields) < _COLUMNS:
        raise wrong(document.path, number, f"{len(fields)} columns", f"{_COLUMNS} or more, as CoNLL 2012 has them")
    if fields[2] != str(len(document.tokens)):
        raise wrong(document.path, number, f"word number {fields[2]!r}", str(len(document.tokens)))
    document.speaker = fields[9] if fields[9] != "-" else ""
    document.add(plain(fields[3]), fields[-1] if fields[-1] != "-" else "", number)
