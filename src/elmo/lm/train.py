"""Pretraining the biLM (SEMANTICS section 5): one loop, which yields what happened.

How to start it:

    elmo prepare TEXT... -o corpus                                  # once: text to memory-mapped shards
    elmo pretrain configs/demo.toml --corpus corpus -o run          # a CPU, or the one GPU of this machine
    elmo pretrain configs/demo.toml --corpus corpus -o run --resume # go on where a run was cut, to the same bits
    elmo pretrain configs/small.toml -o run --set train.steps=1000 --set optimizer.rate=0.1

    torchrun --nproc-per-node 4 -m elmo pretrain configs/original.toml --corpus corpus -o run --resume   # 4 GPUs here
    torchrun --nnodes 2 --nproc-per-node 4 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        -m elmo pretrain configs/original.toml --corpus corpus -o run --resume                           # two machines

`data.rows` is of all devices together, so the same command on more devices is the same run, faster. docs/scaling.md has
Slurm, Kubernetes and what the published model costs.

A step draws everything random (samples, dropout) from seed and step, and its text from the number of its window. So
weights, optimizer, LSTM state and the number of the step are all there is to a run: see `checkpoint.py`. Saving,
printing and stopping live in the caller (`run.py`).

There are two ways to take a step. `Training.advance` asks the device as it goes and waits for it: on a CPU, between
several devices, in parts, for the adaptive softmax. On one GPU with Triton the reader's thread plans a step
(`plans.py`) and it is launched whole (`graphs.py`). The two compute the same.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from elmo.engine.available import has_triton
from elmo.errors import ElmoError
from elmo.lm.batches import Corpus, Ints, TrainStream, Windows, validation_windows
from elmo.lm.distributed import Ranks
from elmo.lm.graphs import Late, Stepper
from elmo.lm.network import Dropout, LanguageModel, Sampling, Window
from elmo.lm.optimizers import Gradient, Optimizer, clip
from elmo.lm.plans import Plan, Planner
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import (
    AdaptiveHead,
    Head,
    Rows,
    Samples,
    SoftmaxHead,
    log_uniform_samples,
    take_rows,
)
from elmo.model import BiLM, State


@dataclass(frozen=True)
class Stepped:
    """A step was taken."""

    step: int
    """Steps taken so far."""
    forward: float
    """Mean cross-entropy of the forward direction, by the softmax of training."""
    backward: float
    """The same, backward."""
    norm: float
    """Norm of the gradient before clipping."""
    rate: float
    """Learning rate."""


@dataclass(frozen=True)
class Validated:
    """The held-out split was read, with the full softmax and the state carried."""

    step: int
    """Steps taken so far."""
    forward: float
    """Mean cross-entropy of the forward direction."""
    backward: float
    """The same, backward."""
    positions: int
    """Predictions of each direction that went into it."""

    @property
    def loss(self) -> float:
        """Mean of the two directions."""
        return 0.5 * (self.forward + self.backward)

    @property
    def perplexity(self) -> float:
        """`exp` of the mean of the two directions' losses, as published figures have it."""
        return math.exp(self.loss)


Event = Stepped | Validated


class Training:
    """A run: the model, what the optimizer remembers, the rows' state and how many steps were taken."""

    def __init__(self, config: TrainConfig, corpus: Corpus, ranks: Ranks, lm: LanguageModel | None = None) -> None:
        """Start from the seed's start values, or from a model over the corpus's vocabulary, which is then trained."""
        first, last = ranks.rows(config.data.rows)
        if (last - first) % config.train.accumulate:
            raise ElmoError(
                f"train.accumulate is {config.train.accumulate}: the {last - first} rows of a device cannot be "
                "divided by it"
            )
        if ranks.device.type == "cuda" and ranks.device.index is not None:
            torch.cuda.set_device(ranks.device)  # Triton launches on the current one
        self.config, self.corpus, self.ranks = config, corpus, ranks
        _check_fits(config, corpus)
        self.start = None if lm is None else _fingerprint(lm)
        """What tells the model that the run starts from, if not from the seed's start values."""
        self.lm = (lm or new_language_model(config, corpus)).to(ranks.device)
        self.step = 0
        self.state = self.lm.bilm.zero_state(last - first)
        self.windows = Windows(corpus, characters=config.model.char_cnn is not None, device=ranks.device)
        self.steps = config.train.steps or config.train.epochs * self.stream().windows_an_epoch
        self.optimizer = Optimizer(config.optimizer, self.lm.named_parameters(), last_step=self.steps)
        alone = ranks.size == config.train.accumulate == 1
        exact = config.softmax.kind != "adaptive"
        self.planned = ranks.device.type == "cuda" and alone and exact and has_triton(ranks.device)
        """Whether steps are planned on the host and launched whole (`graphs.py`)."""
        self.stopping = False
        """Whether the run is to end, for now, with the step under way."""

    @property
    def positions_a_step(self) -> int:
        """Predictions of each direction in a step of all ranks: the tokens that speeds are given in."""
        return self.config.data.rows * self.config.data.unroll_steps

    def stream(self) -> TrainStream:
        """This rank's text from the run's position on."""
        first, last = self.ranks.rows(self.config.data.rows)
        data = self.config.data
        return TrainStream(
            self.corpus,
            rows=data.rows,
            first=first,
            last=last,
            steps=data.unroll_steps,
            seed=self.config.seed,
            position=self.step,
        )

    def parts(self, streams_4BT: Ints) -> list[Window]:
        """A window as the parts that it is computed in."""
        return [self.windows(part) for part in np.split(streams_4BT, self.config.train.accumulate, axis=1)]

    @cached_property
    def planner(self) -> Planner:
        """What plans steps."""
        draw = self._samples if self.config.softmax.kind == "sampled" else None
        pinned = self.ranks.device.type == "cuda"
        return Planner(self.config, self.corpus, self.optimizer, draw, self._kept, pinned=pinned)

    @cached_property
    def stepper(self) -> Stepper:
        """What takes planned steps."""
        return Stepper(self.config, self.corpus, self.lm, self.optimizer, self.state, bf16=self._bf16)

    def launch(self, plan: Plan) -> Late:
        """Launch a planned step: what `advance` does, but without waiting for its outcome (see `finish`)."""
        assert plan.step == self.step + 1, "plans are taken in their order"
        late = self.stepper.start(plan, self.state, seed=self._dropout_seed(plan.step))
        self.state, self.step = self.stepper.state, plan.step
        return late

    def finish(self, late: Late) -> Stepped:
        """Wait for the outcome of a step that was launched."""
        try:
            return self._stepped(late.step, *late.wait())
        except ElmoError:
            self.stepper.revive()
            self.step = late.step - 1
            raise

    def advance(self, parts: list[Window]) -> Stepped:
        """Take a step: the gradient of `loss * unroll_steps`, where the loss is half the sum of the directions'."""
        number = self.step + 1
        self.lm.zero_grad(set_to_none=True)
        self.lm.bilm.requires_grad_(number > (self.config.train.head_steps or 0))
        sampling = self._sampling(number, parts)
        dropout = Dropout(self.config.train.dropout, self._generator(number))
        before = self.state.where(torch.from_numpy(self._kept(number)).to(self.ranks.device))
        losses, states, done = torch.zeros(2, device=self.ranks.device), [], 0
        for part in parts:
            rows = part.inputs.shape[1]
            state = before.rows_at(range(done, done + rows))
            positions, state = self.lm(part, state, dropout=dropout, sampling=sampling, bf16=self._bf16)
            mean = positions.mean(dim=1) / len(parts)
            torch.autograd.backward(0.5 * mean.sum() * self.config.data.unroll_steps)
            losses += mean.detach()
            states.append(state)
            done += rows
        gradients = self._gradients(None if sampling is None else sampling.rows)
        self.ranks.average_([losses, *(gradient.value for gradient in gradients)])
        norm = clip(gradients, self.config.optimizer.clip)
        stepped = self._stepped(number, *torch.cat([losses, norm[None]]).tolist())
        self.optimizer.apply(gradients, number)
        self.state, self.step = State.join(states), number
        return stepped

    def _stepped(self, number: int, forward: float, backward: float, size: float) -> Stepped:
        """A step's outcome, refused if it is no number."""
        if not math.isfinite(forward + backward + size):
            what = "loss" if not math.isfinite(forward + backward) else "gradient"
            raise ElmoError(
                f"the {what} is not a number any more at step {number:,} (losses {forward:g} and {backward:g}, norm of "
                f"the gradient {size:g}); the weights were left as they were. A lower optimizer.rate or "
                "optimizer.clip, or a warm-up, may help"
            )
        return Stepped(number, forward, backward, size, self.optimizer.rate(number))

    @property
    def validates_now(self) -> bool:
        """Whether a validation follows the step that was taken last."""
        return self.step % self.config.train.validate_every == 0 or self.step == self.steps

    @property
    def settles_now(self) -> bool:
        """Whether the step that was taken last must be over before the next: it is validated or saved."""
        return self.stopping or self.validates_now or self.step % self.config.train.checkpoint_every == 0

    @torch.no_grad()
    def validate(self) -> Validated:
        """Read the held-out split with the full softmax, each rank its rows."""
        data = self.config.data
        first, last = self.ranks.rows(data.rows)
        sums = torch.zeros(3, dtype=torch.float64, device=self.ranks.device)
        state = self.lm.bilm.zero_state(last - first)
        windows = validation_windows(
            self.corpus,
            rows=data.rows,
            first=first,
            last=last,
            steps=data.unroll_steps,
            most=self.config.train.validation_windows,
        )
        for streams, counted in windows:
            losses, state = self.lm(self.windows(streams, counted), state, bf16=self._bf16)
            sums[:2] += losses.sum(dim=1)
            sums[2] += int(counted.sum())
        forward, backward, positions = self.ranks.sum(sums).tolist()
        return Validated(self.step, forward / positions, backward / positions, int(positions))

    @property
    def _bf16(self) -> bool:
        precision = self.config.train.precision
        return precision == "bf16" or (precision == "auto" and has_bf16(self.ranks.device))

    def _samples(self, step: int) -> tuple[Samples, Samples]:
        """Each direction's samples of a step, on the host."""
        forward, backward = (
            log_uniform_samples(
                self.config.softmax.samples,
                self.lm.head.n_words,
                np.random.default_rng(np.random.SeedSequence(self.config.seed, spawn_key=(0, step, direction))),
            )
            for direction in range(2)
        )
        return forward, backward

    def _kept(self, step: int) -> Ints:
        """Which of this rank's rows go on from their state, `(B,)` bool."""
        first, last = self.ranks.rows(self.config.data.rows)
        rng = np.random.default_rng(np.random.SeedSequence(self.config.seed, spawn_key=(2, step)))
        kept: Ints = rng.random(self.config.data.rows)[first:last] >= self.config.data.forget
        return kept

    def _sampling(self, step: int, parts: list[Window]) -> Sampling | None:
        head = self.lm.head
        if self.config.softmax.kind != "sampled":
            return None
        assert isinstance(head, SoftmaxHead)
        forward, backward = (samples.to(self.ranks.device) for samples in self._samples(step))
        targets = self.ranks.gather(torch.cat([part.targets for part in parts], dim=1))
        return Sampling(take_rows(head, [forward.ids, backward.ids, *targets]), (forward, backward))

    def _dropout_seed(self, step: int) -> int:
        key = np.random.SeedSequence(self.config.seed, spawn_key=(1, step, self.ranks.rank))
        return int(key.generate_state(1, np.uint64)[0] >> 1)

    def _generator(self, step: int) -> torch.Generator:
        return torch.Generator(self.ranks.device).manual_seed(self._dropout_seed(step))

    def _gradients(self, rows: Rows | None) -> list[Gradient]:
        found = [
            Gradient(name, weight, weight.grad)
            for name, weight in self.lm.named_parameters()
            if weight.grad is not None
        ]
        if rows is None:
            return found
        head = self.lm.head
        assert isinstance(head, SoftmaxHead)
        tables: list[tuple[str, Tensor, Tensor | None]] = [
            ("head.weight", head.weight, rows.weight.grad),
            ("head.bias", head.bias, rows.bias.grad),
        ]
        return found + [Gradient(name, table, grad, rows.ids) for name, table, grad in tables if grad is not None]


def _check_fits(config: TrainConfig, corpus: Corpus) -> None:
    n_words = len(corpus.vocab)
    if config.model.n_words is not None and config.model.n_words != n_words:
        raise ElmoError(
            f"model.n_tokens_vocab is {config.model.n_words:,}, the corpus has a vocabulary of {n_words:,} words"
        )
    cnn = config.model.char_cnn
    width = int(corpus.characters().shape[1])
    if cnn is not None and cnn.max_characters_per_token != width:
        raise ElmoError(
            f"model.char_cnn.max_characters_per_token is {cnn.max_characters_per_token}, the corpus was prepared "
            f"with {width}"
        )


def _fingerprint(lm: LanguageModel) -> str:
    digest = hashlib.sha256()
    for weight in lm.state_dict().values():
        digest.update(weight.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def new_language_model(config: TrainConfig, corpus: Corpus) -> LanguageModel:
    """A model with the start values of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        bilm = BiLM(config.model)
        return LanguageModel(bilm, _new_head(config, corpus))


def new_head(config: TrainConfig, corpus: Corpus) -> Head:
    """A head over the corpus's vocabulary with the start values of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return _new_head(config, corpus)


def _new_head(config: TrainConfig, corpus: Corpus) -> Head:
    n_words, dim = len(corpus.vocab), config.model.lstm.projection_dim
    if config.softmax.kind == "adaptive":
        return AdaptiveHead(n_words, dim, config.softmax.cutoffs)
    head = SoftmaxHead(n_words, dim)
    if config.softmax.start == "unigram":
        counts = torch.from_numpy(np.asarray(corpus.counts(), dtype=np.float64)) + 1
        head.bias.data.copy_(torch.log(counts / counts.sum()))
    return head


def has_bf16(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 faster than in float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def train(training: Training) -> Iterator[Event]:
    """Take steps until the last one; validate every so often and at the end."""
    stream, numbers = training.stream(), itertools.count(training.step + 1)

    def read() -> list[Window] | Plan:
        number, streams = next(numbers), next(stream)
        return training.planner(streams, number) if training.planned else training.parts(streams)

    late: list[Late] = []
    # One thread reads the next window while this one is computed: its order is the stream's, whatever the timing.
    with ThreadPoolExecutor(1) as reader:
        upcoming = reader.submit(read)
        while training.step < training.steps:
            ready = upcoming.result()
            upcoming = reader.submit(read)
            if isinstance(ready, Plan):
                late.append(training.launch(ready))
                # A step is told of when the next is under way, so that the device never waits for the host; unless
                # something is about to be done with what it has left behind.
                while len(late) > (0 if training.settles_now else 1):
                    yield training.finish(late.pop(0))
            else:
                yield training.advance(ready)
            if training.validates_now:
                yield training.validate()
