"""Training runs in processes of their own, for tests that kill them.

python lm_process.py run FOLDER STEPS [RANK:STEP]      one run, alone or under torchrun; a rank may kill itself
python lm_process.py kill FOLDER STEPS KILLS SEED      the same run, killed at random moments and resumed
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from conftest import small_options
from elmo.lm.distributed import ranks
from elmo.lm.loop import Report
from elmo.lm.run import pretrain
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Stepped, Validated
from lm_corpus import small_corpus


def config(steps: int, dropout: float) -> TrainConfig:
    return TrainConfig.from_dict(
        {
            "model": small_options(),
            "data": {"rows": 4, "unroll_steps": 6},
            "softmax": {"kind": "sampled", "samples": 6},
            "train": {
                "steps": steps,
                "log_every": 1,
                "validate_every": 25,
                "checkpoint_every": 3,
                "dropout": dropout,
                "validation_windows": 5,
            },
        }
    )


def run(folder: Path, steps: int, suicide: str | None = None) -> None:
    with ranks("cpu") as mine:

        def die(report: Report[Stepped, Validated]) -> None:
            first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
            if first and suicide == f"{mine.rank}:{report.event.step}":
                os.kill(os.getpid(), signal.SIGKILL)

        pretrain(config(steps, 0.0), small_corpus(), folder, ranks=mine, resume=True, report=die)


def kill(folder: Path, steps: int, kills: int, seed: int) -> None:
    """Each child goes on where the one before was killed; forked, so that none has to import PyTorch again."""
    rng, corpus = random.Random(seed), small_corpus()
    landed = 0
    for number in range(kills + 1):
        child = os.fork()
        if child == 0:
            pretrain(config(steps, 0.1), corpus, folder, resume=True)
            os._exit(0)
        if number < kills:
            time.sleep(rng.uniform(0.02, 0.3))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        landed += os.WIFSIGNALED(status)
    print(landed, os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, where, n_steps, *more = sys.argv[1:]
    if what == "run":
        run(Path(where), int(n_steps), *more)
    else:
        kill(Path(where), int(n_steps), *map(int, more))
