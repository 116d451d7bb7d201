"""Training steps on one GPU: no question to the host inside a step, and all its kernels launched as one CUDA graph.

A step's sizes are those of its plan (`plans.py`). The first step of a shape runs as it is, which also compiles and
warms what it needs; the second is captured; from then on the graph is replayed. All three do the same kernels on the
same numbers, so it does not matter to the result at which of them a run was cut and resumed.

What a graph reads and writes must stay where it is: weights, the optimizer's memory and the LSTM's state are updated in
place, the plan is copied into the graph's own buffer. What a step says of itself comes one step late (`Late`), when the
next one is under way. If a loss is no number any more, the device itself stops changing anything.

Shapes: as in `plans.py`; P projection.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmo.lm.batches import Corpus
from elmo.lm.late import Late
from elmo.lm.network import Dropout, LanguageModel, Window
from elmo.lm.optimizers import Gradient, Optimizer, norm
from elmo.lm.plans import Inputs, Layout, Plan, Shape
from elmo.lm.settings import TrainConfig
from elmo.lm.softmax import SoftmaxHead, fused_losses, log_expected_count
from elmo.model import State

_GRAPHS = 32  # kept: a run meets a few shapes again and again


class _Run:
    """The steps of one shape: where they read, whether there was one, and the graph of the others."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.buffer = torch.zeros(layout.size, dtype=torch.int32, device=device)
        self.inputs = layout.split(self.buffer)
        self.warm = False
        self.graph: torch.cuda.CUDAGraph | None = None


class Stepper:
    """Takes planned steps with a model; on a CPU (in tests) never as a graph."""

    def __init__(
        self,
        config: TrainConfig,
        corpus: Corpus,
        lm: LanguageModel,
        optimizer: Optimizer,
        state: State,
        *,
        bf16: bool,
    ) -> None:
        """Put what every step reads on the model's device: the characters of all types."""
        self._config, self._lm, self._optimizer, self._bf16 = config, lm, optimizer, bf16
        self._device = state.m.device
        if config.model.char_cnn is not None:
            words = torch.from_numpy(np.array(corpus.characters(), dtype=np.int16))
        else:
            words = torch.from_numpy(np.asarray(corpus.targets()).astype(np.int32) + 1)
        self._words = words.to(self._device)
        self.state = State(state.m.clone(), state.c.clone())
        """What the rows stand at; changed in place by every step."""
        self._results = torch.zeros(3, device=self._device)
        self._sound = torch.ones((), dtype=torch.bool, device=self._device)
        self._generator = torch.Generator(self._device)
        self._runs: OrderedDict[Shape, _Run] = OrderedDict()
        on_gpu = self._device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None
        # PyTorch's own is one for all of the process, on the GPU of whoever captured first.
        self._stream = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.captures = on_gpu
        """Whether steps become graphs."""

    def start(self, plan: Plan, state: State, *, seed: int) -> Late:
        """Launch a step of rows that stand at `state`, with dropout drawn from a seed."""
        if state is not self.state:
            self.state.m.copy_(state.m)
            self.state.c.copy_(state.c)
        run = self._runs.pop(plan.layout.shape, None) or _Run(plan.layout, self._device)
        self._runs[plan.layout.shape] = run
        if len(self._runs) > _GRAPHS:
            self._runs.popitem(last=False)
        # In the order of the device's work: the step before has read the buffer by then. The pinned memory goes back
        # to PyTorch, which keeps it until the copy is done.
        run.buffer.copy_(plan.buffer, non_blocking=True)
        self._generator.manual_seed(seed)
        if run.warm and run.graph is None and self.captures:
            run.graph = self._capture(run)
        run.warm = True
        if run.graph is None:
            self.take(run.layout, run.inputs)
        else:
            run.graph.replay()
        return Late.of(plan.step, self._results)

    def revive(self) -> None:
        """Let steps change something again, after one whose loss was no number."""
        self._sound.fill_(True)

    def take(self, layout: Layout, inputs: Inputs) -> None:
        """A whole step: what a graph holds."""
        losses_2, gradients, state = self.gradients(layout, inputs)
        with torch.no_grad():
            size = norm([gradient.value for gradient in gradients])
            self._sound.logical_and_(torch.isfinite(losses_2.sum() + size))
            most = self._config.optimizer.clip
            scale = torch.where(self._sound, most / size.clamp(min=most), 0.0)
            self._optimizer.apply_planned(gradients, scale, inputs.rates)
            self.state.m.copy_(torch.where(self._sound, state.m, self.state.m))
            self.state.c.copy_(torch.where(self._sound, state.c, self.state.c))
            self._results.copy_(torch.cat([losses_2, size[None]]))

    def _capture(self, run: _Run) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Seeded before a replay, it draws in it what it would draw outside.
        graph.register_generator_state(self._generator)
        # Not "global": the reader's thread may ask for pinned memory meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            self.take(run.layout, run.inputs)
        return graph

    def gradients(self, layout: Layout, inputs: Inputs) -> tuple[Tensor, list[Gradient], State]:
        """Mean losses of the directions, `(2,)`, the gradient of all that learns, and the rows' next state."""
        lm, head = self._lm, self._lm.head
        lm.bilm.requires_grad_(not layout.shape.head_only)
        learning = dict(lm.bilm.named_parameters(prefix="bilm")) if not layout.shape.head_only else {}
        dropout = Dropout(self._config.train.dropout, self._generator)
        before = self.state.where(inputs.kept)
        h_2TBP, state = lm.contextualise(self.window(layout, inputs), before, dropout=dropout, bf16=self._bf16)
        h_2MP = h_2TBP.flatten(1, 2)
        rows: dict[str, Tensor] = {}
        if layout.samples:
            assert isinstance(head, SoftmaxHead)
            assert inputs.ids is not None
            with torch.no_grad():
                rows = {name: w.index_select(0, inputs.ids).requires_grad_() for name, w in head.named_parameters()}
            losses_2M = self._sampled(h_2MP, rows["weight"], rows["bias"], inputs)
        else:
            learning |= dict(head.named_parameters(prefix="head"))
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                pairs = zip(h_2MP, inputs.targets.long(), strict=True)
                losses_2M = torch.stack([head(h, targets) for h, targets in pairs])
        losses_2 = losses_2M.mean(dim=1)
        loss = 0.5 * losses_2.sum() * layout.steps
        values = torch.autograd.grad(loss, [*learning.values(), *rows.values()])
        found = [Gradient(name, w, value) for (name, w), value in zip(learning.items(), values, strict=False)]
        found += [
            Gradient(f"head.{name}", head.get_parameter(name), value, inputs.ids, inputs.count)
            for name, value in zip(rows, values[len(found) :], strict=True)
        ]
        return losses_2.detach(), found, state

    def window(self, layout: Layout, inputs: Inputs) -> Window:
        """What the network reads."""
        words = self._words.index_select(0, inputs.types).int()
        # Targets are in the order of time, which the softmax asks for; the network itself does not look at them.
        return Window(words, inputs.inputs.mT, inputs.targets, layout.shape.groups)

    def _sampled(self, h_2MP: Tensor, weight_RP: Tensor, bias_R: Tensor, inputs: Inputs) -> Tensor:
        """The sampled softmax's losses, `(2, M)`."""
        assert inputs.ids is not None
        assert inputs.tries is not None
        assert inputs.places is not None
        assert inputs.hits is not None
        dtype = torch.bfloat16 if self._bf16 else h_2MP.dtype
        _, M, _ = h_2MP.shape
        samples = len(inputs.places) // 2 - M
        sizes = [M, M, samples, samples]
        # One gather for all, so that the way back sorts and adds up once.
        words = inputs.ids.index_select(0, inputs.places)
        tries = torch.cat([inputs.tries[d % 2].expand(size) for d, size in enumerate(sizes)])
        counts = log_expected_count(words, self._lm.head.n_words, tries).float()
        biases = torch.split(F.embedding(inputs.places, bias_R[:, None])[:, 0] - counts, sizes)
        weights = torch.split(F.embedding(inputs.places, weight_RP), sizes)
        losses = []
        for d, h_MP in enumerate(h_2MP):
            true_M = (h_MP * weights[d]).sum(dim=-1) + biases[d]
            losses.append(fused_losses(h_MP, weights[2 + d], biases[2 + d], true_M, inputs.hits[d], dtype))
        return torch.stack(losses)
