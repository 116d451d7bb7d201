"""Fine-tuning: a trained biLM goes on with the text of a domain, by the loop of pretraining.

    elmo finetune M TEXT... -o OUT               # 3 epochs; the vocabulary becomes that of the text
    elmo finetune M TEXT... -o OUT --keep-vocab  # the vocabulary stays the model's
    elmo finetune M TEXT... -o OUT --resume      # go on where a run was cut

While this lasts everything lies in `OUT.finetune`: the prepared text and the run (see `folder.py`). OUT, a native
folder, appears when all of it is there. It holds the weights of the best validation, which may be those of the start.

Vocabulary. Rows and biases of words that the model's head knows are kept. What it knew as `<UNK>` is divided: a new
word starts with the row of `<UNK>`, and its bias gives it the share of `<UNK>`'s probability that it has among such
words of the text. So the perplexity before is that of the model as it was, over the words of after. An adaptive
softmax has no rows that could be moved between its clusters: it needs `keep_vocab`. A model without a head gets a new
one, which learns alone at first, lest the noise of its start spoil the biLM.

A warm start state and a learned mix were made with the old weights, and are left out.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from elmo.config import read_json
from elmo.errors import ElmoError
from elmo.files import locked
from elmo.formats import check_target, write_model
from elmo.formats.bundle import Bundle
from elmo.lm.begin import start_model
from elmo.lm.corpus import MANIFEST, Corpus, check_vocabulary
from elmo.lm.distributed import Ranks
from elmo.lm.folder import CONFIG, LAST
from elmo.lm.loop import Report, read_best, run_training
from elmo.lm.parts import Progress as Prepared
from elmo.lm.perplexity import perplexity_of
from elmo.lm.prepare import PrepareConfig, prepare
from elmo.lm.run import read_validations
from elmo.lm.settings import DataSettings, LoopSettings, OptimizerSettings, SoftmaxSettings, TrainConfig
from elmo.lm.softmax import AdaptiveHead, Head
from elmo.lm.train import Stepped, Training, Validated
from elmo.transfer import usable_device
from elmo.vocab import Vocabulary

_CORPUS, _RUN, _VOCAB = "corpus", "run", "vocab.txt"
_KNOWN = {_CORPUS, f"{_CORPUS}.partial", _RUN, _VOCAB, ".lock"}

_MOST_ROWS, _LEAST_ROWS = 64, 4
_STEPS_AN_EPOCH = 100  # at least, where there is text enough: a small text needs small batches to teach anything
_MOST_WORDS_IN_FULL = 32_768  # of the vocabulary; above, the sampled softmax is faster
_VALIDATIONS_AN_EPOCH = 2
_PATIENCE = 2


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """How a model is fine-tuned."""

    prepare: PrepareConfig = field(default_factory=lambda: PrepareConfig(valid_share=0.1))
    """What is made of the text; its `max_characters` are the model's."""
    keep_vocab: bool = False
    """Predict the words of the model's vocabulary, not those of the text."""
    epochs: int = 3
    """Passes over the text."""
    sets: tuple[str, ...] = ()
    """Settings of training to replace, such as `optimizer.rate=0.01`: see `TrainConfig`."""


@dataclass(frozen=True)
class Finetuned:
    """What came of it."""

    before: Validated
    """Held-out text by the model as it was, over the new vocabulary."""
    after: Validated
    """By the model that was written."""
    steps: int
    """Steps that were taken."""
    fresh_head: bool
    """Whether the model had no head: then `before` is of an untrained one."""


def finetune(
    model: Bundle,
    texts: Sequence[str],
    out: Path,
    config: FinetuneConfig | None = None,
    *,
    name: str = "a model",
    valid: Sequence[str] = (),
    workers: int | None = None,
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    preparing: Callable[[str, Prepared, int], None] = lambda *_: None,
    report: Callable[[Report[Stepped, Validated]], None] = lambda _: None,
) -> Finetuned:
    """Train a model further on the text of a domain and write the best of it, with its head, as a native folder.

    Args:
        model: what to start from; it is not changed.
        texts: files, folders, globs and URLs, as `prepare` takes them, or one folder that it has made.
        out: the folder to write.
        config: how.
        name: what the card of the result calls the model.
        valid: held-out text; a share of the documents of `texts` if not given.
        workers: processes that prepare text; all cores if not given.
        device: where to train; a GPU where there is one if not given.
        resume: go on where an earlier run with the same model, text and settings was cut; start where there was none.
        overwrite: replace `out` and, unless `resume` is given, what is left of an earlier run.
        preparing: called now and then while text is prepared.
        report: called after every step and validation.

    Raises:
        ElmoError: the model, the text or a setting is of no use; nothing half-written is left.
    """
    config = config or FinetuneConfig()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ElmoError("fine-tuning runs in one process: start it without torchrun")
    check_target(out, overwrite=overwrite)
    vocab = _kept_vocabulary(model) if config.keep_vocab else None
    _changed(TrainConfig(model=model.config, train=_loop(epochs=config.epochs)), config.sets)  # before the work
    with _working_folder(out, resume=resume, overwrite=overwrite) as work:
        if len(texts) == 1 and (Path(texts[0]) / MANIFEST).is_file():
            corpus = _open_prepared(Path(texts[0]), vocab, valid, config.prepare)
        else:
            if vocab is not None:
                vocab.write(work / _VOCAB)
            corpus = prepare(
                texts,
                work / _CORPUS,
                _prepare_config(config.prepare, model),
                valid=valid,
                vocab=None if vocab is None else work / _VOCAB,
                workers=workers,
                resume=resume,
                also_made=(out, work),
                report=preparing,
            )
        settings = finetune_settings(model, corpus, epochs=config.epochs, seed=config.prepare.seed, sets=config.sets)
        settings = _as_begun(settings, work / _RUN, config.sets)
        training = Training(settings, corpus, Ranks(device=usable_device(device)), start_model(model, corpus, settings))
        progress = run_training(training, work / _RUN, resume=True, report=report)
        best = read_best(work / _RUN, training)
        assert best is not None  # the start is validated, too
        validations = {validated.step: validated for validated in read_validations(work / _RUN)}
        result = Finetuned(validations[0], validations[best["step"]], progress.step, model.head is None)
        lm = training.lm
        card = _card(model, name, texts, training, result)
        bundle = Bundle.of(lm.bilm.cpu(), head=lm.head.cpu(), vocab=corpus.vocab, card=card)
        write_model(bundle, out, overwrite=overwrite)
    return result


def finetune_settings(
    model: Bundle, corpus: Corpus, *, epochs: int = 3, seed: int = 0, sets: Sequence[str] = ()
) -> TrainConfig:
    """The settings for a model and a text, some of them replaced by `sets`, given such as `data.rows=32`."""
    split, defaults = corpus.split("train"), DataSettings()
    positions = split.n_tokens + split.n_sentences
    rows = positions // (_STEPS_AN_EPOCH * defaults.unroll_steps)
    rows = min(_MOST_ROWS, max(_LEAST_ROWS, 2 ** (rows.bit_length() - 1) if rows else 0), split.n_sentences)
    base = TrainConfig(
        model=model.config,
        corpus=str(corpus.folder),
        seed=seed,
        data=replace(defaults, rows=rows),
        softmax=_softmax(model.head, len(corpus.vocab)),
        optimizer=OptimizerSettings(decay="linear"),
        train=_loop(epochs=epochs),
    )
    chosen = _changed(base, sets)
    epoch = max(1, positions // (chosen.data.rows * chosen.data.unroll_steps))
    steps = chosen.train.steps or chosen.train.epochs * epoch
    pace = replace(
        base.train,
        head_steps=min(epoch, steps // 3) if model.head is None else None,
        log_every=min(50, epoch),
        validate_every=max(1, epoch // _VALIDATIONS_AN_EPOCH),
    )
    return _changed(replace(base, train=pace), sets)


def _as_begun(settings: TrainConfig, run: Path, sets: Sequence[str]) -> TrainConfig:
    """How long a new head learns alone is settled when a run begins, however long the run then becomes."""
    if not (run / LAST).exists():
        return settings
    begun = TrainConfig.from_dict(read_json(run / CONFIG)).train.head_steps
    return _changed(replace(settings, train=replace(settings.train, head_steps=begun)), sets)


def _loop(*, epochs: int) -> LoopSettings:
    return LoopSettings(epochs=epochs, validate_first=True, patience=_PATIENCE)


def _changed(settings: TrainConfig, sets: Sequence[str]) -> TrainConfig:
    """Settings with some replaced, but for those that are the model's or that fine-tuning cannot do without."""
    changed = settings.changed(sets)
    if changed.model != settings.model:
        raise ElmoError("--set model...: the model to fine-tune says what it is; no setting changes that")
    if changed.corpus != settings.corpus:
        raise ElmoError("--set corpus=...: the text to fine-tune on is given by itself")
    if not changed.train.validate_first:
        raise ElmoError("train.validate_first is false: what comes of fine-tuning is compared with the model before it")
    return changed


def _softmax(head: Head | None, n_words: int) -> SoftmaxSettings:
    if isinstance(head, AdaptiveHead):
        return SoftmaxSettings(kind="adaptive", cutoffs=head.cutoffs)
    return SoftmaxSettings(kind="full" if n_words <= _MOST_WORDS_IN_FULL else "sampled", start="unigram")


def _kept_vocabulary(model: Bundle) -> Vocabulary:
    if model.vocab is None:
        raise ElmoError("--keep-vocab: the model has no vocabulary; without it, that of the text is taken")
    return check_vocabulary(model.vocab, "the model's vocabulary")


def _prepare_config(config: PrepareConfig, model: Bundle) -> PrepareConfig:
    cnn = model.config.char_cnn
    return config if cnn is None else replace(config, max_characters=cnn.max_characters_per_token)


def _open_prepared(folder: Path, kept: Vocabulary | None, valid: Sequence[str], config: PrepareConfig) -> Corpus:
    if valid:
        raise ElmoError(f"{folder} is prepared text, which has its held-out part: give no --valid")
    default = replace(FinetuneConfig().prepare, seed=config.seed)
    ignored = [one.name for one in fields(config) if getattr(config, one.name) != getattr(default, one.name)]
    if ignored:
        raise ElmoError(
            f"{folder} is prepared text, of which nothing is made any more: leave out what says how "
            f"({', '.join(ignored)}), or give the text itself"
        )
    corpus = Corpus.open(folder)
    if kept is not None and corpus.vocab.words != kept.words:
        raise ElmoError(
            f"--keep-vocab: {folder} was prepared with another vocabulary than the model's; prepare it with "
            "--vocab and the model's vocab.txt, or give the text itself"
        )
    return corpus


@contextmanager
def _working_folder(out: Path, *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """`OUT.finetune`, for this run alone; it goes when the run ends, and stays where another can go on with it."""
    out = out.resolve()
    work = out.with_name(f"{out.name}.finetune")
    begun = work.exists()
    if begun:
        strange = sorted({path.name for path in work.iterdir()} - _KNOWN) if work.is_dir() else [work.name]
        if strange:
            raise ElmoError(f"{work} is something else than a run that was cut ({strange[0]}): give another OUT")
        if not (resume or overwrite):
            raise ElmoError(
                f"{work} is left of a run that was cut, or of one that still goes on: --resume goes on with it, "
                "--overwrite starts again"
            )
    work.mkdir(parents=True, exist_ok=True)
    with locked(work / ".lock", f"another run is going on in {work}"):
        if not resume:
            _clear(work)
        try:
            yield work
        except ElmoError:
            has_value = (work / _RUN / LAST).exists() or (work / f"{_CORPUS}.partial").exists()
            if not has_value and not (begun and resume):
                shutil.rmtree(work)
            raise
        shutil.rmtree(work)


def _clear(work: Path) -> None:
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def _card(model: Bundle, name: str, texts: Sequence[str], training: Training, result: Finetuned) -> str:
    corpus, settings = training.corpus, training.config.to_dict()
    del settings["corpus"], settings["model"]
    named = ", ".join(f"`{Path(text).name or text}`" for text in texts[:10]) + (", ..." if len(texts) > 10 else "")
    start = "a new, untrained head" if result.fresh_head else "the model as it was"
    rows = "\n".join(_row(what, validated) for what, validated in ((start, result.before), ("after", result.after)))
    return (
        f"# An ELMo model, fine-tuned\n\n"
        f"`{Path(name).name or name}`, trained further by `elmo finetune` on {named}, with its language model head "
        f"over {len(corpus.vocab):,} words: the best of {result.steps:,} steps, at step {result.after.step:,}. A warm "
        "start state and a learned mix of the former model were left out, being made with its weights.\n\n"
        "Perplexity of held-out text (full softmax over this vocabulary, state carried):\n\n"
        "| | mean of the directions | forward | backward |\n|---|---|---|---|\n"
        f"{rows}\n\n"
        "Say here what the text is, and under which licence.\n\n"
        f"Settings:\n\n```json\n{json.dumps(settings, indent=2)}\n```\n" + _former_card(model)
    )


def _row(what: str, validated: Validated) -> str:
    figures = (validated.loss, validated.forward, validated.backward)
    return f"| {what} | " + " | ".join(f"{perplexity_of(figure):.2f}" for figure in figures) + " |"


def _former_card(model: Bundle) -> str:
    if model.card is None:
        return ""
    quoted = "\n".join(f"> {line}".rstrip() for line in model.card.splitlines())
    return f"\nThe card of the model it was fine-tuned from:\n\n{quoted}\n"
