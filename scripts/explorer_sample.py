"""The sentences that come with the explorer, from the documents held out of the embedded model's training.

python scripts/explorer_sample.py ../shared/data/corpus

Up to 100 sentences with each of the words that the page offers, then others, until there are 6,000. Only sources that
may be passed on are taken; `src/elmo/explore/held_out.md` names them.
"""

from __future__ import annotations

import argparse
import lzma
import random
from collections.abc import Iterator
from pathlib import Path

from elmo.explore.sample import WORDS, Sourced, spread, uses_of
from elmo.files import new_file
from elmo.text import Tokenizer

SOURCES = ("wikipedia_en", "wikipedia_simple", "gutenberg_books", "frus_diplomatic")
OUT = Path(__file__).parents[1] / "src" / "elmo" / "explore" / "held_out.tsv.xz"
ENDS = frozenset([".", "!", "?", "”", '"'])
SENTENCES, EACH_WORD = 6000, 100
SHORTEST, LONGEST = 6, 48  # tokens: enough of a context, and no more than one can take in


def held_out(corpus: Path) -> Iterator[Sourced]:
    """Every whole sentence of fitting length, with its source."""
    tokenizer = Tokenizer("en")
    for source in SOURCES:
        for part in ("test", "valid"):
            text = lzma.decompress((corpus / f"{part}.{source}.txt.xz").read_bytes()).decode("utf-8")
            for line in text.splitlines():
                for sentence in tokenizer(line):
                    tokens = tuple(sentence.tokens)
                    if SHORTEST <= len(tokens) <= LONGEST and tokens[-1] in ENDS and not tokens[0][0].islower():
                        yield Sourced(source, tokens)


def choose(found: list[Sourced]) -> list[Sourced]:
    """Sentences with the offered words, and others beside them, in the order of the text."""
    chosen = {use.tokens for word in WORDS for use in spread(uses_of(word, found), EACH_WORD)}
    others = [sentence.tokens for sentence in found if sentence.tokens not in chosen]
    random.Random(0).shuffle(others)
    chosen.update(others[: max(0, SENTENCES - len(chosen))])
    return [sentence for sentence in found if sentence.tokens in chosen]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder with test.* and valid.* of each source")
    options = parser.parse_args()
    distinct = list({sentence.tokens: sentence for sentence in held_out(options.corpus)}.values())
    lines = [f"{sentence.source}\t{' '.join(sentence.tokens)}\n" for sentence in choose(distinct)]
    with new_file(OUT) as beside:
        beside.write_bytes(lzma.compress("".join(lines).encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
    print(f"{OUT.name}: {len(lines):,} sentences of {len(distinct):,}, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
