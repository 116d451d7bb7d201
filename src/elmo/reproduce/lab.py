"""Runs that tables ask for, each done once, resumable, and kept in a folder.

A run is a task, a seed and some settings; its folder is named after a digest of all that decides its result. A table is
a function that asks for runs, so that one that was cut goes on where it was, and tables share what they have in common.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from elmo.api import Model, load
from elmo.errors import ElmoError
from elmo.files import new_file
from elmo.tasks.all import task_named
from elmo.tasks.run import Data, Result, freeze, read_result, train_task
from elmo.tasks.settings import TaskConfig
from elmo.tasks.texts import read_tokens
from elmo.tasks.vectors import FrozenLayers
from elmo.tasks.words import EMBEDDED, NAMED, WordVectors

Settings = Mapping[str, Mapping[str, Any]]
"""Settings that differ from a task's own, by section."""

SIX = ("squad", "inference", "srl", "coref", "ner", "sentiment")
"""The paper's tasks, in its order."""
PLACES = {"squad": "both", "inference": "both", "srl": "input", "coref": "both", "ner": "both", "sentiment": "both"}
"""Where ELMo goes in, as the paper has it for each of the first three; coreference it has at the input alone."""

_FILES = {
    "squad": "squad.tar.xz/squad/{split}-v1.1.json",
    "inference": "nli_sick.tar.xz/nli_sick/SICK.txt#{split}",
    "srl": "srl_propbank_ewt.tar.xz/srl_propbank_ewt/{split}.jsonl",
    "coref": "coref_ontogum.tar.xz/coref_ontogum/ontogum.{split}.conllu",
    "ner": "ner_uner_ewt.tar.xz/ner_uner_ewt/en_ewt-uner-{split}.iob2",
    "sentiment": "sst.tar.xz/sst/trees/{split}.txt",
}
_RAW = ("squad", "inference")  # tasks whose files have raw text, without tokens
_DATA: Mapping[str, Settings] = {"squad": {"model": {"anywhere": True}}}
"""What a task's data asks for: this SQuAD has each answer where its words stand first, right or not."""
_HELD_OUT = 0.05  # of SQuAD's training questions, to stop by: its own development set is what is reported
_SMALL: Settings = {"train": {"epochs": 2, "batch_size": 16, "patience": 0}, "model": {"hidden": 16}}
_QUICK: Mapping[str, Settings] = dict.fromkeys(SIX, _SMALL) | {
    "coref": {
        "train": {"epochs": 2, "batch_size": 1, "patience": 0},
        "model": {"hidden": 16, "scorer": 16, "sentences": 10, "span_width": 4, "antecedents": 20},
    },
    "srl": {**_SMALL, "model": {"hidden": 16, "layers": 2}},
}
_QUICK_EXAMPLES = {"squad": 24, "inference": 64, "srl": 96, "coref": 2, "ner": 96, "sentiment": 32}


@dataclass(frozen=True, kw_only=True)
class Study:
    """What to make the evaluation with."""

    data: Path
    """Folder of the tasks' archives."""
    runs: Path
    """Folder that keeps the runs."""
    model: str | None = None
    """The biLM; the embedded one if not given."""
    tasks: tuple[str, ...] = SIX
    """Which of the six."""
    seeds: int = 3
    """Runs of each row of Table 1."""
    quick: bool = False
    """A few examples, small models and two epochs: shows that all of it works, and nothing else."""
    device: torch.device
    """Where to compute."""
    train: bool = True
    """Whether to do runs that were not done; if not, tables leave them out."""
    vectors: str = EMBEDDED
    """Static word vectors, as `elmo task --vectors` takes them."""
    tokens: str | None = None
    """A file that has the tokens of raw text (`scripts/pretokenise.py`), for a machine without spaCy."""

    def seeds_of(self, name: str) -> range:
        """The seeds of a task's rows; SQuAD, the longest, has at most two."""
        return range(min(self.seeds, 2) if name == "squad" else self.seeds)

    def seeds_of_variants(self, name: str) -> range:
        """The seeds of a task in Tables 2 and 3: one, but for inference, whose development set has 495 pairs."""
        return self.seeds_of(name) if name == "inference" else range(1)

    def __post_init__(self) -> None:
        """Refuse what cannot be, by name."""
        for name in self.tasks:
            if name not in SIX:
                raise ElmoError(f"there is no task {name!r}: give some of {', '.join(SIX)}")
        if self.seeds < 1:
            raise ElmoError(f"seeds is {self.seeds}: give a whole number, 1 or more")


@dataclass(frozen=True)
class Run:
    """What a table asks for."""

    task: str
    settings: Settings
    """Those that differ from the task's own."""
    seed: int = 0


class NotDoneError(ElmoError):
    """A run was not done, and is not to be."""


class Lab:
    """Does runs, or finds that they were done."""

    def __init__(self, study: Study) -> None:
        """Take what a study says; nothing is read yet."""
        self.study = study
        self._data: dict[str, Data[Any]] = {}
        self._frozen: dict[str, FrozenLayers] = {}
        self.asked: list[Result] = []
        """The runs that were asked for."""
        self._same_data: set[str] = set()

    @cached_property
    def model(self) -> Model:
        """The biLM."""
        return load(self.study.model)

    @cached_property
    def model_digest(self) -> str:
        """What tells it from others."""
        return self.model.embedder(layers="all").digest()

    def data(self, name: str) -> Data[Any]:
        """A task's examples."""
        if name not in self._data:
            task, pattern = task_named(name), str(self.study.data / _FILES[name])
            if self.study.tokens is not None and name in _RAW:
                read_tokens(self.study.tokens)
            if name == "squad":
                questions = task.read(pattern.format(split="train"))
                cut = round((1 - _HELD_OUT) * len(questions))
                found = Data(questions[:cut], questions[cut:], task.read(pattern.format(split="dev")))
            else:
                splits = ("TRAIN", "TRIAL", "TEST") if name == "inference" else ("train", "dev", "test")
                found = Data(*(task.read(pattern.format(split=split)) for split in splits))
            most = _QUICK_EXAMPLES[name] if self.study.quick else None
            self._data[name] = Data(found.train[:most], found.dev[:most], found.test[:most])
        return self._data[name]

    def run(self, name: str, settings: Settings, seed: int = 0) -> Result:
        """The result of a run; it is done if it was not.

        Raises:
            NotDoneError: it was not done, and the study trains nothing.
        """
        task = task_named(name)
        layers: list[Settings] = [_DATA.get(name, {}), *([_QUICK[name]] if self.study.quick else [])]
        layers.append({"encoder": {"vectors": self.study.vectors}})
        values: dict[str, Any] = {"seed": seed}
        for layer in (*layers, settings):
            for section, more in layer.items():
                values[section] = {**values.get(section, {}), **more}
        config = TaskConfig.of(task, values)
        self._check_data(name)
        folder = self.study.runs / f"{name}-{self._digest(config)}"
        result = read_result(folder)
        if result is None and not self.study.train:
            raise NotDoneError(f"{name} with {_described(settings, seed)} was not done")
        result = result or self._trained(name, config, folder, _described(settings, seed))
        self.asked.append(result)
        return result

    def results(self, name: str, settings: Settings, seeds: Iterable[int] = (0,)) -> list[Result]:
        """Those of some seeds, without runs that were not done."""
        found = []
        for seed in seeds:
            with suppress(NotDoneError):
                found.append(self.run(name, settings, seed))
        return found

    def _check_data(self, name: str) -> None:
        """Refuse a folder of runs that were done with other data: it remembers each task's archive.

        Raises:
            ElmoError: they were.
        """
        archive = self.study.data / Path(_FILES[name]).parts[0]
        if name in self._same_data or not archive.is_file():
            return
        note = self.study.runs / f"{name}.sha256"
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not note.exists():
            self.study.runs.mkdir(parents=True, exist_ok=True)
            with new_file(note) as beside:
                beside.write_text(f"{digest}\n", encoding="ascii")
        if note.read_text(encoding="ascii").strip() != digest:
            raise ElmoError(f"the runs in {self.study.runs} were done with another {archive.name}: give another --runs")
        self._same_data.add(name)

    def _trained(self, name: str, config: TaskConfig, folder: Path, described: str) -> Result:
        print(f"{folder.name}: {described}", file=sys.stderr, flush=True)
        frozen = self._layers(name, config) if config.encoder.places else None
        return train_task(
            task_named(name),
            config,
            self.data(name),
            folder,
            bilm=self.model,
            frozen=frozen,
            device=self.study.device,
            resume=True,
        ).result

    def _layers(self, name: str, config: TaskConfig) -> FrozenLayers:
        if name not in self._frozen:
            self._frozen.clear()  # one task's at a time: SQuAD's are 18 GB
            self._frozen[name] = freeze(
                task_named(name),
                config,
                self.model,
                self.data(name),
                device=self.study.device,
                folder=self.study.runs / "layers",
            )
        return self._frozen[name]

    @cached_property
    def _vectors_digest(self) -> str:
        """What tells static vectors from others, wherever they lie."""
        return self.study.vectors if self.study.vectors in NAMED else WordVectors.read(self.study.vectors).digest()

    def _digest(self, config: TaskConfig) -> str:
        settings = config.to_dict()
        settings["encoder"]["vectors"] = self._vectors_digest
        # Without ELMo, the biLM decides nothing: a baseline serves any.
        facts = [settings, self.model_digest if config.encoder.places else "", self.study.quick]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def _described(settings: Settings, seed: int) -> str:
    parts = [f"{section}.{key}={value}" for section, more in settings.items() for key, value in more.items()]
    return ", ".join([*parts, f"seed {seed}"])
