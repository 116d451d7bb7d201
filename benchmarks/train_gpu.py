"""Training speed of the ready configs on one GPU, over made-up text: `python benchmarks/train_gpu.py`.

The words are random letters and follow Zipf's law over as many words as the published vocabulary has, so the tables,
the samples and the share of distinct words are of a real run's size. Prints a Markdown table; first the losses of the
demo's model on the CPU and on the GPU are compared, from the same start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from elmo.chars import words_to_ids
from elmo.lm.distributed import Ranks
from elmo.lm.loop import train
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Training
from elmo.vocab import SPECIAL_WORDS, Vocabulary

CONFIGS = Path(__file__).parents[1] / "configs"
LONG = ["train.steps=1000", "train.validate_every=1000"]  # no validation is timed
WARM, STEPS = 40, 60  # shapes that are met again become graphs while it gets warm


@dataclass
class Made:
    """Text that no one wrote: a corpus, its one split and that split's one shard."""

    vocab: Vocabulary
    tokens: Any
    starts: Any
    letters: Any
    digest: str = "made up"

    @property
    def n_types(self) -> int:
        """As many as the vocabulary's words."""
        return len(self.vocab)

    @property
    def n_sentences(self) -> int:
        """As many as there are starts but the last."""
        return len(self.starts) - 1

    @property
    def shards(self) -> list[Made]:
        """One."""
        return [self]

    def split(self, name: Literal["train", "valid"]) -> Made:
        """The same text for both."""
        return self

    def characters(self) -> Any:
        """Character ids of each word."""
        return self.letters

    def targets(self) -> Any:
        """Each type is a word of the vocabulary."""
        return np.arange(self.n_types)

    def counts(self) -> Any:
        """Not read in training."""
        return np.bincount(self.tokens, minlength=self.n_types)


def make_corpus(n_words: int, n_tokens: int) -> Made:
    """Zipf's law over random words, 5 to 45 to a sentence."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, row)) for row in rng.integers(97, 123, (n_words - 3, 12))]
    words = [f"{word[: 3 + n % 10]}{n}" for n, word in enumerate(words)]
    ranks = np.exp(rng.random(n_tokens) * np.log(n_words - 2)).astype(np.int64) + 2
    letters = words_to_ids(["<S>", "</S>", "<UNK>", *words]).astype(np.int16)
    starts = np.append(0, np.cumsum(rng.integers(5, 46, n_tokens // 25)))
    starts = starts[starts <= n_tokens]
    return Made(Vocabulary([*SPECIAL_WORDS, *words]), ranks.clip(max=n_words - 1).astype(np.uint32), starts, letters)


def speed(
    config: TrainConfig, corpus: Made, ranks: Ranks, *, warm: int = WARM, steps: int = STEPS
) -> tuple[float, float, list[float]]:
    """Milliseconds of a step behind the first `warm`, peak memory in GB, and the losses of all."""
    training = Training(config, corpus, ranks)
    losses, start = [], 0.0
    for event in islice(train(training), warm + steps):
        losses.append(0.5 * (event.forward + event.backward))
        if len(losses) == warm:
            start = time.perf_counter()
    seconds = (time.perf_counter() - start) / steps
    memory = torch.cuda.max_memory_allocated() / 2**30 if ranks.device.type == "cuda" else 0.0
    return 1000 * seconds, memory, losses


def main() -> None:
    """Measure and print."""
    gpu = Ranks(device=torch.device("cuda"))
    print(f"{datetime.now(UTC):%Y-%m-%d}, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    small = TrainConfig.read(CONFIGS / "demo.toml", ["train.dropout=0", "train.precision=fp32", *LONG])
    text = make_corpus(10_000, 200_000)
    ours, theirs = (speed(small, text, ranks, warm=5, steps=15)[2] for ranks in (gpu, Ranks()))
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    print(f"largest difference of the demo's losses from the CPU's, {len(apart)} steps: {max(map(abs, apart)):.1e}\n")
    print("| config | rows | precision | step, ms | tokens/s | peak GB |\n|---|---|---|---|---|---|")
    corpus = make_corpus(793_471, 4_000_000)
    for path in (CONFIGS / f"{name}.toml" for name in ("small", "medium", "original")):
        for precision in ("fp32", "bf16"):
            config = TrainConfig.read(path, ["data.rows=128", f"train.precision={precision}", *LONG])
            torch.cuda.reset_peak_memory_stats()
            step, memory, _ = speed(config, corpus, gpu)
            tokens = 1000 * config.data.rows * config.data.unroll_steps / step
            print(f"| {path.stem} | {config.data.rows} | {precision} | {step:.1f} | {tokens:,.0f} | {memory:.1f} |")


if __name__ == "__main__":
    main()
