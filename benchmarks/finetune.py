"""How much fine-tuning on the text of a domain helps a model that was trained on other text.

    python benchmarks/finetune.py --data ../shared/data/corpus --domain tech_docs [--work DIR] [--megabytes 10]
    python benchmarks/finetune.py --data ../shared/data/corpus --domain tech_docs --model run/model

A model of demo size (`configs/demo.toml`) is trained on the first megabytes of `train-00`, or `--model` is taken. It is
fine-tuned on `valid.DOMAIN`, with some documents of that held out for early stopping, and compared with what it was on
`test.DOMAIN`, which no training and no choice has seen. Three ways: with the model's vocabulary, with the text's, and
without the head that it had. Perplexities are of the full softmax, with the state carried; before and after are over
the same words. `--sets` are settings to replace, as in `elmo finetune --set`.
"""

from __future__ import annotations

import argparse
import lzma
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import elmo
from elmo.lm.corpus import Corpus
from elmo.lm.distributed import Ranks
from elmo.lm.finetune import FinetuneConfig, finetune, finetune_settings, start_model
from elmo.lm.parts import Reading
from elmo.lm.prepare import PrepareConfig, prepare
from elmo.lm.run import MODEL, pretrain
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Training, Validated

CONFIG = Path(__file__).parents[1] / "configs" / "demo.toml"
RAW = PrepareConfig(reading=Reading(language="en"), max_words=10_000, valid_share=0.1)


def main() -> None:
    """Train, fine-tune, and print the perplexities of the test part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train-00, valid.* and test.*")
    parser.add_argument("--domain", default="tech_docs")
    parser.add_argument("--model", type=Path, help="start from this model; trained here if not given")
    parser.add_argument("--megabytes", type=int, default=10, help="of text that the model is trained on")
    parser.add_argument("--steps", type=int, default=1200, help="that it is trained for")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sets", nargs="*", default=[])
    parser.add_argument("--ways", nargs="*", default=["kept", "text", "new head"])
    parser.add_argument("--work", type=Path, help="folder to keep all of it in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work: Path = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        base = elmo.load(options.model or pretrained(options.data, work, options.megabytes, options.steps))
        valid, test = (str(options.data / f"{part}.{options.domain}.txt.xz") for part in ("valid", "test"))
        print(f"{'vocabulary':<12} {'before':>8} {'after':>8} {'change':>8}   forward, backward after; held out")
        for way in options.ways:
            model = replace(base, head=None) if way == "new head" else base
            config = FinetuneConfig(
                prepare=RAW, keep_vocab=way == "kept", epochs=options.epochs, sets=tuple(options.sets)
            )
            out = work / f"{options.domain}-{way.replace(' ', '-')}"
            start = time.monotonic()
            held_out = finetune(model, [valid], out, config, name="the base model", overwrite=True)
            seconds = time.monotonic() - start
            corpus = test_corpus(valid, test, out, work)
            before, after = (perplexity(one, corpus) for one in (model, elmo.load(out)))
            print(
                f"{way:<12} {before.perplexity:8.1f} {after.perplexity:8.1f} "
                f"{100 * (after.perplexity / before.perplexity - 1):+7.1f} %   "
                f"{math.exp(after.forward):.1f}, {math.exp(after.backward):.1f}; "
                f"{held_out.before.perplexity:.1f} to {held_out.after.perplexity:.1f} "
                f"at step {held_out.after.step} of {held_out.steps}, {seconds:.0f} s"
            )


def pretrained(data: Path, work: Path, megabytes: int, steps: int) -> Path:
    """Train a demo model; one that is there is taken."""
    if not (work / "base" / MODEL).exists():
        text = work / "base.txt"
        with lzma.open(data / "train-00.txt.xz", "rt", encoding="utf-8") as file:
            text.write_text(file.read(megabytes * 10**6), encoding="utf-8")
        config = replace(RAW, valid_share=0.01)
        corpus = prepare([str(text)], work / "base-corpus", config, resume=True)
        settings = TrainConfig.read(CONFIG, [f"train.steps={steps}"])
        end = pretrain(settings, corpus, work / "base", resume=True)
        assert end.best_loss is not None
        print(f"trained for {end.step:,} steps: held-out perplexity {math.exp(end.best_loss):.1f}")
    return work / "base" / MODEL


def test_corpus(valid: str, test: str, model: Path, work: Path) -> Corpus:
    """The test part as the held-out part of prepared text, over the words of a model.

    The training part is there for its counts alone: by them a new word gets its share of `<UNK>`.
    """
    out = work / f"{model.name}-test"
    return prepare([valid], out, RAW, valid=[test], vocab=model / "vocab.txt", overwrite=True)


def perplexity(model: elmo.Model, corpus: Corpus) -> Validated:
    """What a model makes of the test part."""
    settings = finetune_settings(model, corpus)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Training(settings, corpus, Ranks(device=device), start_model(model, corpus, settings)).validate()


if __name__ == "__main__":
    main()
