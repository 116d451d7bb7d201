"""The paper's tables, each a function of a lab that gives Markdown. Numbers are percent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, median, stdev
from typing import Any, Literal

import numpy as np

from elmo.explore.neighbours import Query, nearest
from elmo.reproduce.lab import PLACES, Lab, NotDoneError, Settings
from elmo.tasks.all import task_named
from elmo.tasks.probe import Part, ProbeSettings, TagScores, probe_tags
from elmo.tasks.readers import TaggedSentence, read_conllu
from elmo.tasks.run import Result
from elmo.tasks.sense_readers import find_wsd, read_inventory, read_semcor, read_wsd
from elmo.tasks.senses import SenseScores, disambiguate
from elmo.tasks.words import EMBEDDED, NAMED, WordVectors

PAPER = {
    "squad": (81.1, 85.8),
    "inference": (88.0, 88.7),
    "srl": (81.4, 84.6),
    "coref": (67.2, 70.4),
    "ner": (90.15, 92.22),
    "sentiment": (51.4, 54.7),
}
"""Table 1 of the paper, without and with ELMo, on its own data."""
CHOSEN = ("squad", "inference", "srl")
"""The tasks of Tables 2 and 3."""
WORD, SENTENCES = (
    "play",
    ("He made a superb play in the last minute of the game .", "She wrote a play for the theatre ."),
)


@dataclass(frozen=True)
class Row:
    """One task of Table 1."""

    task: str
    metric: str
    baseline: list[float]
    """Test scores by seed, from 0 to 1."""
    elmo: list[float]
    epochs: str
    """Of the first seed, without and with ELMo, such as 6 and 5 of 8: fewer than all where it got no better."""

    @property
    def error_cut(self) -> float:
        """Relative reduction of the error."""
        return (mean(self.elmo) - mean(self.baseline)) / (1 - mean(self.baseline))


_BASELINES: Mapping[str, Settings] = {
    "ner": {
        "encoder": {"characters": 100, "dropout": 0.0},
        "model": {"dropout": 0.2},
        "optimizer": {"rate": 0.003},
    }
}
"""What serves a task better without ELMo and worse with it, by the development set; both were tried (docs/log.md)."""


def without(name: str) -> Settings:
    """The model without ELMo."""
    own = _BASELINES.get(name, {})
    return {**own, "encoder": {**own.get("encoder", {}), "elmo": "none"}}


def with_elmo(name: str, **encoder: Any) -> Settings:
    """The model with ELMo in the task's place."""
    return {"encoder": {"elmo": PLACES[name], **encoder}}


def rows(lab: Lab) -> list[Row]:
    """Table 1, as numbers."""
    found = []
    for name in lab.study.tasks:
        kinds, seeds = (without(name), with_elmo(name)), lab.study.seeds_of(name)
        baseline, elmo = (lab.results(name, settings, seeds) for settings in kinds)
        if baseline and elmo:
            epochs = f"{len(baseline[0].curve)} and {len(elmo[0].curve)} of {elmo[0].config['train']['epochs']}"
            found.append(Row(name, task_named(name).score, on("test", baseline), on("test", elmo), epochs))
    if not found:
        raise NotDoneError("no task was trained both without and with ELMo")
    return found


def on(part: Literal["dev", "test"], results: Iterable[Result]) -> list[float]:
    """The deciding score of each run on a part of the data, from 0 to 1."""
    return [getattr(one, part)[task_named(one.config["task"]).score] for one in results]


def table1(lab: Lab) -> str:
    """Six tasks, without and with ELMo."""
    body = [
        [
            row.task,
            row.metric,
            spread(row.baseline),
            spread(row.elmo),
            f"{100 * (mean(row.elmo) - mean(row.baseline)):+.2f}",
            f"{100 * row.error_cut:.1f} %",
            row.epochs,
            "{} / {}".format(*PAPER[row.task]),
        ]
        for row in rows(lab)
    ]
    header = ["task", "score", "baseline", "with ELMo", "gain", "error cut", "epochs", "the paper's, its own data"]
    cut = median(row.error_cut for row in rows(lab))
    note = (
        f"Median relative error reduction: {100 * cut:.1f} %. Test sets; mean and deviation over seeds, whose number "
        "is in brackets; epochs of the first."
    )
    return "# Table 1: what ELMo adds\n\n" + markdown(header, body) + f"\n{note}\n"


Variants = Mapping[str, Callable[[str], Settings]]
"""Rows of a table: the settings that each has for a task."""

LAYERS: Variants = {
    "baseline": without,
    "last layer only (Peters et al. 2017)": lambda name: with_elmo(name, layers="top"),
    "all layers, lambda = 1": lambda name: with_elmo(name, penalty=1.0),
    "all layers, lambda = 0.001": lambda name: with_elmo(name, penalty=0.001),
}
"""Table 2."""
ENDS: Variants = {
    "input only": lambda _: {"encoder": {"elmo": "input"}},
    "input and output": lambda _: {"encoder": {"elmo": "both"}},
    "output only": lambda _: {"encoder": {"elmo": "output"}},
}
"""Table 3."""


def table2(lab: Lab) -> str:
    """Which layers, and how strongly their weights are held together."""
    return "# Table 2: which layers\n\n" + _compared(lab, LAYERS)


def table3(lab: Lab) -> str:
    """Where ELMo goes in."""
    return "# Table 3: where ELMo goes in\n\n" + _compared(lab, ENDS)


def dev_scores(lab: Lab, name: str, settings: Settings) -> dict[int, float]:
    """Development scores in Tables 2 and 3, from 0 to 1, by seed."""
    found = lab.results(name, settings, lab.study.seeds_of_variants(name))
    return dict(zip((one.config["seed"] for one in found), on("dev", found), strict=True))


def table4(lab: Lab) -> str:
    """Nearest neighbours of a word: static vectors against contextual ones."""
    text = [list(one.tokens) for one in _tagged(lab)["train"]]
    vectors = WordVectors.read(EMBEDDED if lab.study.vectors in NAMED else lab.study.vectors)
    if WORD not in vectors.words:
        raise NotDoneError(f"the static vectors have no {WORD!r}, whose neighbours are asked for")
    unit = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    near = np.argsort(-(unit @ unit[vectors.words.index(WORD)]))[1:9]
    body = [["static", WORD, ", ".join(vectors.words[place] for place in near)]]
    queries = [Query(sentence, sentence.split().index(WORD)) for sentence in SENTENCES]
    found = nearest(lab.model.embedder(layers="top", device=lab.study.device), queries, text, 3)
    for query, hits in zip(queries, found, strict=True):
        for hit in hits:
            shown = [f"**{token}**" if place == hit.position else token for place, token in enumerate(hit.tokens)]
            around = shown[max(0, hit.position - 8) : hit.position + 9]
            body.append(["biLM, top layer", " ".join(query.tokens), " ".join(around).replace("|", "\\|")])
    note = f"Text: {len(text):,} sentences of UD English EWT, training part."
    return f'# Table 4: neighbours of "{WORD}"\n\n' + markdown(["vectors", "asked", "nearest"], body) + f"\n{note}\n"


def table5(lab: Lab) -> str:
    """Word senses by layer."""
    total = senses(lab).total()
    body = [[name, f"{100 * score.f1:.2f}"] for name, score in total.items()]
    note = "F1 over the five test sets together. The paper: first sense 65.9, layer 1 67.4, layer 2 69.0."
    return "# Table 5: word senses\n\n" + markdown(["", "F1"], body) + f"\n{note}\n"


def table6(lab: Lab) -> str:
    """Parts of speech by layer."""
    found = tags(lab)
    body = [["word alone", f"{100 * found.baseline_test:.2f}"]]
    body += [[f"layer {score.layer}", f"{100 * score.test:.2f}"] for score in found.layers]
    note = "Test accuracy of a linear probe, UD English EWT. The paper, Penn Treebank: layer 1 97.3, layer 2 96.8."
    return "# Table 6: parts of speech\n\n" + markdown(["", "accuracy"], body) + f"\n{note}\n"


@cache
def senses(lab: Lab) -> SenseScores:
    """Of the word sense framework's test sets, trained on SemCor."""
    folder, most = lab.study.data / "wsd.tar.xz" / "wsd", 200 if lab.study.quick else None
    train = read_semcor(str(folder / "semcor3.0.jsonl"))[:most]
    tests = {file: read_wsd(file)[:most] for file in find_wsd(str(folder / "Evaluation_Datasets"))}
    inventory = read_inventory(str(folder / "sense_inventory.tsv"))
    return disambiguate(lab.model.embedder(layers="all", device=lab.study.device), train, tests, inventory)


@cache
def tags(lab: Lab) -> TagScores:
    """Of UD English EWT, by a linear probe."""
    settings = ProbeSettings(epochs=2) if lab.study.quick else ProbeSettings()
    return probe_tags(lab.model.embedder(layers="all", device=lab.study.device), _tagged(lab), settings)


def _tagged(lab: Lab) -> dict[Part, list[TaggedSentence]]:
    folder, most = lab.study.data / "pos_ewt.tar.xz" / "pos_ewt", 200 if lab.study.quick else None
    names: tuple[Part, ...] = ("train", "dev", "test")
    return {part: read_conllu(str(folder / f"en_ewt-ud-{part}.conllu"))[:most] for part in names}


def _compared(lab: Lab, variants: Variants) -> str:
    tasks = [name for name in CHOSEN if name in lab.study.tasks]
    if not tasks:
        raise NotDoneError(f"it compares {', '.join(CHOSEN)}, none of which was asked for")
    body = [
        [label, *(spread(list(dev_scores(lab, name, settings(name)).values())) for name in tasks)]
        for label, settings in variants.items()
    ]
    note = "Development sets; one seed, or mean and deviation over seeds, whose number is in brackets."
    return markdown(["", *tasks], body) + f"\n{note}\n"


def spread(scores: Sequence[float]) -> str:
    """Mean, deviation and number, in percent; a dash for none."""
    if not scores:
        return "–"
    deviation = f" ± {100 * stdev(scores):.2f} ({len(scores)})" if len(scores) > 1 else ""
    return f"{100 * mean(scores):.2f}{deviation}"


def markdown(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def layer_weights(lab: Lab) -> dict[str, Result]:
    """Results whose mixes Figure 2 shows, by task."""
    return {name: result for name in lab.study.tasks for result in lab.results(name, with_elmo(name))}
