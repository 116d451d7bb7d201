"""Runs side by side: what tables are going to ask for, done by several processes beforehand.

A model of a task keeps a fraction of a large GPU busy, or one core. Processes share the folder of runs and the frozen
layers in it; each run is one process's, so its numbers do not depend on how many there are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import Synchronized

from elmo.errors import ElmoError
from elmo.reproduce.figures import SHARES, TASKS, with_share
from elmo.reproduce.lab import Lab, Run, Study
from elmo.reproduce.tables import CHOSEN, ENDS, LAYERS, Variants, with_elmo, without
from elmo.tasks.all import task_named
from elmo.tasks.settings import TaskConfig

_LONGEST_FIRST = ("squad", "srl", "coref", "ner", "sentiment", "inference")


def runs_of(names: Iterable[str], study: Study) -> list[Run]:
    """The runs that tables and figures ask for, each once: SQuAD's, which take longest, and then table by table."""
    found: dict[TaskConfig, Run] = {}
    for name in names:
        for run in sorted(_runs_of(name, study), key=_length):
            # By all settings: tables may say the same in other words, as a penalty that is the task's own.
            found.setdefault(TaskConfig.of(task_named(run.task), {"seed": run.seed, **run.settings}), run)
    return sorted(found.values(), key=lambda run: run.task != _LONGEST_FIRST[0])


def run_all(study: Study, runs: Sequence[Run], jobs: int) -> None:
    """Do runs by several processes; what was done before is found, and a run that fails keeps none from being done.

    Raises:
        ElmoError: what went wrong first.
        KeyboardInterrupt: this process was told to stop (SIGINT, SIGTERM); all runs are saved as they stood.
    """
    context = get_context("spawn")  # CUDA does not survive a fork
    following = context.Value("q", 0)  # the number of the next run; a queue holds no more runs than a pipe has bytes
    failed: SimpleQueue[str] = context.SimpleQueue()
    arguments = (study, list(runs), following, failed)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(jobs)]
    with _stopping(workers):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if not failed.empty():
        raise ElmoError(failed.get())
    for worker in workers:
        if worker.exitcode:
            raise ElmoError(f"a process that did runs ended with {worker.exitcode}: start again to go on")


def _work(study: Study, runs: list[Run], following: Synchronized[int], failed: SimpleQueue[str]) -> None:
    """Do runs until there is none left, or the process that asked for them is gone."""
    os.setpgrp()  # Ctrl-C is the parent's, which then says SIGTERM: two signals would cut a run before it is saved
    parent, lab = os.getppid(), Lab(study)
    try:
        while os.getppid() == parent and (run := _take(runs, following)) is not None:
            try:
                lab.run(run.task, run.settings, run.seed)
            except ElmoError as error:
                if failed.empty():  # it is read at the end, so all messages would not fit
                    failed.put(str(error))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)


def _take(runs: list[Run], following: Synchronized[int]) -> Run | None:
    """The next run, which no other process has taken; None when there is none left."""
    with following.get_lock():
        number, following.value = following.value, following.value + 1
    return runs[number] if number < len(runs) else None


@contextlib.contextmanager
def _stopping(workers: Sequence[BaseProcess]) -> Iterator[None]:
    """Take SIGTERM for Ctrl-C; when the block ends early, let processes save what they do before they end."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for worker in workers:
            if worker.is_alive() and worker.pid is not None:
                os.kill(worker.pid, signal.SIGTERM)
        for worker in workers:
            if worker.pid is not None:
                worker.join()


def _runs_of(name: str, study: Study) -> list[Run]:
    three = [task for task in CHOSEN if task in study.tasks]
    if name == "table1":
        rows = [(task, settings) for task in study.tasks for settings in (without(task), with_elmo(task))]
        return [Run(task, settings, seed) for task, settings in rows for seed in study.seeds_of(task)]
    if name in ("table2", "table3"):
        variants: Variants = LAYERS if name == "table2" else ENDS
        return [
            Run(task, settings(task), seed)
            for settings in variants.values()
            for task in three
            for seed in study.seeds_of_variants(task)
        ]
    if name == "figure1":
        kinds = [(task, kind) for task in TASKS if task in study.tasks for kind in (without(task), with_elmo(task))]
        return [Run(task, with_share(kind, share)) for task, kind in kinds for share in SHARES]
    if name == "figure2":
        return [Run(task, with_elmo(task)) for task in study.tasks]
    if name == "claims":
        return [run for other in ("table1", "table2", "table3", "figure1") for run in _runs_of(other, study)]
    return []  # the others ask for no runs


def _length(run: Run) -> tuple[int, float]:
    """Longer runs first, so that none is left alone at the end."""
    return _LONGEST_FIRST.index(run.task), -float(run.settings.get("train", {}).get("share", 1.0))
