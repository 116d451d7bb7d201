"""A training step of each task's model on a GPU, with the kernels of `tasks/triton_rows.py` and with cuDNN's LSTMs.

python benchmarks/task_gpu.py DATA [--tasks squad,ner] [--tokens TOKENS]

DATA has the archives of `elmo reproduce`. The models have no ELMo, so that nothing is embedded first. Each way takes
the same batches; a step's time is that of the host, its launches and the device's own time are a profiler's.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile

from elmo.api import load
from elmo.reproduce.lab import Lab, Study
from elmo.reproduce.tables import without
from elmo.tasks.all import task_named
from elmo.tasks.batch import Batch
from elmo.tasks.run import Data, new_model
from elmo.tasks.settings import TaskConfig
from elmo.tasks.training import TaskTraining

STEPS = 30
WARM = 5
EXAMPLES = 6000  # a pool of batches, by length; SQuAD has many more


def start(lab: Lab, name: str) -> tuple[TaskTraining[Any, Any], list[Batch]]:
    """A run at its start, and its first batches."""
    task, data = task_named(name), lab.data(name)
    config = TaskConfig.of(task, dict(without(name)))
    few = Data[Any](data.train[:EXAMPLES], data.dev[:100], ())
    model, _ = new_model(task, config, few, load())
    training = TaskTraining(task, config, model, few.train, few.dev, device=lab.study.device)
    reads = training.reads()
    return training, [next(reads) for _ in range(STEPS)]


def measure(lab: Lab, name: str) -> tuple[float, int, float]:
    """Milliseconds of a step, its launches, milliseconds of the device."""
    training, batches = start(lab, name)

    def steps(some: list[Batch]) -> None:
        for _ in training.takes(iter(some)):
            pass
        torch.cuda.synchronize()

    steps(batches[:WARM])
    began = time.perf_counter()
    steps(batches)
    took = (time.perf_counter() - began) / STEPS
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        steps(batches[:WARM])
    kernels = [event for event in seen.key_averages() if event.device_type == DeviceType.CUDA]
    launched = sum(event.count for event in kernels) // WARM
    busy = sum(event.self_device_time_total for event in kernels) / WARM
    return 1e3 * took, launched, busy / 1e3


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", default="squad,srl,ner,sentiment,inference")
    parser.add_argument("--tokens", help="of raw text (scripts/pretokenise.py), for a machine without spaCy")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    lab = Lab(Study(data=options.data, runs=Path("unused"), device=torch.device("cuda"), tokens=options.tokens))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    print("| | ms a step | launches | ms on the device | cuDNN: ms a step | launches | ms on the device | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.tasks.split(","):
        ours = measure(lab, name)
        with (
            mock.patch("elmo.tasks.layers.has_row_kernels", return_value=False),
            mock.patch("elmo.tasks.roles.has_row_kernels", return_value=False),
        ):
            theirs = measure(lab, name)
        cells = [f"{took:.1f} | {launches:,} | {busy:.1f}" for took, launches, busy in (ours, theirs)]
        print(f"| {name} | {' | '.join(cells)} | {theirs[0] / ours[0]:.1f}x |", flush=True)


if __name__ == "__main__":
    main()
