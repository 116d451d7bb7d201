"""How much fine-tuning on the text of a domain helps a model that was trained on other text.

    python benchmarks/finetune.py --data ../shared/data/corpus --domain tech_docs [--work DIR]
    python benchmarks/finetune.py --data ../shared/data/corpus --domain tech_docs --model run/model

A model of demo size (`configs/demo.toml`) is trained on text that has none of the domain, or `--model` is taken. In
`train-*` the documents of all domains are mixed and not marked, so that text is `valid.*` and `test.*` of all the other
domains. The model is fine-tuned on `valid.DOMAIN`, with some documents of that held out for early stopping, and
compared with what it was on `test.DOMAIN`, which no training and no choice has seen. Four ways: with the model's
vocabulary, with the text's, and without the head that it had, the new one learning alone for the first epoch or not.
Perplexities are of the full softmax, with the state carried; before and after are over the same words, and before of a
new head is of its start, which knows how frequent words are. `--sets` are settings to replace, as in
`elmo finetune --set`.
"""

from __future__ import annotations

import argparse
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
from elmo.lm.folder import MODEL
from elmo.lm.parts import Reading
from elmo.lm.prepare import PrepareConfig, prepare
from elmo.lm.run import pretrain
from elmo.lm.settings import TrainConfig
from elmo.lm.train import Training, Validated

CONFIG = Path(__file__).parents[1] / "configs" / "demo.toml"
WAYS = ("kept", "text", "new head", "at once")
RAW = PrepareConfig(reading=Reading(language="en"), max_words=10_000, valid_share=0.1)


def main() -> None:
    """Train, fine-tune, and print the perplexities of the test part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with valid.* and test.*")
    parser.add_argument("--domain", default="tech_docs")
    parser.add_argument("--model", type=Path, help="start from this model; trained here if not given")
    parser.add_argument("--steps", type=int, default=1200, help="that it is trained for")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sets", nargs="*", default=[])
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--work", type=Path, help="folder to keep all of it in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work: Path = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        base = elmo.load(options.model or pretrained(options.data, options.domain, work, options.steps))
        valid, test = (str(options.data / f"{part}.{options.domain}.txt.xz") for part in ("valid", "test"))
        print(f"{'vocabulary':<12} {'before':>8} {'after':>8} {'change':>8}   forward, backward after; held out")
        for way in options.ways:
            model = replace(base, head=None) if way in ("new head", "at once") else base
            sets = (*options.sets, *(["train.head_steps=0"] if way == "at once" else []))
            config = FinetuneConfig(prepare=RAW, keep_vocab=way == "kept", epochs=options.epochs, sets=sets)
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
                f"at step {held_out.after.step} of {held_out.steps}, {seconds:.0f} s",
                flush=True,
            )


def pretrained(data: Path, domain: str, work: Path, steps: int) -> Path:
    """Train a demo model on all domains but one; one that is there is taken."""
    folder = work / f"without-{domain}"
    if not (folder / MODEL).exists():
        texts = [str(path) for part in ("valid", "test") for path in sorted(data.glob(f"{part}.*.txt.xz"))]
        texts = [text for text in texts if Path(text).name.split(".")[1] != domain]
        corpus = prepare(texts, work / f"{folder.name}-corpus", replace(RAW, valid_share=0.01), resume=True)
        settings = TrainConfig.read(CONFIG, [f"train.steps={steps}"])
        end = pretrain(settings, corpus, folder, resume=True)
        assert end.best_loss is not None
        print(
            f"trained on {len(texts)} files, {corpus.split('train').n_tokens:,} tokens, for {end.step:,} steps: "
            f"held-out perplexity {math.exp(end.best_loss):.1f}",
            flush=True,
        )
    return folder / MODEL


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
