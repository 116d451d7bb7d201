"""The biLM on a GPU beside its peers: `python benchmarks/gpu.py [--text FILE] [--corpus FOLDER] [--parts ...]`.

The published size with random weights, clips on. First it is checked: vectors and gradients against the readable
network in float64. Then, as Markdown tables:

- the LSTM stack alone, 24 steps of random input, beside three peers: a straight loop of the operations that AllenNLP's
  modules do (AllenNLP itself installs on no current Python), cuDNN's `nn.LSTM(proj_size)`, which has no clips and so is
  another function, and a plain loop of products in bfloat16 under one CUDA graph; and training it, 20 steps;
- embedding from strings to arrays on the host: sentences of `--text`, one a line, split at white space;
- training with all of it: characters, LSTMs, 8192 samples of 793,471 words, optimizer, data;
- 200 steps over the text of `--corpus`, a folder of `elmo prepare`, in bfloat16 beside the readable way in float32.

Best of several runs, by the GPU's own clock, but for embedding and training, which are by the wall's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from train_gpu import CONFIGS, LONG, make_corpus, speed

import elmo
from elmo.engine.cuda import CudaEngine
from elmo.engine.precision import Steps
from elmo.lm import layer
from elmo.lm.corpus import Corpus
from elmo.lm.distributed import Ranks
from elmo.lm.layer import run_layer
from elmo.lm.loop import train
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Training
from elmo.lstm import ProjectedLSTM
from elmo.model import BiLM

GPU = torch.device("cuda:0")
CONFIG = TrainConfig.read(CONFIGS / "original.toml").model
WIDTH, CELLS = CONFIG.lstm.projection_dim, CONFIG.lstm.dim
REPEATS = 5

Work = Callable[[], object]


def main() -> None:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="sentences to embed, one a line")
    parser.add_argument("--corpus", type=Path, help="folder of elmo prepare, to train on")
    parser.add_argument("--parts", nargs="*", default=["check", "stack", "embed", "training", "follow"])
    options = parser.parse_args()
    torch.manual_seed(0)
    name, versions = torch.cuda.get_device_name(), f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {name}, {versions}\n", flush=True)
    bilm = BiLM(CONFIG).to(GPU).requires_grad_(False)
    if "check" in options.parts:
        check_vectors(bilm)
        check_gradients()
    if "stack" in options.parts:
        stack(bilm)
        stack_training(bilm)
    if "embed" in options.parts and options.text is not None:
        embedding(bilm, options.text.read_text(encoding="utf-8").splitlines())
    del bilm
    if "training" in options.parts:
        training()
    if "follow" in options.parts and options.corpus is not None:
        follow(Corpus.open(options.corpus))


def engine(bilm: BiLM, precision: str) -> CudaEngine:
    """The engine of a precision."""
    weights = bilm.state_dict()
    return CudaEngine(bilm.config, lambda name, rows: weights[name][rows], precision, GPU)  # type: ignore[arg-type]


def check_vectors(bilm: BiLM) -> None:
    """Compare both precisions with float64, over batches that take each way through the engine."""
    rng = np.random.default_rng(0)
    exact = BiLM(CONFIG).to(GPU).double().requires_grad_(False)
    exact.load_state_dict(bilm.state_dict())
    print("| precision | rows | largest difference | relative error of layers 1, 2 | least mean cosine |")
    print("|---|---|---|---|---|")
    for precision in ("fp32", "bf16"):
        ours = engine(bilm, precision)
        for rows in (1, 7, 30, 200, 700):
            lengths = rng.integers(1, 40, rows)
            places = torch.from_numpy(np.where(np.arange(39) < lengths[:, None], rng.integers(0, 500, (rows, 39)), -1))
            words = torch.randn(500, WIDTH, device=GPU)
            mask = (places >= 0).to(GPU)
            theirs = exact.contextualise(words.double()[places.clamp_min(0).to(GPU)], mask).layers[1:, mask]
            got = ours.contextualise(words, places).layers[1:, mask].double()
            errors = (got - theirs).flatten(1).norm(dim=1) / theirs.flatten(1).norm(dim=1)
            cosine = torch.cosine_similarity(got, theirs, dim=-1).mean(dim=1).min()
            apart = float((got - theirs).abs().max())
            both = ", ".join(f"{error:.1e}" for error in errors.tolist())
            print(f"| {precision} | {rows} | {apart:.1e} | {both} | {float(cosine):.6f} |", flush=True)
            good = apart <= 1e-5 if precision == "fp32" else max(errors.tolist()) <= 1e-2 and cosine >= 0.9999
            if not good:
                raise SystemExit("the vectors are not those of the readable network: nothing is measured")
    ids = torch.randint(1, 262, (500, 50), device=GPU)
    theirs = exact.encoder(ids)
    apart, low = (float((engine(bilm, p).encode(ids) - theirs).norm() / theirs.norm()) for p in ("fp32", "bf16"))
    print(f"\nwords' vectors, relative error: fp32 {apart:.1e}, bf16 {low:.1e}\n", flush=True)


def check_gradients() -> None:
    """Compare a layer's gradients with float64, over 100 rows and 20 steps."""
    rows, steps = 100, 20
    lstms = [ProjectedLSTM(CONFIG.lstm).to(GPU) for _ in range(2)]
    x, slope = (torch.randn(2, steps, rows, WIDTH, device=GPU) for _ in range(2))
    m, c = 0.3 * torch.randn(2, rows, WIDTH, device=GPU), 0.3 * torch.randn(2, rows, CELLS, device=GPU)

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for lstm in lstms:
            lstm.to(wide).zero_grad()
        inputs = x.to(wide).requires_grad_()
        y, _, _ = run_layer(lstms[0], lstms[1], inputs, m.to(wide), c.to(wide), dtype)
        weights = [weight for lstm in lstms for weight in lstm.parameters()]
        return [one.double() for one in torch.autograd.grad(y, [inputs, *weights], slope.to(wide))]

    exact = gradients(torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        pairs = list(zip(gradients(dtype), exact, strict=True))
        worst = max(float((a - b).norm() / b.norm()) for a, b in pairs)
        cosine = min(float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0)) for a, b in pairs)
        print(f"gradients, {dtype}: relative error at most {worst:.1e}, cosine at least {cosine:.6f}", flush=True)
        if worst > 1e-4 if dtype == torch.float32 else cosine < 0.999:
            raise SystemExit("the gradients are not those of the readable network: nothing is measured")
    print()


def milliseconds(work: Work, calls: int = 5) -> float:
    """Of one call, the best of several runs."""
    work()
    best = float("inf")
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        best = min(best, float(start.elapsed_time(end)) / calls)
    return best


def captured(work: Work) -> Work:
    """The same work as a graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class Cudnn(nn.Module):
    """PyTorch's own LSTMs with a projection, without clips."""

    def __init__(self) -> None:
        """Two layers in two directions that do not see each other."""
        super().__init__()
        stacks = [nn.LSTM(WIDTH, CELLS, 2, proj_size=WIDTH).to(GPU, torch.bfloat16) for _ in range(2)]
        for stack in stacks:
            stack.flatten_parameters()
        self.stacks = nn.ModuleList(stacks)

    def forward(self, x_2TBP: Tensor) -> list[Tensor]:
        """Each direction's top layer."""
        return [stack(x)[0] for stack, x in zip(self.stacks, x_2TBP, strict=True)]


def straight(bilm: BiLM, x_2TBP: Tensor) -> list[Tensor]:
    """A step at a time, in float32, as AllenNLP's cell does: two products, four gates, two clips."""
    tops = []
    for stack, x_TBP in zip((bilm.forwards, bilm.backwards), x_2TBP, strict=True):
        for k, lstm in enumerate(stack):
            assert isinstance(lstm, ProjectedLSTM)
            x_TBP = torch.stack(steps_of(lstm, x_TBP)) + (x_TBP if k else 0)
        tops.append(x_TBP)
    return tops


def steps_of(lstm: ProjectedLSTM, x_TBP: Tensor) -> list[Tensor]:
    """A layer's outputs, one product after the other."""
    assert lstm.projection is not None
    m, c = x_TBP.new_zeros(x_TBP.shape[1], WIDTH), x_TBP.new_zeros(x_TBP.shape[1], CELLS)
    outputs = []
    for x in x_TBP:
        i, j, f, o = (x @ lstm.kernel[:WIDTH] + m @ lstm.kernel[WIDTH:] + lstm.bias).chunk(4, dim=1)
        c = (torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)).clamp(-3, 3)
        m = ((torch.sigmoid(o) * torch.tanh(c)) @ lstm.projection).clamp(-3, 3)
        outputs.append(m)
    return outputs


def low_weights(bilm: BiLM) -> list[tuple[Tensor, Tensor]]:
    """Kernels and projections of each layer, both directions, in bfloat16."""

    def both(k: int, name: str) -> Tensor:
        return torch.stack([stack[k].get_parameter(name).bfloat16() for stack in (bilm.forwards, bilm.backwards)])

    return [(both(k, "kernel"), both(k, "projection")) for k in range(CONFIG.lstm.n_layers)]


def plain(weights: list[tuple[Tensor, Tensor]], x_2TBP: Tensor) -> Tensor:
    """Products of both directions in bfloat16, the input's ahead of the steps, PyTorch's gates."""
    for kernel, projection in weights:
        _, T, B, _ = x_2TBP.shape
        gates = torch.bmm(x_2TBP.reshape(2, T * B, WIDTH), kernel[:, :WIDTH]).view(2, T, B, -1)
        m, c = x_2TBP.new_zeros(2, B, WIDTH), torch.zeros(2, B, CELLS, device=GPU)
        outputs = []
        for t in range(T):
            i, j, f, o = torch.baddbmm(gates[:, t], m, kernel[:, WIDTH:]).float().chunk(4, dim=2)
            c = (torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)).clamp(-3, 3)
            m = torch.bmm((torch.sigmoid(o) * torch.tanh(c)).to(x_2TBP.dtype), projection).clamp(-3, 3)
            outputs.append(m)
        x_2TBP = torch.stack(outputs, dim=1)
    return x_2TBP


@torch.no_grad()
def stack(bilm: BiLM) -> None:
    """Tokens a second of the LSTM stack."""
    low, cudnn = low_weights(bilm), Cudnn()
    ours = {precision: engine(bilm, precision) for precision in ("fp32", "bf16")}
    print("LSTM stack, 24 steps, tokens/s\n")
    columns = (
        "straight loop, fp32",
        "cuDNN, bf16, no clips",
        "plain loop in a graph, bf16",
        "ours, fp32",
        "ours, bf16",
    )
    print(f"| rows | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|")
    for rows in (1, 8, 32, 128, 512, 1024, 2048):
        x = torch.randn(2, 24, rows, WIDTH, device=GPU)
        half = x.bfloat16()
        works: list[Work] = [
            lambda x=x: straight(bilm, x),  # type: ignore[misc]
            lambda half=half: cudnn(half),  # type: ignore[misc]
            captured(lambda half=half: plain(low, half)),  # type: ignore[misc]
            *(on_tokens(one, rows, 24) for one in ours.values()),
        ]
        row(rows, 24, works)
    print(flush=True)


def row(rows: int, steps: int, works: Sequence[Work]) -> None:
    """Print a line of speeds."""
    speeds = [1000 * rows * steps / milliseconds(work) for work in works]
    print(f"| {rows} | {' | '.join(f'{speed:,.0f}' for speed in speeds)} |", flush=True)


def on_tokens(ours: CudaEngine, rows: int, steps: int) -> Work:
    """The engine's stack over tokens whose vectors it has, as `contextualise` calls it."""
    places = torch.randint(0, 500, (rows, steps))
    ours.contextualise(torch.randn(500, WIDTH, device=GPU), places)
    order = Steps.of(places)

    def work() -> None:
        with torch.inference_mode():
            ours._run(order, 2)

    return work


def stack_training(bilm: BiLM) -> None:
    """Tokens a second of the stack, there and back."""
    lstms = [nn.ModuleList(stack).requires_grad_(True) for stack in (bilm.forwards, bilm.backwards)]
    weights = [weight for stack in lstms for weight in stack.parameters()]
    cudnn = Cudnn()
    print("training the LSTM stack, 20 steps, tokens/s\n")
    print("| rows | straight loop, fp32 | cuDNN, bf16, no clips | ours, bf16 |\n|---|---|---|---|")
    for rows in (128, 512, 1024):
        x, slope = (torch.randn(2, 20, rows, WIDTH, device=GPU) for _ in range(2))
        state = x.new_zeros(2, rows, WIDTH), x.new_zeros(2, rows, CELLS)

        def loop(x: Tensor = x, slope: Tensor = slope) -> object:
            return torch.autograd.grad(straight(bilm, x), weights, list(slope))

        half, half_slope = x.bfloat16(), slope.bfloat16()

        def theirs(x: Tensor = half, slope: Tensor = half_slope) -> object:
            return torch.autograd.grad(cudnn(x), list(cudnn.parameters()), list(slope))

        def ours(x: Tensor = x, slope: Tensor = slope, state: tuple[Tensor, Tensor] = state) -> object:
            y = x
            for forward, backward in zip(*lstms, strict=True):
                assert isinstance(forward, ProjectedLSTM)
                assert isinstance(backward, ProjectedLSTM)
                y = run_layer(forward, backward, y, *state, torch.bfloat16)[0]
            return torch.autograd.grad(y, weights, slope)

        row(rows, 20, [loop, theirs, captured(ours)])
    for stack in lstms:
        stack.requires_grad_(False)
    print(flush=True)


def embedding(bilm: BiLM, sentences: list[str]) -> None:
    """Words a second from strings to float16 means of the layers on the host."""
    bilm = bilm.cpu()
    sentences = sentences * (1 + 600_000 // sum(len(sentence.split()) for sentence in sentences))
    words = sum(len(sentence.split()) for sentence in sentences)
    print(f"embedding {len(sentences):,} sentences, {words:,} words, from strings to the host, float16\n")
    print("| precision | words/s: first call | then, each | peak GB on the GPU |\n|---|---|---|---|")
    for precision in ("fp32", "bf16"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        model, speeds = elmo.Model.of(bilm), []
        for _ in range(6):
            start = time.perf_counter()
            vectors = model.embed(sentences, device="cuda", precision=precision, dtype="float16")
            speeds.append(words / (time.perf_counter() - start))
            del vectors
        del model
        memory = torch.cuda.max_memory_allocated() / 2**30
        print(
            f"| {precision} | {speeds[0]:,.0f} | {', '.join(f'{s:,.0f}' for s in speeds[1:])} | {memory:.1f} |",
            flush=True,
        )
    print()


def training() -> None:
    """Tokens a second of whole steps."""
    corpus = make_corpus(793_471, 8_000_000)
    print("training, whole steps\n")
    print("| rows | precision | step, ms | tokens/s | peak GB |\n|---|---|---|---|---|")
    for rows, precision in ((128, "bf16"), (512, "bf16"), (1024, "bf16"), (512, "fp32")):
        config = TrainConfig.read(
            CONFIGS / "original.toml", [f"data.rows={rows}", f"train.precision={precision}", *LONG]
        )
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step, memory, _ = speed(config, corpus, Ranks(device=GPU), steps=100 if precision == "bf16" else 20)
        tokens = 1000 * rows * config.data.unroll_steps / step
        print(f"| {rows} | {precision} | {step:.1f} | {tokens:,.0f} | {memory:.1f} |", flush=True)


def follow(corpus: Corpus) -> None:
    """Compare losses of bfloat16's planned steps with those of the readable way in float32, and that with itself."""
    print("200 steps of 128 rows over real text, losses as means of 10 steps, bf16's planned steps beside plain fp32\n")
    for what, more in (("as published", []), ("a rate of 0.02", ["optimizer.rate=0.02"])):
        high, again, low = (losses_of(corpus, precision, more) for precision in ("fp32", "fp32", "bf16"))
        for name, other in (("bf16", low), ("fp32 a second time", again)):
            apart = 100 * np.abs(other / high - 1)
            print(f"- {what}, {name}: largest difference {apart.max():.2f} %, of the last {apart[-1]:.2f} %")
        for name, some in (("fp32", high), ("again", again), ("bf16", low)):
            print(f"  - {name}: {' '.join(f'{loss:.3f}' for loss in some)}", flush=True)


def losses_of(corpus: Corpus, precision: str, more: list[str]) -> NDArray[np.float64]:
    """The losses of 200 steps of 128 rows, means of 10."""
    sets = ["data.rows=128", f"train.precision={precision}", "train.steps=200", "train.validate_every=1000000"]
    run = Training(TrainConfig.read(CONFIGS / "original.toml", [*sets, *more]), corpus, Ranks(device=GPU))
    with readable(precision == "fp32"):
        run.planned = precision == "bf16"
        losses = [0.5 * (step.forward + step.backward) for step in islice(train(run), 200)]
    means: NDArray[np.float64] = np.asarray(losses).reshape(-1, 10).mean(axis=1)
    return means


@contextmanager
def readable(wanted: bool) -> Iterator[None]:
    """Do without the GPU's own kernels."""
    kept = layer.has_lstm_kernels  # type: ignore[attr-defined]
    layer.has_lstm_kernels = (lambda *_: False) if wanted else kept  # type: ignore[attr-defined]
    try:
        yield
    finally:
        layer.has_lstm_kernels = kept  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
