"""Whether training with samples ends where training with the full softmax does.

    python benchmarks/sampled_softmax.py TEXT [--samples 1024 2048] [--steps 1200] [--seeds 0] [--work DIR]

TEXT is raw text, plain or .xz; its first megabytes are prepared as for the demo of docs/results.md. The model of
`configs/demo.toml` is then trained with the full softmax and with each number of samples: same start values, same text
in the same order, same dropout, same optimizer. What is compared is the perplexity of the held-out part by the full
softmax, after every validation. `--sets` are settings to replace, as in `elmo pretrain --set`.
"""

from __future__ import annotations

import argparse
import lzma
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from elmo.lm.corpus import Corpus
from elmo.lm.parts import Reading
from elmo.lm.prepare import PrepareConfig, prepare
from elmo.lm.run import pretrain, read_validations
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Validated

CONFIG = Path(__file__).parents[1] / "configs" / "demo.toml"
DEMO = PrepareConfig(reading=Reading(language="en"), max_words=10_000, valid_share=0.02)


def main() -> None:
    """Train with each softmax and print the perplexities of the held-out part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, metavar="TEXT")
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--samples", nargs="*", type=int, default=[1024, 2048])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--sets", nargs="*", default=[])
    parser.add_argument("--work", type=Path, help="folder to keep all of it in; runs that are there are taken")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work: Path = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        corpus = demo_corpus(options.text, options.megabytes, work)
        valid = corpus.split("valid")
        print(f"{len(corpus.vocab):,} words; held out: {valid.n_tokens + valid.n_sentences:,} predictions a direction")
        for seed in options.seeds:
            full: Validated | None = None
            for name, softmax in kinds(options.samples):
                sets = [f"seed={seed}", f"train.steps={options.steps}", *softmax, *options.sets]
                start = time.monotonic()
                validations = trained(corpus, sets, work / f"run-{name}-{seed}")
                seconds = time.monotonic() - start
                full = full or validations[-1]
                print(f"seed {seed} {name:<13} {line(validations, full)}, {seconds:.0f} s", flush=True)


def kinds(samples: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    """The full softmax, then the sampled one with each number of samples."""
    yield "full", ["softmax.kind=full"]
    for number in samples:
        yield f"sampled-{number}", ["softmax.kind=sampled", f"softmax.samples={number}"]


def demo_corpus(text: Path, megabytes: int, work: Path) -> Corpus:
    """The first megabytes of a text, prepared; what is there already is taken."""
    start = work / "text.txt"
    with lzma.open(text, "rb") if text.suffix == ".xz" else text.open("rb") as file:
        start.write_text(file.read(megabytes * 10**6).decode(errors="ignore"), encoding="utf-8")  # a cut character
    corpus = work / "corpus"
    return Corpus.open(corpus) if corpus.exists() else prepare([str(start)], corpus, DEMO)


def trained(corpus: Corpus, sets: Sequence[str], folder: Path) -> list[Validated]:
    """Train in a folder, or go on there, and give all validations."""
    pretrain(TrainConfig.read(CONFIG, sets), corpus, folder, resume=True)
    return read_validations(folder)


def line(validations: Sequence[Validated], full: Validated) -> str:
    """The perplexity of every validation, and the difference of the last from the full softmax's."""
    curve = " ".join(f"{validated.perplexity:.1f}" for validated in validations)
    last = validations[-1]
    return f"{curve} ({100 * (last.perplexity / full.perplexity - 1):+.1f} %)"


if __name__ == "__main__":
    main()
