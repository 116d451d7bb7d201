"""Word sense data as published: the framework's XML and keys, SemCor as JSON lines, a sense inventory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from xml.parsers import expat

from elmo.errors import ElmoError
from elmo.tasks.files import json_lines, lines, names_below, plain, read_bytes, wrong

Lemma = tuple[str, str]
"""A lemma in lower case, with `_` between its words, and its part of speech: n, v, a or r."""
Inventory = Mapping[Lemma, tuple[str, ...]]
"""The sense keys of each lemma, the first sense first."""

_KEY_POS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}  # WordNet's numbers; 5 is a satellite adjective
_XML_POS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}


@dataclass(frozen=True)
class SenseInstance:
    """A word, or several in a row, used in some sense."""

    id: str
    lemma: Lemma
    start: int
    """First of its tokens."""
    end: int
    """The token behind its last."""
    keys: tuple[str, ...]
    """Right senses, any of which will do: WordNet's sense keys, such as `bank%1:17:01::`."""


@dataclass(frozen=True)
class SenseSentence:
    """A sentence, some of whose words have a known sense."""

    tokens: tuple[str, ...]
    instances: tuple[SenseInstance, ...]


def read_semcor(path: str) -> list[SenseSentence]:
    """Sentences of SemCor as JSON lines, each with `id`, `tokens` (words of one sense joined by `_`) and `senses`."""
    sentences = [_semcor_sentence(record, partial(wrong, path, number)) for number, record in json_lines(path)]
    if not sentences:
        raise ElmoError(f"{path} has no sentence in it")
    return sentences


def read_wsd(path: str) -> list[SenseSentence]:
    """Sentences of the word sense framework of Raganato et al. 2017.

    Args:
        path: `NAME.data.xml`, beside which the right senses lie in `NAME.gold.key.txt`.
    """
    if not path.endswith(".data.xml"):
        raise ElmoError(f"{path} is no test set: give NAME.data.xml, with NAME.gold.key.txt beside it")
    keys = _read_keys(path.removesuffix(".data.xml") + ".gold.key.txt")
    reader = _WsdReader(path, keys)
    sentences = reader.read()
    if unused := keys.keys() - reader.used:
        raise ElmoError(f"{path} has no instance {min(unused)!r}, for which there is a key")
    return sentences


def read_inventory(path: str) -> dict[Lemma, tuple[str, ...]]:
    """The senses of each lemma: a line has lemma, part of speech (n, v, a, r) and keys, with tabs between the three.

    Lemmas that differ in case only are one, their senses in the order of the file.
    """
    inventory: dict[Lemma, tuple[str, ...]] = {}
    for number, line in lines(path):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 3 or fields[1] not in _XML_POS.values() or not fields[2].split():
            raise wrong(path, number, repr(line[:60]), "lemma, n, v, a or r, and sense keys, with tabs between them")
        lemma = (fields[0].lower(), fields[1])
        inventory[lemma] = inventory.get(lemma, ()) + tuple(fields[2].split())
    if not inventory:
        raise ElmoError(f"{path} has no sense in it")
    return inventory


def find_wsd(path: str) -> list[str]:
    """The test sets at a path: a `.data.xml` itself, or all below a folder.

    Of the framework's folders, `ALL` repeats the others, and `Training_Corpora` are no test sets.
    """
    if path.endswith(".data.xml"):
        return [path]
    found = sorted(name for name in names_below(path) if name.endswith(".data.xml"))
    tests = [name for name in found if "Training_Corpora" not in PurePosixPath(name).parts] or found
    parts = [name for name in tests if PurePosixPath(name).name != "ALL.data.xml"]
    if not found:
        raise ElmoError(f"{path} has no test set in it: give NAME.data.xml, or a folder with some")
    return parts or tests


def _semcor_sentence(record: Mapping[str, Any], wrong: Callable[[str, str], ElmoError]) -> SenseSentence:
    words, senses = record.get("tokens"), record.get("senses")
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise wrong("no list of strings in 'tokens'", "one")
    if not (isinstance(senses, list) and len(senses) == len(words)):
        raise wrong("'senses' is no list as long as 'tokens'", "null or a list of keys for each token")
    tokens: list[str] = []
    instances = []
    for number, (word, keys) in enumerate(zip(words, senses, strict=True)):
        pieces = [piece for piece in word.split("_") if piece] or [word]
        if keys is not None:
            if not (isinstance(keys, list) and keys and all(isinstance(key, str) for key in keys)):
                raise wrong(f"senses of {word!r} are {keys!r:.40}", "null or a list of keys")
            lemma = lemma_of_key(keys[0])
            if lemma is None:
                raise wrong(f"sense key {keys[0]!r}", "one such as bank%1:17:01::")
            place = f"{record.get('id')}.t{number}"
            instances.append(SenseInstance(place, lemma, len(tokens), len(tokens) + len(pieces), tuple(keys)))
        tokens += map(plain, pieces)
    return SenseSentence(tuple(tokens), tuple(instances))


def lemma_of_key(key: str) -> Lemma | None:
    """The lemma and part of speech in a WordNet sense key; None if it is no such key."""
    lemma, _, rest = key.partition("%")
    pos = _KEY_POS.get(rest[:1])
    return (lemma.lower(), pos) if lemma and pos is not None and rest[1:2] == ":" else None


def _read_keys(path: str) -> dict[str, tuple[str, ...]]:
    keys = {}
    for number, line in lines(path):
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 2 or fields[0] in keys:
            what = "an id alone" if len(fields) < 2 else f"{fields[0]!r} again"
            raise wrong(path, number, what, "an id and its sense keys, once for each id")
        keys[fields[0]] = tuple(fields[1:])
    return keys


class _WsdReader:
    """Reads a `.data.xml`.

    Expat is used by itself: it says in which line it is. A document type, which could define entities that grow
    without bound, is refused before any is expanded.
    """

    def __init__(self, path: str, keys: Mapping[str, tuple[str, ...]]) -> None:
        self.used: set[str] = set()
        self._path = path
        self._keys = keys
        self._sentences: list[SenseSentence] = []
        self._tokens: list[str] | None = None
        self._instances: list[SenseInstance] = []
        self._open: tuple[str, Mapping[str, str]] | None = None
        self._text: list[str] = []
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters

    def read(self) -> list[SenseSentence]:
        try:
            self._parser.Parse(read_bytes(self._path), True)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise ElmoError(f"{self._path}, line {error.lineno}: no XML ({reason})") from None
        if not self._sentences:
            raise ElmoError(f"{self._path} has no sentence in it")
        return self._sentences

    def _wrong(self, found: str, expected: str) -> ElmoError:
        return wrong(self._path, self._parser.CurrentLineNumber, found, expected)

    def _doctype(self, *_: object) -> None:
        raise self._wrong("a document type", "none, as it could define entities")

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "sentence":
            if self._tokens is not None:
                raise self._wrong("a <sentence> within another", "one behind the other")
            self._tokens, self._instances = [], []
        elif name in ("wf", "instance"):
            if self._tokens is None or self._open is not None:
                raise self._wrong(f"<{name}> where none may be", "it directly in a sentence")
            self._open, self._text = (name, attributes), []

    def _characters(self, text: str) -> None:
        if self._open is not None:
            self._text.append(text)

    def _end(self, name: str) -> None:
        if name == "sentence":
            assert self._tokens is not None
            self._sentences.append(SenseSentence(tuple(self._tokens), tuple(self._instances)))
            self._tokens = None
        elif name in ("wf", "instance"):
            assert self._open is not None
            assert self._tokens is not None
            words = "".join(self._text).split()
            if not words:
                raise self._wrong(f"an empty <{name}>", "a word")
            if name == "instance":
                end = len(self._tokens) + len(words)
                self._instances.append(self._instance(self._open[1], len(self._tokens), end))
            self._tokens += map(plain, words)
            self._open = None

    def _instance(self, attributes: Mapping[str, str], start: int, end: int) -> SenseInstance:
        try:
            place, lemma, pos = (attributes[name] for name in ("id", "lemma", "pos"))
        except KeyError as error:
            raise self._wrong(f"an instance without {error}", "id, lemma and pos") from None
        if pos not in _XML_POS:
            raise self._wrong(f"pos {pos!r}", f"one of {', '.join(_XML_POS)}")
        if place not in self._keys or place in self.used:
            why = "for which there is no key" if place not in self._keys else "again"
            raise self._wrong(f"instance {place!r}, {why}", "each once, with a key")
        self.used.add(place)
        lemma = lemma.lower().replace(" ", "_")
        return SenseInstance(place, (lemma, _XML_POS[pos]), start, end, self._keys[place])
