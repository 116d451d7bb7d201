"""Our trainer, in a process of its own: seconds of each step, the reading of its batch included.

Arguments: config.toml, prepared folder, steps, settings to replace.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path

from elmo.lm.corpus import Corpus
from elmo.lm.distributed import Ranks
from elmo.lm.loop import train
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Stepped, Training

sets = [f"train.steps={int(sys.argv[3]) + 1}", "train.validate_every=1000000000", *sys.argv[4:]]
training = Training(TrainConfig.read(Path(sys.argv[1]), sets), Corpus.open(Path(sys.argv[2])), Ranks())
times: list[tuple[float, float]] = []
for event in train(training):
    if isinstance(event, Stepped):
        times.append((time.perf_counter(), time.process_time()))
print(
    json.dumps(
        {
            "name": f"elmo {training.config.train.precision}",
            "seconds": [after[0] - before[0] for before, after in pairwise(times)],
            "processor_seconds": [after[1] - before[1] for before, after in pairwise(times)],
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    )
)
