"""Where the time of a training step goes on one GPU: `python benchmarks/train_parts.py [ROWS] [--set a.b=v ...]`.

The published model in bfloat16 over made-up text (`train_gpu.py`). Each part is timed forward and back, as PyTorch
launches it and as a CUDA graph of its own; then the whole step both ways, the loop with its reader, and what the host
does for a step. Prints a Markdown table. Without a GPU only the host's part is timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from train_gpu import CONFIGS, Made, make_corpus

from elmo.lm.distributed import Ranks
from elmo.lm.layer import run_layer
from elmo.lm.loop import train
from elmo.lm.network import Dropout
from elmo.lm.optimizers import Gradient, norm
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Stepped, Training
from elmo.lstm import ProjectedLSTM

REPEATS, STEPS = 20, 200


def milliseconds(work: Callable[[], None]) -> float:
    """Of one call, on the device."""
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(REPEATS):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / REPEATS


def captured(work: Callable[[], None], *generators: torch.Generator) -> Callable[[], None]:
    """The same work as a graph."""
    work()
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def host(training: Training) -> tuple[float, float, list[object]]:
    """Milliseconds that reading a window and planning its step take, and the shapes that were met."""
    stream, shapes = training.stream(), []
    training.planner(next(stream), 1)
    read = planned = 0.0
    for step in range(2, 2 + REPEATS):
        begin = time.perf_counter()
        window = next(stream)
        between = time.perf_counter()
        shapes.append(training.planner(window, step).layout.shape)
        planned += time.perf_counter() - between
        read += between - begin
    return 1000 * read / REPEATS, 1000 * planned / REPEATS, sorted(set(shapes), key=repr)


def parts(training: Training) -> Iterator[tuple[str, Callable[[], None]]]:
    """The parts of a step, forward and back."""
    stepper, lm, config, device = training.stepper, training.lm, training.config, training.ranks.device
    plan = training.planner(next(training.stream()), 1)
    inputs = plan.layout.split(plan.buffer.to(device))
    window = stepper.window(plan.layout, inputs)
    _, T, B = inputs.inputs.shape
    P = config.model.lstm.projection_dim
    encoder, stacks = lm.bilm.encoder, [*lm.bilm.forwards, *lm.bilm.backwards]
    dropout = Dropout(config.train.dropout, stepper._generator)

    def encode() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            vectors = lm.encode(window.words, window.groups)
        torch.autograd.grad(vectors.float().sum(), list(encoder.parameters()))

    yield "encoder", encode
    x_2TBP = torch.randn(2, T, B, P, device=device, requires_grad=True)

    def lstm() -> None:
        y_2TBP: Tensor = x_2TBP
        for k, (forward, backward) in enumerate(zip(lm.bilm.forwards, lm.bilm.backwards, strict=True)):
            assert isinstance(forward, ProjectedLSTM)
            assert isinstance(backward, ProjectedLSTM)
            state = training.state.m[k], training.state.c[k]
            y_2TBP = run_layer(forward, backward, y_2TBP, *state, torch.bfloat16)[0]
        torch.autograd.grad(y_2TBP.sum(), [x_2TBP, *(w for one in stacks for w in one.parameters())])

    yield "LSTMs", lstm

    def drop() -> None:
        for _ in range(config.model.lstm.n_layers + 1):
            torch.autograd.grad(dropout(x_2TBP).sum(), x_2TBP)

    yield "dropout", drop
    assert inputs.ids is not None
    with torch.no_grad():
        rows = [table.index_select(0, inputs.ids).requires_grad_() for table in lm.head.parameters()]

    def softmax() -> None:
        h_2MP = x_2TBP.flatten(1, 2)
        losses = stepper._sampled(h_2MP, rows[0], rows[1], inputs)
        torch.autograd.grad(losses.mean(), [x_2TBP, *rows])

    yield "sampled softmax", softmax
    gradients = [Gradient(f"bilm.{name}", w, torch.randn_like(w)) for name, w in lm.bilm.named_parameters()]
    gradients += [
        Gradient(f"head.{name}", table, torch.randn_like(some), inputs.ids, inputs.count)
        for (name, table), some in zip(lm.head.named_parameters(), rows, strict=True)
    ]
    rates = torch.zeros(3, device=device)

    def update() -> None:
        size = norm([gradient.value for gradient in gradients])
        training.optimizer.apply_planned(gradients, 10.0 / size, rates)

    yield "norm and optimizer", update
    yield "whole step", lambda: stepper.take(plan.layout, inputs)


def loop(training: Training) -> tuple[float, int]:
    """Milliseconds of a step in the loop, with its reader, once its graphs are there; and how many there are."""
    steps = (event for event in train(training) if isinstance(event, Stepped))
    for _ in islice(steps, STEPS):
        pass
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in islice(steps, STEPS):
        pass
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin) / STEPS, len(training.stepper._runs)


def measure(config: TrainConfig, corpus: Made) -> None:
    """Print all of it."""
    ranks = Ranks(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    training = Training(config, corpus, ranks)
    read, planned, shapes = host(training)
    print(f"host: reading {read:.1f} ms, planning {planned:.1f} ms a step; {len(shapes)} shapes in {REPEATS} steps")
    for shape in shapes:
        print(f"  {shape}")
    if ranks.device.type == "cpu":
        return
    print("\n| part, forward and back | launched, ms | as a graph, ms |\n|---|---|---|")
    for name, work in parts(training):
        launched, graph = milliseconds(work), milliseconds(captured(work, training.stepper._generator))
        print(f"| {name} | {launched:.2f} | {graph:.2f} |", flush=True)
    del training
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    training = Training(config, corpus, ranks)
    step, graphs = loop(training)
    memory, reserved = torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30
    speed = 1000 * training.units_a_step / step
    print(f"\nthe loop: {step:.2f} ms a step, {speed:,.0f} tokens/s, {graphs} shapes")
    print(f"memory: {memory:.1f} GB allocated at most, {reserved:.1f} GB reserved")


def main() -> None:
    """Measure and print."""
    rows = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].isdigit() else "512"
    sets = [one for flag, one in zip(sys.argv, sys.argv[1:], strict=False) if flag == "--set"]
    common = [f"data.rows={rows}", "train.precision=bf16", f"train.steps={3 * STEPS}", "train.validate_every=1000000"]
    config = TrainConfig.read(CONFIGS / "original.toml", [*common, *sets])
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {name}, PyTorch {torch.__version__}, NumPy {np.__version__}, {rows} rows\n")
    measure(config, make_corpus(793_471, 8_000_000))


if __name__ == "__main__":
    main()
