"""Task data as published: CoNLL-U, the word sense framework's XML and keys, SemCor as JSON lines, a sense inventory.

A path may lead into a tar archive, as in `data.tar.xz/folder/train.conllu`. Members are read where they lie and never
written to disk, so their names cannot lead anywhere. Every mistake in a file is an error with its name and line.
"""

from __future__ import annotations

import gzip
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast, get_args
from xml.parsers import expat

from elmo.errors import ElmoError

TagColumn = Literal["upos", "xpos"]
Lemma = tuple[str, str]
"""A lemma in lower case, with `_` between its words, and its part of speech: n, v, a or r."""
Inventory = Mapping[Lemma, tuple[str, ...]]
"""The sense keys of each lemma, the first sense first."""

_MOST_BYTES = 2**30  # of one file, unpacked
_TAG_COLUMNS: Mapping[TagColumn, int] = {"upos": 3, "xpos": 4}
_KEY_POS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}  # WordNet's numbers; 5 is a satellite adjective
_XML_POS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
# The Penn Treebank's ways to write what stands in any text that a model was trained on.
_PLAIN = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence with a tag for each token."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


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


def read_conllu(path: str, column: TagColumn = "upos") -> list[TaggedSentence]:
    """Sentences of a CoNLL-U file with one of its tag columns; multiword ranges and empty nodes are left out."""
    if column not in get_args(TagColumn):
        raise ElmoError(f"tags is {column!r}: give one of {', '.join(get_args(TagColumn))}")
    sentences: list[TaggedSentence] = []
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in _lines(path):
        if not line.strip():
            if tokens:
                sentences.append(TaggedSentence(tuple(tokens), tuple(tags)))
            tokens, tags = [], []
            continue
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 10:
            raise _wrong(path, number, f"{len(fields)} columns", "10, with tabs between them, as CoNLL-U has them")
        if "-" in fields[0] or "." in fields[0]:
            continue
        if fields[0] != str(len(tokens) + 1):
            raise _wrong(path, number, f"token number {fields[0]!r}", str(len(tokens) + 1))
        tag = fields[_TAG_COLUMNS[column]]
        if tag in ("", "_"):
            raise _wrong(path, number, f"no {column} tag", "one")
        tokens.append(fields[1])
        tags.append(tag)
    if tokens:
        sentences.append(TaggedSentence(tuple(tokens), tuple(tags)))
    if not sentences:
        raise ElmoError(f"{path} has no sentence in it")
    return sentences


def read_semcor(path: str) -> list[SenseSentence]:
    """Sentences of SemCor as JSON lines, each with `id`, `tokens` (words of one sense joined by `_`) and `senses`."""
    sentences = []
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _wrong(path, number, f"no JSON ({error})", "an object a line") from None
        sentences.append(_semcor_sentence(record, lambda found, expected: _wrong(path, number, found, expected)))  # noqa: B023 - called at once
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
    for number, line in _lines(path):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 3 or fields[1] not in _XML_POS.values() or not fields[2].split():
            raise _wrong(path, number, repr(line[:60]), "lemma, n, v, a or r, and sense keys, with tabs between them")
        lemma = (fields[0].lower(), fields[1])
        inventory[lemma] = inventory.get(lemma, ()) + tuple(fields[2].split())
    if not inventory:
        raise ElmoError(f"{path} has no sense in it")
    return inventory


def find_wsd(path: str) -> list[str]:
    """The test sets at a path: a `.data.xml` itself, or all below a folder, less `ALL`, which repeats the others."""
    if path.endswith(".data.xml"):
        return [path]
    found = sorted(name for name in _names_below(path) if name.endswith(".data.xml"))
    parts = [name for name in found if PurePosixPath(name).name != "ALL.data.xml"]
    if not found:
        raise ElmoError(f"{path} has no test set in it: give NAME.data.xml, or a folder with some")
    return parts or found


def _semcor_sentence(record: Any, wrong: Callable[[str, str], ElmoError]) -> SenseSentence:
    if not isinstance(record, dict):
        raise wrong(f"{record!r:.40}", "an object")
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
        tokens += [_PLAIN.get(piece, piece) for piece in pieces]
    return SenseSentence(tuple(tokens), tuple(instances))


def lemma_of_key(key: str) -> Lemma | None:
    """The lemma and part of speech in a WordNet sense key; None if it is no such key."""
    lemma, _, rest = key.partition("%")
    pos = _KEY_POS.get(rest[:1])
    return (lemma.lower(), pos) if lemma and pos is not None and rest[1:2] == ":" else None


def _read_keys(path: str) -> dict[str, tuple[str, ...]]:
    keys = {}
    for number, line in _lines(path):
        fields = line.split()
        if not fields:
            continue
        if len(fields) < 2 or fields[0] in keys:
            what = "an id alone" if len(fields) < 2 else f"{fields[0]!r} again"
            raise _wrong(path, number, what, "an id and its sense keys, once for each id")
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
            self._parser.Parse(_read_bytes(self._path), True)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise ElmoError(f"{self._path}, line {error.lineno}: no XML ({reason})") from None
        if not self._sentences:
            raise ElmoError(f"{self._path} has no sentence in it")
        return self._sentences

    def _wrong(self, found: str, expected: str) -> ElmoError:
        return _wrong(self._path, self._parser.CurrentLineNumber, found, expected)

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
            self._tokens += [_PLAIN.get(word, word) for word in words]
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


def _wrong(path: str, line: int, found: str, expected: str) -> ElmoError:
    return ElmoError(f"{path}, line {line}: found {found}, expected {expected}")


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, from 1, without their ends."""
    try:
        text = _read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise ElmoError(f"{path}, line {number}: not UTF-8") from None
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.removesuffix("\r")


def _read_bytes(path: str) -> bytes:
    """A file, `.gz` and `.xz` unpacked, or a member of a tar archive."""
    try:
        archive = _archive_in(path)
        if archive is not None:
            return _read_member(*archive)
        with _open(path) as file:
            return _bounded(file, path)
    except tarfile.TarError as error:
        raise ElmoError(f"cannot read {path}: {error}") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ElmoError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _open(path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path))
    return cast(IO[bytes], lzma.open(path)) if path.endswith(".xz") else open(path, "rb")


def _archive_in(path: str) -> tuple[Path, PurePosixPath] | None:
    """The archive on the way of a path and what is asked of it; None if the path is one of the file system."""
    whole = Path(path)
    for parent in whole.parents:
        if parent.is_file():
            return parent, PurePosixPath(whole.relative_to(parent).as_posix())
    return None


def _read_member(archive: Path, name: PurePosixPath) -> bytes:
    with tarfile.open(archive) as tar:
        for member in tar:
            if PurePosixPath(member.name) == name and member.isreg():  # a link is never followed
                file = tar.extractfile(member)
                assert file is not None
                with file:
                    return _bounded(file, f"{archive}/{name}")
    raise ElmoError(f"{archive} has no file {name}")


def _names_below(path: str) -> list[str]:
    folder = Path(path)
    if folder.is_dir():
        return [str(file) for file in folder.rglob("*") if file.is_file()]
    archive = (folder, PurePosixPath(".")) if folder.is_file() else _archive_in(path)
    if archive is None:
        raise ElmoError(f"there is nothing at {path}")
    try:
        with tarfile.open(archive[0]) as tar:
            names = [PurePosixPath(member.name) for member in tar if member.isreg()]
    except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ElmoError(f"cannot read {archive[0]}: {error}") from error
    return [f"{archive[0]}/{name}" for name in names if name.is_relative_to(archive[1])]


def _bounded(file: IO[bytes], name: str) -> bytes:
    data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ElmoError(f"{name} has more than {_MOST_BYTES:,} bytes unpacked, which no task's file should")
    return data
