"""Does state matter? One Markdown table: what a model says at the start of sentences, of tags and of senses, by state.

`make intrinsic MODEL=folder DATA=../shared/data`, or this script with `--model folder --data ../shared/data`.

DATA has `corpus/test.*.txt.xz` and `corpus/train-00.txt.xz` (raw text), `tasks/pos_ewt.tar.xz` and `tasks/wsd.tar.xz`.
A model without a warm start state gets one from the first sentences of the training text; a model without a head has no
perplexity.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import elmo
from elmo.embed import StateMode
from elmo.lm.reading import Lines, cut, find_sources
from elmo.lm.scores import perplexity
from elmo.progress import ProgressBar
from elmo.tasks.openings import openings
from elmo.tasks.probe import Part, ProbeSettings, probe_tags
from elmo.tasks.readers import TaggedSentence, read_conllu
from elmo.tasks.sense_readers import find_wsd, read_inventory, read_semcor, read_wsd
from elmo.tasks.senses import FIRST, FREQUENT, disambiguate
from elmo.tasks.vectors import text_order

STATES: tuple[StateMode, ...] = ("zero", "carry", "warm")
ROWS = 64
FIRST_WORDS = 3


@dataclass
class Column:
    """What was found with one state, by the name of its row."""

    state: StateMode
    cells: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="the embedded model if not given")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sentences", type=int, default=500, help="of each source, for the perplexity")
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES)
    parser.add_argument("--precision", default="fp32", help="of the vectors: fp32, bf16, int8, auto")
    parser.add_argument("--device")
    options = parser.parse_args()
    model = elmo.load(options.model)
    notes = []
    if model.warm is None:
        model = model.warmed(sentences(options.data / "corpus" / "train-00.txt.xz", 2000))
        notes.append("The model has no warm start state; one was made from 2,000 sentences of the training text.")
    columns = [Column(state) for state in options.states]
    how: dict[str, Any] = {"device": options.device, "precision": options.precision}
    if model.head is None:
        notes.append("The model has no language model head, so there is no perplexity.")
    else:
        sources = sorted((options.data / "corpus").glob("test.*.txt.xz"))
        text = [sentence for source in sources for sentence in sentences(source, options.sentences)]
        for column in columns:
            column.cells |= perplexities(model, text, column.state, how)
        notes.append(
            f"Perplexity of {len(text):,} sentences, the first {options.sentences} of each source's test text."
        )
    for column in columns:
        column.cells |= tags(model, options.data / "tasks" / "pos_ewt.tar.xz" / "pos_ewt", column.state, how)
        column.cells |= senses(model, options.data / "tasks" / "wsd.tar.xz" / "wsd", column.state, how)
    print(f"| | {' | '.join(column.state for column in columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for row in columns[0].cells:
        print(f"| {row} | {' | '.join(column.cells[row] for column in columns)} |")
    print("\n" + "\n".join(notes))


def sentences(path: Path, most: int) -> Iterator[list[str]]:
    """The first sentences of raw text."""
    tokenizer = elmo.Tokenizer("en")
    lines = (line for piece in cut(find_sources([str(path)])) for line in Lines(piece))
    return islice((one.tokens for line in lines for one in tokenizer(line)), most)


def perplexities(model: elmo.Model, text: list[list[str]], state: StateMode, how: dict[str, Any]) -> dict[str, str]:
    """Of the first words of sentences and of all, the state carried, if it is, from sentence to sentence."""
    order: Iterable[int] = text_order(len(text), ROWS) if state == "carry" else range(len(text))
    scores = model.score([text[place] for place in order], state=state, batch_size=ROWS, **how)
    first, whole = openings(scores, FIRST_WORDS), perplexity(scores)
    return {
        f"perplexity, first {FIRST_WORDS} words each way": f"{first.perplexity:.1f}",
        "perplexity, all words": f"{whole.perplexity:.1f}",
    }


def tags(model: elmo.Model, folder: Path, state: StateMode, how: dict[str, Any]) -> dict[str, str]:
    """Accuracy on the test set of UD English EWT."""
    parts: dict[Part, list[TaggedSentence]] = {
        part: read_conllu(str(folder / f"en_ewt-ud-{part}.conllu")) for part in ("train", "dev", "test")
    }
    total = sum(map(len, parts.values()))
    with ProgressBar(f"tags, state {state}", total=total) as bar:
        embedder = model.embedder(layers="all", state=state, batch_size=ROWS, **how)
        found = probe_tags(embedder, parts, ProbeSettings(), embedding=lambda part, n, t: bar.update(n, t, part))
    cells = {f"tags, layer {score.layer}": f"{100 * score.test:.2f}" for score in found.layers}
    return {"tags, word alone": f"{100 * found.baseline_test:.2f}"} | cells


def senses(model: elmo.Model, folder: Path, state: StateMode, how: dict[str, Any]) -> dict[str, str]:
    """F1 over all test sets."""
    train, inventory = read_semcor(str(folder / "semcor3.0.jsonl")), read_inventory(str(folder / "sense_inventory.tsv"))
    tests = {file: read_wsd(file) for file in find_wsd(str(folder / "Evaluation_Datasets"))}
    with ProgressBar(f"senses, state {state}", total=len(train) + sum(map(len, tests.values()))) as bar:
        embedder = model.embedder(layers="all", state=state, batch_size=ROWS, **how)
        found = disambiguate(
            embedder, train, tests, inventory, report=lambda what, n, t: bar.update(n, t, Path(what).name)
        )
    total = found.total()
    baselines = {f"senses, {name}": f"{100 * total[name].f1:.2f}" for name in (FIRST, FREQUENT)}
    return baselines | {
        f"senses, {name}": f"{100 * score.f1:.2f}" for name, score in total.items() if name not in (FIRST, FREQUENT)
    }


if __name__ == "__main__":
    main()
