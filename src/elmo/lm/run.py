"""Pretraining in a folder (`folder.py`): the run, and the finished model that `elmo.load` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elmo.formats import write_model
from elmo.formats.bundle import Bundle
from elmo.lm.batches import Corpus
from elmo.lm.begin import Start
from elmo.lm.checkpoint import Progress
from elmo.lm.distributed import Ranks
from elmo.lm.folder import METRICS, MODEL
from elmo.lm.loop import Report, read_best, run_training
from elmo.lm.perplexity import perplexity_of
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Stepped, Training, Validated


def pretrain(
    config: TrainConfig,
    corpus: Corpus,
    folder: Path,
    *,
    start: Start | None = None,
    ranks: Ranks | None = None,
    resume: bool = False,
    report: Callable[[Report[Stepped, Validated]], None] = lambda _: None,
) -> Progress:
    """Train a model in a folder until its last step, or until it stops getting better.

    Args:
        config: what to do.
        corpus: the prepared text.
        folder: where checkpoints, metrics and the model go.
        start: what to begin with; the seed's start values if not given.
        ranks: the processes that share the work; this one alone if not given.
        resume: go on from the folder's checkpoint if it has one.
        report: called after every step and validation.
    """
    training = Training(config, corpus, ranks or Ranks(), None if start is None else start.lm)
    if start is not None:
        start.recall(training.optimizer)
    return run_training(training, folder, resume=resume, report=report, finish=lambda: _export(folder, training))


def read_validations(folder: Path) -> list[Validated]:
    """All validations of a run, from its metrics."""
    lines = map(json.loads, (folder / METRICS).read_text(encoding="utf-8").splitlines())
    return [Validated.of_line(line) for line in lines if "valid_loss" in line]


def _export(folder: Path, training: Training) -> None:
    """Write the best model of a run, with its head, as a native folder."""
    about = read_best(folder, training)
    if about is None:
        return
    lm = training.lm
    bundle = Bundle.of(lm.bilm.cpu(), head=lm.head.cpu(), vocab=training.corpus.vocab, card=_card(training, about))
    write_model(bundle, folder / MODEL, overwrite=True)


def _card(training: Training, about: dict[str, Any]) -> str:
    config, lstm = training.config, training.config.model.lstm
    return (
        "# An ELMo model\n\n"
        f"A biLM of {lstm.n_layers} LSTM layers ({lstm.dim} cells, {lstm.projection_dim} out, each direction) with its "
        f"language model head over {len(training.corpus.vocab):,} words, trained by `elmo pretrain`.\n\n"
        f"Best of {training.steps:,} steps at step {about['step']:,}: held-out perplexity "
        f"{perplexity_of(about['loss']):.2f} (full softmax, state carried, mean of the directions).\n\n"
        "Say here what text it was trained on, and under which licence.\n\n"
        f"Settings:\n\n```json\n{json.dumps(config.to_dict(), indent=2)}\n```\n"
    )
