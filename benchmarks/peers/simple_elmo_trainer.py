"""simple_elmo 0.9.2's trainer on TensorFlow 2.15.1, in its own environment: seconds of each step.

Arguments: options.json, vocabulary, tokenised text, steps. The trainer is left alone: the data set that it asks for
batches writes down when it was asked.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import tensorflow as tf
from simple_elmo.data import BidirectionalLMDataset
from simple_elmo.training import load_vocab, train

tf.compat.v1.disable_v2_behavior()
options = json.loads(Path(sys.argv[1]).read_text())
steps = int(sys.argv[4])
options["n_train_tokens"] = (steps + 1) * options["batch_size"] * options["unroll_steps"]
asked: list[tuple[float, float]] = []


class Watched(BidirectionalLMDataset):  # type: ignore[misc]
    """The data set, with a clock."""

    def iter_batches(self, batch_size: int, num_steps: int) -> Iterator[Any]:
        """Pass the batches on."""
        for batch in super().iter_batches(batch_size, num_steps):
            asked.append((time.perf_counter(), time.process_time()))
            yield batch


vocab = load_vocab(sys.argv[2], options["char_cnn"]["max_characters_per_token"])
with tempfile.TemporaryDirectory() as folder:
    train(options, Watched(sys.argv[3], vocab, test=False, shuffle_on_load=True), 1, folder, folder)
print(
    json.dumps(
        {
            "name": "simple_elmo 0.9.2",
            "seconds": [after[0] - before[0] for before, after in pairwise(asked)],
            "processor_seconds": [after[1] - before[1] for before, after in pairwise(asked)],
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    )
)
