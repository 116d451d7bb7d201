"""`elmo neighbours`: where else in a text a word is used as it is in a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.errors import ElmoError
from elmo.options import (
    DeviceOption,
    ErrorsOption,
    FieldOption,
    JsonOption,
    LanguageOption,
    ModelOption,
    OptionsOption,
    QuietOption,
    VocabOption,
)

if TYPE_CHECKING:
    from elmo.explore.neighbours import Neighbour, Query
    from elmo.lm.reading import Source

Spans = list[tuple[str, int]]
"""The words of a text, and where each begins."""

_WORDS_SHOWN = 15  # on each side; --json has whole sentences


def neighbours(
    word: Annotated[str, typer.Argument(metavar="WORD", help="The word to find neighbours of.")],
    contexts: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="SENTENCE", help="Sentence that the word stands in; repeat for several."),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="TEXT", help="What to search, as elmo prepare takes it; repeat; - is stdin."),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many neighbours of each.")] = 5,
    layers: Annotated[str, typer.Option(help="top, average, mix, or a layer's number.")] = "top",
    same_word: Annotated[bool, typer.Option("--same-word", help="Only the same word, in whatever case.")] = False,
    every_hit: Annotated[
        bool, typer.Option("--every-hit", help="Several hits from one sentence, and from copies of it.")
    ] = False,
    model: ModelOption = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16, int8 or auto.")] = "fp32",
    state: Annotated[str, typer.Option(help="zero or warm: what a sentence starts from.")] = "zero",
    tokenize: Annotated[
        bool, typer.Option("--tokenize", help="SENTENCE and TEXT are raw text: split it into sentences and words.")
    ] = False,
    language: LanguageOption = "en",
    field: FieldOption = "text",
    errors: ErrorsOption = "strict",
    device: DeviceOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """The tokens of a text that are nearest to a word in its sentence, by the cosine of their vectors."""
    from elmo.api import load
    from elmo.explore.neighbours import nearest
    from elmo.lm.reading import find_sources
    from elmo.progress import ProgressBar

    split = splitter(language if tokenize else None)
    queries = [query_in(word, context, split) for context in contexts or ()]
    if not queries:
        raise ElmoError(f"a word has neighbours in a context: give a sentence with it, as --in 'the {word} was'")
    if not texts:
        raise ElmoError("there is nothing to search: give --text TEXT, a file of one sentence a line, or - for stdin")
    settings: Any = {"layers": one_layer(layers), "precision": precision, "state": state}
    reader = Reader(find_sources(texts), split, field, errors)
    embedder = load(model, options=options, vocab=vocab).embedder(device=device, **settings)
    with ProgressBar("searching", total=reader.size, quiet=quiet) as bar:

        def report(sentences: int, tokens: int) -> None:
            bar.update(reader.bytes_done, tokens, f"{sentences:,} sentences")

        found = nearest(
            embedder, queries, reader, k, same_word=same_word, one_per_sentence=not every_hit, report=report
        )
    if not bar.tokens:
        raise ElmoError(
            f"--text {', '.join(texts)} has no word in it, so there is nothing to search: give one sentence a line"
        )
    (_print_json if as_json else _print)(queries, found)


def splitter(language: str | None) -> Callable[[str], list[Spans]]:
    """What splits a line into sentences of words."""
    if language is None:
        return lambda line: [[(match.group(), match.start()) for match in re.finditer(r"\S+", line)]]
    from elmo.text import Tokenizer

    tokenizer = Tokenizer(language)
    return lambda line: [
        [(token, start) for token, (start, _) in zip(sentence.tokens, sentence.spans, strict=True)]
        for sentence in tokenizer(line)
    ]


def query_in(word: str, context: str, split: Callable[[str], list[Spans]]) -> Query:
    """The word in its sentence: where it is there once, or marked as `[word]`."""
    from elmo.explore.neighbours import Query

    marks = list(re.finditer(rf"\[({re.escape(word)})\]", context, re.IGNORECASE))
    if len(marks) == 1:
        context = context[: marks[0].start()] + marks[0].group(1) + context[marks[0].end() :]
    spans = [span for sentence in split(context) for span in sentence]
    tokens = [token for token, _ in spans]
    if len(marks) == 1:
        places = [place for place, span in enumerate(spans) if span == (marks[0].group(1), marks[0].start())]
    else:
        alike = [place for place, token in enumerate(tokens) if token.casefold() == word.casefold()]
        places = [place for place in alike if tokens[place] == word] or alike
    if not places:
        raise ElmoError(f"{word!r} is not a word of {context!r}: its words are {' | '.join(tokens) or 'none'}")
    if len(places) > 1:
        tokens[places[0]] = f"[{tokens[places[0]]}]"
        raise ElmoError(f"{word!r} is {len(places)} times in {context!r}: mark one, as in --in {' '.join(tokens)!r}")
    return Query(tokens, places[0])


def one_layer(layers: str) -> str | int:
    """What --layers asks for, where it must give one vector a word."""
    if layers.isdecimal() and len(layers) < 10:
        return int(layers)
    if layers not in ("top", "average", "mix"):
        raise ElmoError(f"--layers is {layers!r}: give top, average, mix or one layer's number")
    return layers


class Reader:
    """The sentences of some files, one after the other; those without a word are left out."""

    def __init__(self, sources: Sequence[Source], split: Callable[[str], list[Spans]], field: str, errors: str) -> None:
        """Get ready to read.

        Args:
            sources: what `find_sources` found.
            split: what `splitter` made.
            field: of JSON lines, or column of Parquet.
            errors: "strict" or "replace".
        """
        self.bytes_done = 0
        self.size = sum(source.size for source in sources) or None
        self._sources = sources
        self._split = split
        self._field = field
        self._errors: Any = errors

    def __iter__(self) -> Iterator[list[str]]:
        from elmo.lm.reading import Lines, Piece

        before = 0
        for source in self._sources:
            lines = Lines(Piece(source), field=self._field, errors=self._errors)
            for line in lines:
                for spans in self._split(line):
                    if spans:
                        yield [token for token, _ in spans]
                self.bytes_done = before + lines.bytes_done
            before += source.size


def _print_json(queries: Sequence[Query], found: Sequence[Sequence[Neighbour]]) -> None:
    from dataclasses import asdict

    for query, hits in zip(queries, found, strict=True):
        record = {"word": query.word, "tokens": query.tokens, "position": query.position}
        print(json.dumps(record | {"neighbours": [asdict(hit) for hit in hits]}, ensure_ascii=False))


def _print(queries: Sequence[Query], found: Sequence[Sequence[Neighbour]]) -> None:
    for number, (query, hits) in enumerate(zip(queries, found, strict=True)):
        print(("\n" if number else "") + _marked(query.tokens, query.position))
        for hit in hits:
            print(f"{hit.score:>7.3f}  {_marked(hit.tokens, hit.position)}")
        if not hits:
            print("         nothing like it in the text")


def _marked(tokens: Sequence[str], position: int) -> str:
    """The word in brackets, among as much of its sentence as can be taken in at a glance."""
    start, end = max(0, position - _WORDS_SHOWN), position + 1 + _WORDS_SHOWN
    around = [*tokens[start:position], f"[{tokens[position]}]", *tokens[position + 1 : end]]
    return " ".join(["..."] * (start > 0) + around + ["..."] * (end < len(tokens)))
