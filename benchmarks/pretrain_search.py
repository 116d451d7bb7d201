"""Which settings make the best of some GPU time: `python benchmarks/pretrain_search.py CORPUS [--seconds 40]`.

Each candidate is `configs/default.toml` with some settings replaced. Its speed is measured first; then it is trained
from its start for as many steps as the time allows, its rate's decay ending with them, and validated with the full
softmax. Prints a line of a Markdown table for each. CORPUS is what `elmo prepare` made.
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import torch

from elmo.lm.corpus import Corpus
from elmo.lm.distributed import Ranks
from elmo.lm.loop import train
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Training, Validated

CONFIG = Path(__file__).parents[1] / "configs" / "default.toml"
ADAGRAD = ["optimizer.kind=adagrad", "optimizer.rate=0.2", "optimizer.clip=10"]
FULL = ["softmax.kind=full"]
CANDIDATES = {
    "default": [],
    "rate 0.0005": ["optimizer.rate=0.0005"],
    "rate 0.002": ["optimizer.rate=0.002"],
    "rate 0.004": ["optimizer.rate=0.004"],
    "full softmax": FULL,
    "adagrad": ADAGRAD,
    "adagrad, no decay": [*ADAGRAD, "optimizer.decay=none"],
    "adagrad, full softmax": [*ADAGRAD, *FULL],
    "nothing forgotten": ["data.forget=0"],
    "no dropout": ["train.dropout=0"],
    "512 rows": ["data.rows=512"],
    "2048/256": ["model.lstm.projection_dim=256"],
    "4096/256": ["model.lstm.projection_dim=256", "model.lstm.dim=4096"],
}
WARM, TIMED = 30, 40


def main() -> None:
    """Train each and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(map(repr, CANDIDATES))}")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=V", help="for all of them")
    options = parser.parse_args()
    device = torch.device(options.device)
    corpus = Corpus.open(options.corpus, verify=False)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {name}, PyTorch {torch.__version__}, {options.seconds:g} s each\n")
    print("| settings | step, ms | tokens/s | steps | tokens | held-out perplexity | forward | backward | peak GB |")
    print("|---" * 9 + "|", flush=True)
    for candidate in options.names or CANDIDATES:
        sets = [*CANDIDATES[candidate], *options.sets, "train.validate_every=1000000", "train.checkpoint_every=1000000"]
        step = seconds_a_step(TrainConfig.read(CONFIG, [*sets, "train.steps=1000000"]), corpus, device)
        steps = max(1, int(options.seconds / step))
        training = Training(TrainConfig.read(CONFIG, [*sets, f"train.steps={steps}"]), corpus, Ranks(device=device))
        *_, end = train(training)
        assert isinstance(end, Validated)
        each = " | ".join(f"{torch.tensor(loss).exp():.1f}" for loss in (end.loss, end.forward, end.backward))
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        tokens = training.units_a_step
        print(
            f"| {candidate} | {1000 * step:.1f} | {tokens / step:,.0f} | {steps:,} | {tokens * steps / 1e6:.0f} M | "
            f"{each} | {memory:.1f} |",
            flush=True,
        )


def seconds_a_step(config: TrainConfig, corpus: Corpus, device: torch.device) -> float:
    """Behind the first steps, in which kernels are compiled and graphs captured."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = 0.0
    for number, _ in enumerate(islice(train(Training(config, corpus, Ranks(device=device))), WARM + TIMED), start=1):
        if number == WARM:
            start = time.perf_counter()
    return (time.perf_counter() - start) / TIMED


if __name__ == "__main__":
    main()
