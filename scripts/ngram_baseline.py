"""Held-out perplexity of an interpolated Kneser-Ney n-gram model on prepared text, to compare a language model with.

    python scripts/ngram_baseline.py CORPUS [--test TEXT]... [--unseen 8 --write DIR] [--order 5] [--json]

CORPUS is what `elmo prepare` made; its held-out part is scored, and each TEXT (what `elmo prepare` takes, read as
CORPUS was). Tokens, vocabulary and predictions are those of our models: words outside the vocabulary are `<UNK>`, which
is a word like any other; a sentence is its words and its end, and nothing is known of the sentence before. The backward
model reads sentences reversed.

The model is irstlm's (Debian package `irstlm` 6.00.05), `tlm -lm=ImprovedKneserNey -ps=no`: modified Kneser-Ney, three
discounts an order, interpolated, nothing pruned. `build-lm.sh` and `tlm -lm=KneserNey` will not do: the first takes
plain counts for lower orders, whatever its options are called, and the second crashes. What is to know of `tlm`:

- It sets aside for unknown words as much of the unigrams as if each word of the vocabulary had once been one, unless
  `<unk>` stands in the text. It does, once, in a last sentence of its own; ours is another word.
- It refuses a text whose words with one predecessor are not more than those with two, as it is where rare words are
  `<UNK>`. So that last sentence also has invented words, as many as are needed. What the unigrams lose to them is
  printed. Words of the vocabulary that training lacks are there, too, so that no word is unknown to `tlm`.

Words are written as their numbers, so that none is mistaken for a mark.

Held-out documents may repeat training text word for word: prefaces, licences, quotations. `--unseen 8` also scores what
is left of each TEXT without the sentences that share eight words in a row with the training text (the overlap that
Radford et al. 2019 count), and `--write DIR` writes those that are left, for `elmo perplexity M DIR/TEXT --state zero`.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ElmoError
from elmo.lm.corpus import Corpus, SplitName
from elmo.lm.reading import Lines, cut, find_sources
from elmo.lm.scores import without_boundaries
from elmo.text import Tokenizer

TLM = Path("/usr/lib/irstlm/bin/tlm")
BOS, EOS, UNK = 0, 1, 2  # in every vocabulary
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Result:
    """Of one text."""

    name: str
    sentences: int
    tokens: int
    unknown_rate: float
    forward: float
    backward: float
    perplexity: float
    """`exp` of the mean of the two losses, as bilm-tf and our training print it."""
    mean: float
    """Of the two perplexities."""


def main() -> None:
    """Train both directions and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--test", action="append", default=[], metavar="TEXT")
    parser.add_argument("--unseen", type=int, metavar="N", help="score sentences without N words of training text, too")
    parser.add_argument("--write", type=Path, metavar="DIR", help="where to write those sentences")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.unseen is not None and options.unseen < 1:
        parser.error(f"--unseen is {options.unseen}: give 1 or more")
    if options.write is not None and options.unseen is None:
        parser.error("--write goes with --unseen")
    if len({Path(text).name for text in options.test}) < len(options.test):
        parser.error("two texts have the same name: they are told apart by it")
    try:
        run(options.corpus, options.test, options.order, options.unseen, options.write, as_json=options.json)
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def run(folder: Path, texts: list[str], order: int, unseen: int | None, written: Path | None, *, as_json: bool) -> None:
    """Do it all."""
    if not TLM.exists():
        raise ElmoError(f"there is no {TLM}: apt-get install irstlm")
    corpus = Corpus.open(folder)
    words = {Path(text).name: list(text_words(corpus, text)) for text in texts}
    sets = {"held out": list(split_ids(corpus, "valid"))}
    sets |= {name: [np.array(corpus.vocab.ids(one), np.int32) for one in found] for name, found in words.items()}
    together = [one for ids in sets.values() for one in ids]
    fresh = None if unseen is None else shares_nothing(corpus, together, unseen)
    if fresh is not None and written is not None:
        write_fresh(written, words, fresh[len(sets["held out"]) :])
    losses = [np.split(score(corpus, together, order, backward=backward), ends(together)) for backward in (False, True)]
    owner = np.repeat(list(sets), list(map(len, sets.values())))
    chosen = {name: owner == name for name in sets}
    if len(texts) > 1:
        chosen["all texts"] = owner != "held out"
    if fresh is not None:
        chosen |= {f"{name}, unseen": those & fresh for name, those in chosen.items()}
    results = []
    for name, those in chosen.items():
        places = np.flatnonzero(those).tolist()
        if not places:
            continue  # nothing is left of this one
        ahead, back = ([loss[place] for place in places] for loss in losses)
        results.append(result(name, [together[place] for place in places], ahead, back))
    if as_json:
        print(json.dumps([asdict(one) for one in results], indent=2))
        return
    print(f"| {order}-gram | sentences | words | unknown | forward | backward | both | mean |")
    print("|---" * 8 + "|")
    for one in results:
        numbers = " | ".join(f"{number:.1f}" for number in (one.forward, one.backward, one.perplexity, one.mean))
        print(f"| {one.name} | {one.sentences:,} | {one.tokens:,} | {100 * one.unknown_rate:.2f} % | {numbers} |")


def split_ids(corpus: Corpus, name: SplitName) -> Iterator[Ids]:
    """Sentences of prepared text as vocabulary ids."""
    targets = np.asarray(corpus.targets())
    for shard in corpus.split(name).shards:
        starts = shard.starts.astype(np.int64)
        for block in range(0, len(starts) - 1, 2**16):
            cuts = starts[block : block + 2**16 + 1]
            ids = targets[np.asarray(shard.tokens[cuts[0] : cuts[-1]])]
            yield from np.split(ids, cuts[1:-1] - cuts[0])


def text_words(corpus: Corpus, text: str) -> Iterator[list[str]]:
    """Sentences of other text, read as the corpus was."""
    language = corpus.settings["language"]
    lines = (line for piece in cut(find_sources([text])) for line in Lines(piece, field=corpus.settings["field"]))
    if language is None:
        sentences: Iterable[list[str]] = (line.split() for line in lines)
    else:
        tokenizer = Tokenizer(language)
        sentences = (sentence.tokens for line in lines for sentence in tokenizer(line))
    return without_boundaries(sentences)


def shares_nothing(corpus: Corpus, sentences: list[Ids], n: int) -> NDArray[np.bool_]:
    """Whether each sentence is without n words in a row that stand in a sentence of the training text.

    A sentence of fewer words is.
    """
    of_sentence, mine = [], []
    for place, ids in enumerate(sentences):
        mine.append(runs(ids, n))
        of_sentence.append(np.full(len(mine[-1]), place))
    hashes, places = np.concatenate(mine), np.concatenate(of_sentence)
    fresh = np.ones(len(sentences), np.bool_)
    if not len(hashes):
        return fresh
    different, inverse = np.unique(hashes, return_inverse=True)
    seen = np.zeros(len(different), np.bool_)
    targets = np.asarray(corpus.targets())
    for shard in corpus.split("train").shards:
        ids, starts = targets[np.asarray(shard.tokens)], shard.starts.astype(np.int64)
        found = runs(ids, n)
        within = np.ones(len(ids), np.bool_)
        for back in range(1, n):  # where a run would go on into the next sentence
            within[np.maximum(starts[1:] - back, 0)] = False
        found = found[within[: len(found)]]
        at = np.minimum(np.searchsorted(different, found), len(different) - 1)
        seen[at[different[at] == found]] = True
    fresh[places[seen[inverse]]] = False
    return fresh


def runs(ids: Ids, n: int) -> NDArray[np.uint64]:
    """A number for each n words in a row, hardly ever the same for two different ones."""
    count = max(0, len(ids) - n + 1)
    total = np.zeros(count, np.uint64)
    for place in range(n):
        total = (total ^ ids[place : place + count].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        total ^= total >> np.uint64(29)
    return total


def write_fresh(folder: Path, words: dict[str, list[list[str]]], fresh: NDArray[np.bool_]) -> None:
    """Write the sentences of texts that were chosen, a line each."""
    folder.mkdir(parents=True, exist_ok=True)
    done = 0
    for name, found in words.items():
        kept = [" ".join(one) + "\n" for one, new in zip(found, fresh[done:], strict=False) if new]
        (folder / f"{name.removesuffix('.xz').removesuffix('.txt')}.txt").write_text("".join(kept), encoding="utf-8")
        done += len(found)


def ends(sentences: list[Ids]) -> NDArray[np.int64]:
    """Where the predictions of each sentence but the last end."""
    return np.cumsum([len(ids) + 1 for ids in sentences])[:-1]


def score(corpus: Corpus, held_out: list[Ids], order: int, *, backward: bool) -> NDArray[np.float64]:
    """Train, and give `-ln p` of each prediction of the held-out sentences, in their order: `(words + sentences,)`."""
    with tempfile.TemporaryDirectory(prefix="elmo-ngram-") as folder:
        train, test, out = (Path(folder) / name for name in ("train", "test", "out"))
        write(train, split_ids(corpus, "train"), backward=backward)
        with train.open("a") as file:
            file.write(f"<s> {' '.join(last_sentence(corpus, backward=backward))} </s>\n")
        write(test, held_out, backward=backward)
        options = [f"-tr={train}", f"-n={order}", "-lm=ImprovedKneserNey", "-ps=no", f"-te={test}", f"-op={out}"]
        start = time.monotonic()
        memory = call_tlm(options, Path(folder) / "log")
        direction = "backward" if backward else "forward"
        print(f"{direction}: {time.monotonic() - start:.0f} s and {memory / 2**20:,.0f} MB in tlm", file=sys.stderr)
        with out.open() as file:
            logs = np.array([float(line.rsplit(maxsplit=1)[1]) for line in file])
    if len(logs) != count(held_out):
        raise ElmoError(f"tlm made {len(logs):,} predictions where {count(held_out):,} were asked")
    return -logs * math.log(10)


def call_tlm(options: list[str], log: Path) -> int:
    """Run it; its largest memory, in bytes."""
    largest = 0
    with log.open("wb") as file, subprocess.Popen([str(TLM), *options], stdout=file, stderr=file) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()  # what is asked afterwards counts us, too
            peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
            largest = max([largest, *(1024 * int(size) for size in peak)])
            time.sleep(0.1)
    if process.returncode:
        raise ElmoError(f"tlm failed with {process.returncode}: {log.read_text(errors='replace')[-400:]}")
    return largest


def write(path: Path, sentences: Iterable[Ids], *, backward: bool) -> None:
    """Write sentences with their boundaries, a line each."""
    if shutil.disk_usage(path.parent).free < 2**28:
        raise ElmoError(f"the disk of {path.parent} is almost full: set TMPDIR")
    with path.open("w") as file:
        for ids in sentences:
            file.write(f"<s> {' '.join(map(str, (ids[::-1] if backward else ids).tolist()))} </s>\n")


def last_sentence(corpus: Corpus, *, backward: bool) -> list[str]:
    """What `tlm` needs to see at the end of its text: see above."""
    V = len(corpus.vocab)
    targets = np.asarray(corpus.targets()).astype(np.int64)
    pairs: NDArray[np.int64] = np.zeros(0, np.int64)
    for shard in corpus.split("train").shards:
        ids, starts = targets[np.asarray(shard.tokens)], shard.starts.astype(np.int64)
        first, last = (BOS, EOS) if not backward else (EOS, BOS)
        before = np.insert(
            ids, starts[:-1], first
        )  # each word's neighbour before it, the sentence's start for the first
        before = np.delete(before, starts[1:] + np.arange(len(starts) - 1))  # the last words' own places
        behind = np.append(ids[1:], last)
        behind[starts[1:] - 1] = last
        previous = behind if backward else before
        pairs = np.unique(np.concatenate([pairs, previous * V + ids]))
    predecessors = np.bincount(pairs % V, minlength=V)
    unseen = [str(id) for id in range(UNK, V) if predecessors[id] == 0]
    once, twice = int((predecessors == 1).sum()) + len(unseen), int((predecessors == 2).sum())
    invented = [f"x{number}" for number in range(max(0, twice - once + 1))]
    lost = (len(invented) + 1) / (predecessors.sum() + len(unseen) + len(invented) + 1)
    print(f"invented words: {len(invented):,}, with {100 * lost:.2f} % of the unigrams' probability", file=sys.stderr)
    return ["<unk>", *unseen, *invented]


def count(sentences: list[Ids]) -> int:
    """Predictions: words and ends of sentences."""
    return sum(len(ids) + 1 for ids in sentences)


def result(
    name: str, ids: list[Ids], forward: list[NDArray[np.float64]], backward: list[NDArray[np.float64]]
) -> Result:
    """Add up sentences."""
    tokens = sum(map(len, ids))
    unknown = sum(int((one == UNK).sum()) for one in ids)
    losses = float(np.concatenate(forward).mean()), float(np.concatenate(backward).mean())
    ahead, back = (math.exp(loss) for loss in losses)
    return Result(name, len(ids), tokens, unknown / tokens, ahead, back, math.exp(sum(losses) / 2), (ahead + back) / 2)


if __name__ == "__main__":
    main()
