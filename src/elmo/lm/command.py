"""The language model's commands: `elmo vocab`, `prepare`, `pretrain`, `finetune`, `perplexity`, `score` and so on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.command_io import load_model, open_lines, open_output, sentences_of, told_of_resuming
from elmo.errors import ElmoError
from elmo.lm.perplexity import perplexity_of
from elmo.options import (
    DeviceOption,
    ErrorsOption,
    FieldOption,
    HeadArgument,
    JsonOption,
    LanguageOption,
    MaxWordsOption,
    OptionsOption,
    OverwriteOption,
    QuietOption,
    RowsOption,
    TextArgument,
    TextsArgument,
    TokenizeOption,
    VocabOption,
    WorkersOption,
)

if TYPE_CHECKING:
    from elmo.lm.corpus import Corpus
    from elmo.lm.loop import Report as LoopReport
    from elmo.lm.parts import Progress as CorpusProgress
    from elmo.lm.prepare import Report
    from elmo.lm.scores import Perplexity, Scores
    from elmo.lm.train import Stepped, Validated

    Trained = LoopReport[Stepped, Validated]


def vocab(
    texts: TextsArgument,
    out: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="File to write.")],
    max_words: MaxWordsOption = 800_000,
    min_count: Annotated[int, typer.Option(help="Leave out rarer words.")] = 1,
    tokenize: TokenizeOption = False,
    language: LanguageOption = "en",
    field: FieldOption = "text",
    errors: ErrorsOption = "strict",
    workers: WorkersOption = None,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Count words and write the most frequent: <S>, </S>, <UNK>, then by falling frequency."""
    from elmo.lm.parts import Reading
    from elmo.lm.prepare import write_vocabulary

    checked: Any = errors
    with _corpus_bars(quiet) as report:
        words = write_vocabulary(
            texts,
            Path(out),
            reading=Reading(language=language if tokenize else None, field=field, errors=checked),
            max_words=max_words,
            min_count=min_count,
            workers=workers,
            overwrite=overwrite,
            report=report,
        )
    if not quiet:
        print(f"{out}: {len(words):,} words", file=sys.stderr)


def prepare(
    texts: TextsArgument,
    out: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Folder to write.")],
    vocab: Annotated[str | None, typer.Option(help="Vocabulary file; made from the text if not given.")] = None,
    max_words: MaxWordsOption = 800_000,
    min_count: Annotated[int, typer.Option(help="A rarer word of the text is <UNK>; not with --vocab.")] = 2,
    tokenize: TokenizeOption = False,
    language: LanguageOption = "en",
    field: FieldOption = "text",
    errors: ErrorsOption = "strict",
    valid: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Held-out text; may be repeated.")] = None,
    valid_share: Annotated[float, typer.Option(help="Share of the documents to hold out; not with --valid.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Chooses the documents held out.")] = 0,
    max_characters: Annotated[int, typer.Option(help="Characters of a word, its two marks included.")] = 50,
    workers: WorkersOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut.")] = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make the folder that training reads: one sentence a line and blank lines between documents, or --tokenize."""
    from elmo.lm.parts import Reading
    from elmo.lm.prepare import PrepareConfig
    from elmo.lm.prepare import prepare as run

    checked: Any = errors
    config = PrepareConfig(
        reading=Reading(language=language if tokenize else None, field=field, errors=checked),
        max_words=max_words,
        min_count=min_count,
        valid_share=valid_share,
        seed=seed,
        max_characters=max_characters,
    )
    with told_of_resuming(out, overwrite=overwrite), _corpus_bars(quiet) as report:
        corpus = run(
            texts,
            Path(out),
            config,
            valid=valid or (),
            vocab=Path(vocab) if vocab is not None else None,
            workers=workers,
            resume=resume,
            overwrite=overwrite,
            report=report,
        )
    if not quiet:
        _print_corpus(out, corpus)


def pretrain(
    config: Annotated[str, typer.Argument(metavar="CONFIG.toml", help="Settings; ready ones are in configs/.")],
    out: Annotated[str, typer.Option("--output", "-o", metavar="RUN", help="Folder of the run.")],
    corpus: Annotated[
        str | None, typer.Option(metavar="DIR", help="What elmo prepare made; as the settings say if not given.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=V", help="Replace a setting, as train.steps=1000.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="M", help="Model to begin with; of a TensorFlow checkpoint, with what Adagrad remembers."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with RUN if it was cut; start it if not.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU where there is one if not given.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train a biLM on prepared text; under torchrun, on several devices and machines."""
    from elmo.api import load
    from elmo.lm.begin import read_start
    from elmo.lm.corpus import Corpus
    from elmo.lm.distributed import ranks
    from elmo.lm.folder import LAST, MODEL
    from elmo.lm.run import pretrain as run
    from elmo.lm.settings import TrainConfig

    settings = TrainConfig.read(Path(config), sets or [])
    with ranks(device) as mine:
        # One process reads the checksums for all, and a run that goes on has done so before.
        verify = mine.first and not (Path(out) / LAST).exists()
        text = Corpus.open(Path(corpus or settings.corpus), verify=verify)
        begin = None if start is None else read_start(load(start), Path(start), text, settings)
        with told_of_resuming(out), _training_bar(quiet or not mine.first) as report:
            end = run(settings, text, Path(out), start=begin, ranks=mine, resume=resume, report=report)
        if mine.first and end.best_loss is not None:
            reached = f"held-out perplexity {perplexity_of(end.best_loss):.2f} at step {end.best_step:,}"
            print(f"{Path(out) / MODEL}: {reached}", file=sys.stderr)


def perplexity(
    model: HeadArgument,
    text: TextArgument,
    state: Annotated[str, typer.Option(help="carry: the text is one stream; zero: each sentence by itself.")] = "carry",
    batch_size: RowsOption = 1,
    tokenize: TokenizeOption = False,
    language: LanguageOption = "en",
    errors: ErrorsOption = "strict",
    device: DeviceOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Perplexity of a text by the full softmax, each direction and both: of its words and each sentence's end."""
    from elmo.progress import ProgressBar

    settings: Any = {"state": state, "batch_size": batch_size}
    with open_lines(text, errors) as (lines, size):
        sentences = sentences_of(lines, tokenize, language)
        loaded = load_model(model, None, None)
        with ProgressBar("reading", total=size, quiet=quiet) as bar:

            def report(sentences: int, tokens: int) -> None:
                bar.update(lines.bytes_read, tokens, f"{sentences:,} sentences")

            report(0, 0)
            found = loaded.perplexity(sentences, device=device, report=report, **settings)
    _print_perplexity(found, state, as_json=as_json)


def score(
    model: HeadArgument,
    text: TextArgument,
    out: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="File; - is standard output.")] = "-",
    format: Annotated[
        str, typer.Option(help="jsonl: every word; tsv: forward and backward total, perplexity, sentence.")
    ] = "jsonl",
    state: Annotated[str, typer.Option(help="zero: each sentence by itself; carry: the text is one stream.")] = "zero",
    batch_size: RowsOption = 1,
    tokenize: TokenizeOption = False,
    language: LanguageOption = "en",
    errors: ErrorsOption = "strict",
    device: DeviceOption = None,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Log probabilities (natural) of each sentence of TEXT, a line for each: its words and the boundary at its end."""
    from elmo.progress import ProgressBar

    if format not in ("jsonl", "tsv"):
        raise ElmoError(f"--format is {format!r}: give jsonl or tsv")
    settings: Any = {"state": state, "batch_size": batch_size}
    with ExitStack() as stack:
        lines, size = stack.enter_context(open_lines(text, errors))
        sentences = sentences_of(lines, tokenize, language)
        scores = load_model(model, None, None).score_iter(sentences, device=device, **settings)
        write = stack.enter_context(open_output(out, overwrite=overwrite))
        bar = stack.enter_context(ProgressBar("scoring", total=size, quiet=quiet or out == "-"))
        tokens = 0
        bar.update(0, 0, "0 sentences")
        for index, one in enumerate(scores):
            write(_score_line(index, one, format))
            tokens += len(one.tokens)
            bar.update(lines.bytes_read, tokens, f"{index + 1:,} sentences")


def substitutes(
    model: HeadArgument,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="Words, split at white space.")],
    position: Annotated[int | None, typer.Option(help="Number of the word, from 0.")] = None,
    word: Annotated[str | None, typer.Option(help="The word itself, where it is there once.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many words.")] = 10,
    divide_by_unigram: Annotated[
        bool,
        typer.Option(
            "--divide-by-unigram/--product",
            help="Whether a word's own frequency, which is in both directions' probabilities, is taken out once.",
        ),
    ] = True,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Words that could stand in a place, by both directions together, and each direction's own log probability."""
    from dataclasses import asdict

    place = _place(sentence.split(), position, word)
    found = load_model(model, None, None).substitutes(
        sentence, place, k, divide_by_unigram=divide_by_unigram, device=device
    )
    if as_json:
        print(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    width = max((len(one.word) for one in found), default=0)
    print(f"{'':<{width}}  probability   forward  backward")
    for one in found:
        print(f"{one.word:<{width}}  {one.probability:>11.4f}  {one.forward:>8.2f}  {one.backward:>8.2f}")


def finetune(
    model: Annotated[
        str, typer.Argument(metavar="M", help="Model, with or without its head; default is the embedded.")
    ],
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="Text as elmo prepare takes it, or a folder that it made.")
    ],
    out: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="Model folder to write.")],
    keep_vocab: Annotated[
        bool, typer.Option("--keep-vocab", help="Predict the model's words, not the text's.")
    ] = False,
    max_words: MaxWordsOption = 800_000,
    min_count: Annotated[int, typer.Option(help="A rarer word of the text is <UNK>; not with --keep-vocab.")] = 2,
    tokenize: TokenizeOption = False,
    language: LanguageOption = "en",
    field: FieldOption = "text",
    errors: ErrorsOption = "strict",
    valid: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Held-out text; may be repeated.")] = None,
    valid_share: Annotated[float, typer.Option(help="Share of the documents to hold out; not with --valid.")] = 0.1,
    epochs: Annotated[int, typer.Option(help="Passes over the text; fewer if it gets no better.")] = 3,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=V", help="Replace a setting, as optimizer.rate=0.05.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the documents held out, and the order of the text.")] = 0,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    workers: WorkersOption = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU where there is one if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut.")] = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a model further on the text of a domain; prints the perplexity of held-out text before and after."""
    from elmo.lm.finetune import FinetuneConfig
    from elmo.lm.finetune import finetune as run
    from elmo.lm.parts import Reading
    from elmo.lm.prepare import PrepareConfig

    checked: Any = errors
    config = FinetuneConfig(
        prepare=PrepareConfig(
            reading=Reading(language=language if tokenize else None, field=field, errors=checked),
            max_words=max_words,
            min_count=min_count,
            valid_share=valid_share,
            seed=seed,
        ),
        keep_vocab=keep_vocab,
        epochs=epochs,
        sets=tuple(sets or ()),
    )
    loaded = load_model(model, options, vocab)
    with (
        told_of_resuming(out),  # with --overwrite, too, where the model that is there is to be replaced
        ExitStack() as bars,
        _training_bar(quiet, begin=bars.close) as report,
    ):
        preparing = bars.enter_context(_corpus_bars(quiet))
        done = run(
            loaded,
            texts,
            Path(out),
            config,
            name=model,
            valid=valid or (),
            workers=workers,
            device=device,
            resume=resume,
            overwrite=overwrite,
            preparing=preparing,
            report=report,
        )
    for what, found in (("before", done.before), ("after", done.after)):
        each = f"forward {perplexity_of(found.forward):.2f}, backward {perplexity_of(found.backward):.2f}"
        note = " (of a new, untrained head)" if done.fresh_head and what == "before" else ""
        print(f"{what}: held-out perplexity {found.perplexity:.2f}, {each}{note}")
    print(f"{out}: the best of {done.steps:,} steps, at step {done.after.step:,}", file=sys.stderr)
    for part, there in (("warm start state", loaded.warm), ("learned mix", loaded.mix)):
        if there is not None:
            print(f"note: the {part} was made with the old weights; it was left out", file=sys.stderr)


def _score_line(index: int, scores: Scores, format: str) -> str:
    totals = {"forward_total": scores.forward_total, "backward_total": scores.backward_total}
    if format == "tsv":
        numbers = [*totals.values(), scores.perplexity]
        return "\t".join([*(f"{number:.6g}" for number in numbers), " ".join(scores.tokens)]) + "\n"
    record = {"index": index, "tokens": scores.tokens, "forward": scores.forward.tolist()}
    record |= {"backward": scores.backward.tolist(), "unknown": scores.unknown.tolist()}
    return json.dumps(record | totals | {"perplexity": scores.perplexity}, ensure_ascii=False) + "\n"


def _print_perplexity(found: Perplexity, state: str, *, as_json: bool) -> None:
    from dataclasses import asdict

    names = ("perplexity", "mean", "forward", "backward")
    if as_json:
        more = {name: getattr(found, name) for name in (*names, "predictions", "unknown_rate")}
        print(json.dumps(more | asdict(found) | {"state": state}, indent=2))
        return
    for name, meaning in zip(
        names, ("exp of the mean loss of both directions, as bilm-tf has it", "of the two below", "", ""), strict=True
    ):
        print(f"{name:<12}{getattr(found, name):>12,.3f}  {meaning}".rstrip())
    print(
        f"{found.predictions:,} predictions each way: {found.tokens:,} words and the ends of {found.sentences:,} "
        f"sentences; state {state}; {100 * found.unknown_rate:.2f} % of the words are unknown and predicted as <UNK>"
    )


def _place(tokens: list[str], position: int | None, word: str | None) -> int:
    if (position is None) == (word is None):
        raise ElmoError("say which word: give --position N (from 0) or --word W")
    if word is None:
        assert position is not None
        return position
    places = [place for place, token in enumerate(tokens) if token == word]
    if len(places) != 1:
        found = f"is there at {', '.join(map(str, places))}" if places else "is not in the sentence"
        raise ElmoError(f"--word {word!r} {found}: give --position N (from 0)")
    return places[0]


@contextmanager
def _training_bar(quiet: bool, begin: Callable[[], None] = lambda: None) -> Iterator[Callable[[Trained], None]]:
    """A progress bar for training; `begin` is called before it is shown, as a terminal shows one at a time."""
    from elmo.progress import ProgressBar

    with ExitStack() as stack:
        bars: list[ProgressBar] = []

        def report(done: Trained) -> None:
            if not bars:  # only now is it known how many steps there are
                begin()
                bars.append(stack.enter_context(ProgressBar("training", total=done.steps, quiet=quiet)))
            bars[0].update(done.event.step, done.units, _training_note(done))

        yield report


def _training_note(done: Trained) -> str:
    note = f"step {done.event.step:,} of {done.steps:,}"
    if done.mean is not None:
        # exp of a sampled loss is no perplexity, and is not to be taken for one.
        shown = "sampled" if done.mean.sampled else f"perplexity {perplexity_of(done.mean.loss):.4g}"
        note += f", loss {done.mean.loss:.3f} ({shown})"
    return note + (f", held out: perplexity {done.validated.perplexity:.1f}" if done.validated else "")


@contextmanager
def _corpus_bars(quiet: bool) -> Iterator[Report]:
    """A progress bar for each stage of preparing text, one after the other."""
    from contextlib import ExitStack

    from elmo.progress import ProgressBar

    with ExitStack() as stack:
        bars: dict[str, ProgressBar] = {}

        def report(stage: str, done: CorpusProgress, total: int) -> None:
            if stage not in bars:
                stack.close()
                bars[stage] = stack.enter_context(ProgressBar(stage, total=total or None, quiet=quiet))
            bars[stage].update(done.bytes, done.tokens, f"{done.tokens:,} tokens")

        yield report


def _print_corpus(out: str, corpus: Corpus) -> None:
    print(f"{out}: {corpus.n_types:,} different words, {len(corpus.vocab):,} in the vocabulary", file=sys.stderr)
    for name in ("train", "valid"):
        split = corpus.split(name)
        facts = f"{split.n_documents:,} documents, {split.n_sentences:,} sentences, {split.n_tokens:,} tokens"
        print(f"{name}: {facts}", file=sys.stderr)
    if not corpus.counts()[corpus.vocab.ids(["<UNK>"])[0]]:
        print("note: no word of the training text is unknown, so <UNK> will not be learned", file=sys.stderr)
