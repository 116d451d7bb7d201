"""Pretraining the biLM (SEMANTICS section 5): what the loop (`loop.py`) takes its steps with.

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
printing and stopping live in `loop.py`.

There are two ways to take a step. `Training.advance` asks the device as it goes and waits for it: on a CPU, between
several devices, in parts, for the adaptive softmax. On one GPU with Triton the reader's thread plans a step
(`plans.py`) and it is launched whole (`graphs.py`). The two compute the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from elmo.engine.available import has_triton
from elmo.errors import ElmoError
from elmo.lm.batches import Corpus, Ints, TrainStream, Windows, validation_windows
from elmo.lm.checkpoint import fill_tensors, refuse_other_settings
from elmo.lm.distributed import Ranks
from elmo.lm.graphs import Stepper
from elmo.lm.late import Late
from elmo.lm.loop import StepEvent, Trainable, ValidEvent
from elmo.lm.network import Dropout, LanguageModel, Sampling, Window
from elmo.lm.optimizers import Gradient, Optimizer, clip
from elmo.lm.perplexity import perplexity_of
from elmo.lm.plans import Plan, Planner
from elmo.lm.settings import LoopSettings, TrainConfig
from elmo.lm.softmax import Rows, Samples, SoftmaxHead, log_uniform_samples, take_rows
from elmo.lm.start import check_fits, fingerprint, new_language_model
from elmo.model import State

# How often changes no step's result, and how long none but by the rate, where it falls to its last step's: a run may
# go on with others.
_FREE = {"corpus", *(f"train.{one.name}" for one in fields(LoopSettings))} - {
    f"train.{name}" for name in ("head_steps", "dropout", "accumulate", "precision")
}


@dataclass(frozen=True)
class Stepped(StepEvent):
    """A step was taken."""

    forward: float
    """Mean cross-entropy of the forward direction, by the softmax of training."""
    backward: float
    """The same, backward."""
    norm: float
    """Norm of the gradient before clipping."""
    rate: float
    """Learning rate."""
    sampled: bool
    """Whether the losses are the sampled softmax's, the `exp` of which is no perplexity."""

    @property
    def loss(self) -> float:
        """Mean of the two directions."""
        return 0.5 * (self.forward + self.backward)

    @property
    def numbers(self) -> tuple[float, ...]:
        """What is averaged between two lines of the metrics."""
        return self.forward, self.backward, self.norm

    def averaged(self, means: tuple[float, ...]) -> Self:
        """This event with means in the place of its numbers."""
        forward, backward, norm = means
        return replace(self, forward=forward, backward=backward, norm=norm)

    def line(self) -> dict[str, Any]:
        """A line of the metrics."""
        return {
            "step": self.step,
            "loss": self.loss,
            "forward": self.forward,
            "backward": self.backward,
            "norm": self.norm,
            "rate": self.rate,
        }


@dataclass(frozen=True)
class Validated(ValidEvent):
    """The held-out split was read, with the full softmax and the state carried."""

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
        return perplexity_of(self.loss)

    def line(self) -> dict[str, Any]:
        """A line of the metrics; `of_line` reads it."""
        return {
            "step": self.step,
            "valid_loss": self.loss,
            "valid_forward": self.forward,
            "valid_backward": self.backward,
            "valid_perplexity": self.perplexity,
            "valid_perplexity_forward": perplexity_of(self.forward),
            "valid_perplexity_backward": perplexity_of(self.backward),
            "valid_positions": self.positions,
        }

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> Self:
        """The validation that a line of the metrics tells of."""
        return cls(line["step"], line["valid_forward"], line["valid_backward"], line["valid_positions"])


class Training(Trainable[list[Window] | Plan, Stepped, Validated]):
    """A run: the model, what the optimizer remembers, the rows' state and how many steps were taken."""

    needs_less = "a smaller data.rows, or parts (train.accumulate), need less"

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
        self.config, self.corpus, self.ranks, self.loop = config, corpus, ranks, config.train
        check_fits(config, corpus)
        self.start = None if lm is None else fingerprint(lm)
        """What tells the model that the run starts from, if not from the seed's start values."""
        self.lm = (lm or new_language_model(config, corpus)).to(ranks.device)
        self.state = self.lm.bilm.zero_state(last - first)
        self.windows = Windows(corpus, characters=config.model.char_cnn is not None, device=ranks.device)
        self.steps = config.train.steps or config.train.epochs * self.stream().windows_an_epoch
        self.optimizer = Optimizer(config.optimizer, self.lm.named_parameters(), last_step=self.steps)
        alone = ranks.size == config.train.accumulate == 1
        exact = config.softmax.kind != "adaptive"
        self.planned = ranks.device.type == "cuda" and alone and exact and has_triton(ranks.device)
        """Whether steps are planned on the host and launched whole (`graphs.py`)."""

    @property
    def units_a_step(self) -> int:
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

    def reads(self) -> Iterator[list[Window] | Plan]:
        """The windows of the steps from here on, each as its parts or as a plan."""
        stream = self.stream()
        for number in itertools.count(self.step + 1):
            streams = next(stream)
            yield self.planner(streams, number) if self.planned else self.parts(streams)

    def takes(self, reads: Iterator[list[Window] | Plan]) -> Iterator[Stepped]:
        """Take a step with each window."""
        late: list[Late] = []
        for ready in reads:
            if isinstance(ready, Plan):
                late.append(self.launch(ready))
                # A step is told of when the next is under way, so that the device never waits for the host; unless
                # something is about to be done with what it has left behind.
                while len(late) > (0 if self.settles_now else 1):
                    yield self.finish(late.pop(0))
            else:
                yield self.advance(ready)

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
        sampled = self.config.softmax.kind == "sampled"
        return Stepped(number, forward, backward, size, self.optimizer.rate(number), sampled)

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

    def weights(self) -> dict[str, Tensor]:
        """Those of the biLM and its head."""
        return {f"lm.{name}": weight for name, weight in self.lm.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Weights, what the optimizer remembers, and the LSTM state of all ranks' rows."""
        state = self.ranks.gather_state(self.state)
        return self._learned() | {"state.m": state.m, "state.c": state.c}

    def _learned(self) -> dict[str, Tensor]:
        return self.weights() | {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state.items()}

    def settings(self) -> dict[str, Any]:
        """The config."""
        return self.config.to_dict()

    def facts(self) -> dict[str, Any]:
        """Which corpus it is, and which model the run started from."""
        facts = {"corpus": self.corpus.digest, "vocabulary": len(self.corpus.vocab)}
        return facts if self.start is None else facts | {"start": self.start}

    def restore(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
        """Take over the tensors of a checkpoint, of the state this rank's rows; refuse those of another run."""
        refuse_other_settings(about["config"], self.settings(), free=_FREE, path=path)
        if about.get("start") != self.start:
            raise ElmoError(f"{path} is of a run that started from another model: give the same, or another folder")
        if about["corpus"] != self.corpus.digest:
            raise ElmoError(f"{path} is of a run on another corpus than {self.config.corpus}")
        fill_tensors(self._learned(), tensors, path)
        first, last = self.ranks.rows(self.config.data.rows)
        self.state = State(*(tensors[f"state.{part}"][:, :, first:last] for part in "mc")).to(self.state.m)

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


def has_bf16(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 faster than in float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
