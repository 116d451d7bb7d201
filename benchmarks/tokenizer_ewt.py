"""Tokens and sentences of `elmo.text` against UD English EWT, beside spaCy's own, and the speed.

    python benchmarks/tokenizer_ewt.py en_ewt-ud-test.conllu [--text TEXT]

The treebank is in ../shared/data/tasks/pos_ewt.tar.xz. Tokens are compared by their exact spans, a sentence at a time;
a word inside a multiword token counts by itself where the words spell the token. Sentences are joined with a space into
their paragraph, and the paragraph is split again: "boundaries" are the ends inside a paragraph (its own end is given),
"sentences" those found whole. `--text` names a file (plain or .xz, UTF-8) to measure the speed on; without it the
treebank's own text serves. The first pass meets every word anew, the second has the frequent ones cached, as over a
large corpus.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import spacy

from elmo.text import Tokenizer

Span = tuple[int, int]
Splitter = Callable[[str], list[list[Span]]]


@dataclass(slots=True)
class GoldSentence:
    """A sentence of the treebank."""

    text: str
    starts_paragraph: bool
    spans: list[Span]


@dataclass(slots=True)
class Score:
    """Counts of spans in the treebank, found, and both."""

    gold: int = 0
    found: int = 0
    both: int = 0

    def add(self, gold: Iterable[Span | int], found: Iterable[Span | int]) -> None:
        """Counts one more text."""
        gold, found = set(gold), set(found)
        self.gold += len(gold)
        self.found += len(found)
        self.both += len(gold & found)

    @property
    def precision(self) -> float:
        """In percent."""
        return 100 * self.both / max(1, self.found)

    @property
    def recall(self) -> float:
        """In percent."""
        return 100 * self.both / max(1, self.gold)

    @property
    def f1(self) -> float:
        """In percent."""
        return 200 * self.both / max(1, self.gold + self.found)


@dataclass(slots=True)
class Scores:
    """What one splitter gets."""

    tokens: Score = field(default_factory=Score)
    boundaries: Score = field(default_factory=Score)
    sentences: Score = field(default_factory=Score)


def read_treebank(path: Path) -> Iterator[GoldSentence]:
    """Reads the sentences of a CoNLL-U file."""
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        lines = block.split("\n")
        text = next(line.removeprefix("# text = ") for line in lines if line.startswith("# text = "))
        new = any(line.startswith(("# newdoc", "# newpar")) for line in lines)
        rows = [line.split("\t") for line in lines if not line.startswith("#")]
        yield GoldSentence(text, new, list(_place(text, _forms(rows))))


def _forms(rows: list[list[str]]) -> Iterator[str]:
    multiword_end = 0
    for index, (number, form, *_) in enumerate(rows):
        if "-" in number:
            first, last = map(int, number.split("-"))
            words = [row[1] for row in rows[index + 1 :][: last - first + 1]]
            yield from words if "".join(words) == form else [form]
            multiword_end = last
        elif "." not in number and int(number) > multiword_end:
            yield form


def _place(text: str, forms: Iterable[str]) -> Iterator[Span]:
    end = 0
    for form in forms:
        start = text.index(form, end)
        end = start + len(form)
        yield start, end


def paragraphs(sentences: Iterable[GoldSentence]) -> Iterator[list[GoldSentence]]:
    """Groups the sentences by paragraph."""
    paragraph: list[GoldSentence] = []
    for sentence in sentences:
        if sentence.starts_paragraph and paragraph:
            yield paragraph
            paragraph = []
        paragraph.append(sentence)
    if paragraph:
        yield paragraph


def score(treebank: list[GoldSentence], split: Splitter) -> Scores:
    """Compares what `split` makes of the treebank's text with the treebank."""
    scores = Scores()
    for sentence in treebank:
        scores.tokens.add(sentence.spans, itertools.chain.from_iterable(split(sentence.text)))
    for paragraph in paragraphs(treebank):
        text = " ".join(sentence.text for sentence in paragraph)
        gold = list(_place(text, (sentence.text for sentence in paragraph)))
        found = [(spans[0][0], spans[-1][1]) for spans in split(text)]
        scores.sentences.add(gold, found)
        scores.boundaries.add((end for _, end in gold[:-1]), (end for _, end in found[:-1]))
    return scores


def spacy_splitter() -> Splitter:
    """Plain spaCy: the rules for English and the sentencizer."""
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")

    def split(text: str) -> list[list[Span]]:
        sentences = (
            [(word.idx, word.idx + len(word)) for word in part if not word.is_space] for part in nlp(text).sents
        )
        return [spans for spans in sentences if spans]

    return split


def elmo_splitter() -> Splitter:
    """Ours."""
    tokenizer = Tokenizer("en")
    return lambda text: [sentence.spans for sentence in tokenizer(text)]


def speed(lines: list[str]) -> tuple[int, list[float]]:
    """Tokens, and tokens a second of processor time in a first and a second pass."""
    tokenizer = Tokenizer("en")
    count, rates = 0, []
    for _ in range(2):
        start = time.process_time()
        count = sum(len(sentence.tokens) for line in lines for sentence in tokenizer(line))
        rates.append(count / (time.process_time() - start))
    return count, rates


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, which may be compressed."""
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8").split("\n")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("treebank", type=Path, help="a CoNLL-U file of UD English EWT")
    parser.add_argument("--text", type=Path, help="a text file to measure the speed on")
    arguments = parser.parse_args()
    treebank = list(read_treebank(arguments.treebank))
    words = sum(len(sentence.spans) for sentence in treebank)
    groups = list(paragraphs(treebank))
    print(f"{arguments.treebank.name}: {len(groups)} paragraphs, {len(treebank)} sentences, {words} words\n")
    print(f"{'':24}{'tokens':>8}  {'boundaries':^24}  {'sentences':>9}")
    print(f"{'':24}{'F1':>8}  {'precision':>9}{'recall':>8}{'F1':>7}  {'F1':>9}")
    for name, split in (("spaCy en + sentencizer", spacy_splitter()), ("elmo.text", elmo_splitter())):
        got, ends = (scores := score(treebank, split)).tokens, scores.boundaries
        row = f"{ends.precision:9.2f}{ends.recall:8.2f}{ends.f1:7.2f}"
        print(f"{name:24}{got.f1:8.2f}  {row}  {scores.sentences.f1:9.2f}")
    lines = read_lines(arguments.text) if arguments.text else [" ".join(s.text for s in group) for group in groups]
    count, (first, second) = speed(lines)
    where = arguments.text.name if arguments.text else "this text"
    print(f"\nelmo.text on {where}: {count} tokens, {first:,.0f} tokens/s at first, {second:,.0f} again, on one core")


if __name__ == "__main__":
    main()
