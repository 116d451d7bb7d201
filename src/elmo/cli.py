"""The `elmo` command: each command parses its options, makes one public call and prints.

Nothing heavy is imported before a command runs, so `elmo --help` starts at once.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from elmo import __version__
from elmo.errors import ElmoError
from elmo.explore.command import neighbours
from elmo.options import (
    DeviceOption,
    ErrorsOption,
    FieldOption,
    HeadArgument,
    JsonOption,
    LanguageOption,
    MaxWordsOption,
    ModelOption,
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
from elmo.reproduce.command import reproduce
from elmo.tasks.command import app as task_app
from elmo.tasks.train_command import predict

if TYPE_CHECKING:
    from elmo.api import Model
    from elmo.config import ModelConfig
    from elmo.embed import Embedder
    from elmo.jobs import Progress
    from elmo.lines import LineReader
    from elmo.lm.corpus import Corpus
    from elmo.lm.loop import Report as LoopReport
    from elmo.lm.parts import Progress as CorpusProgress
    from elmo.lm.prepare import Report
    from elmo.lm.scores import Perplexity, Scores
    from elmo.lm.train import Stepped, Validated

    Trained = LoopReport[Stepped, Validated]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(task_app, name="task")
app.command()(neighbours)
app.command()(predict)
app.command()(reproduce)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"elmo {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Deep contextualized word representations (ELMo)."""


@app.command()
def embed(
    source: Annotated[str, typer.Argument(metavar="IN", help="Text, one sentence a line; - is standard input.")],
    out: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="File; - is standard output.")] = "-",
    model: ModelOption = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    layers: Annotated[str, typer.Option(help="all, average, top, mix, or numbers such as 1 or 0,2.")] = "average",
    pool: Annotated[str | None, typer.Option(help="mean or max: one vector a sentence.")] = None,
    format: Annotated[str | None, typer.Option(help="hdf5, npz, jsonl, parquet; by OUT's ending if not given.")] = None,
    precision: Annotated[str, typer.Option(help="fp32 (the published numbers), bf16, int8 or auto.")] = "fp32",
    state: Annotated[str, typer.Option(help="zero, carry or warm: what a sentence starts from.")] = "zero",
    dtype: Annotated[str, typer.Option(help="float32 or float16, of the vectors written.")] = "float32",
    tokenize: TokenizeOption = False,
    language: LanguageOption = "en",
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens in a batch; if not given, 2048 on a CPU, 16384 on a GPU.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows of a batch with --state carry.")] = 64,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...")] = None,
    engine: Annotated[str, typer.Option(help="auto, or reference for the readable network.")] = "auto",
    errors: ErrorsOption = "strict",
    sentence_to_index: Annotated[
        bool, typer.Option("--sentence-to-index", help="Add AllenNLP's table of sentences to an HDF5 file.")
    ] = False,
    use_sentence_keys: Annotated[
        bool, typer.Option("--use-sentence-keys", help="Name an HDF5 file's datasets by sentence, not by number.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut.")] = False,
    overwrite: OverwriteOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is used and how fast it was.")] = False,
) -> None:
    """Embed the sentences of IN: tokens split at white space, one sentence a line."""
    from elmo.jobs import embed_file
    from elmo.progress import ProgressBar
    from elmo.sinks import check_format, format_of

    to_stdout = out == "-"
    chosen: Any = format or ("jsonl" if to_stdout else format_of(Path(out)))
    check_format(chosen, sentence_to_index=sentence_to_index, sentence_keys=use_sentence_keys)
    if to_stdout and (chosen != "jsonl" or resume):
        what = "--resume" if resume else f"--format {chosen}"
        raise ElmoError(f"{what} needs a file: give one with -o")
    with _open_lines(source, errors) as (lines, size):
        settings: Any = {
            "layers": _parse_layers(layers),
            "pool": pool,
            "precision": precision,
            "state": state,
            "dtype": dtype,
            "batch_tokens": batch_tokens,
            "batch_size": batch_size,
            "engine": engine,
        }
        sentences = _sentences(lines, tokenize, language)
        embedder = _load(model, options, vocab).embedder(device=device, **settings)
        with ProgressBar("embedding", total=size, quiet=quiet or to_stdout) as bar:

            def report(done: Progress) -> None:
                bar.update(lines.bytes_read, done.tokens, f"{done.sentences:,} sentences")

            if to_stdout:
                _embed_to_stdout(embedder, sentences, report)
            else:
                try:
                    done = embed_file(
                        embedder,
                        sentences,
                        out,
                        format=chosen,
                        sentence_to_index=sentence_to_index,
                        sentence_keys=use_sentence_keys,
                        resume=resume,
                        overwrite=overwrite,
                        about_input={"tokenize": language if tokenize else None},
                        report=report,
                    )
                except KeyboardInterrupt:
                    print(f"\ninterrupted; the same command with --resume goes on with {out}", file=sys.stderr)
                    raise
                if not quiet:
                    print(f"{out}: {done.sentences:,} sentences, {done.tokens:,} tokens", file=sys.stderr)
    if verbose:
        known = embedder.cache.hits / max(embedder.cache.hits + embedder.cache.misses, 1)
        print(
            f"precision {embedder.precision}, device {embedder.device}, {bar.summary()}, "
            f"word vectors found in the cache: {100 * known:.1f} %",
            file=sys.stderr,
        )


@app.command()
def info(
    model: Annotated[str | None, typer.Argument(metavar="[M]", help="Model; the embedded one if not given.")] = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a model is and what it can do."""
    facts = _facts(_load(model, options, vocab), model)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = f"{value:,}" if type(value) is int else ", ".join(value) if isinstance(value, list) else str(value)
        print(f"{name:<{width}}  {shown}")


@app.command()
def bench(
    model: Annotated[str | None, typer.Argument(metavar="[M]", help="Model; the embedded one if not given.")] = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    precision: Annotated[
        str | None, typer.Option(help="Such as fp32,int8; all that this machine has if not given.")
    ] = None,
    at_a_time: Annotated[str, typer.Option(help="Sentences in a call.")] = "1,16,256",
    lengths: Annotated[str, typer.Option(help="Words in a sentence.")] = "10,20,40",
    seconds: Annotated[float, typer.Option(help="Time for each row.")] = 1.0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a line for each row.")] = False,
) -> None:
    """Measure how fast a model embeds on this machine."""
    from dataclasses import asdict

    from elmo.bench import BenchSettings, machine
    from elmo.bench import bench as measure

    loaded = _load(model, options, vocab)
    chosen: Any = tuple(precision.split(",")) if precision is not None else _precisions(loaded.config, device)
    settings = BenchSettings(
        precisions=chosen,
        at_a_time=_numbers("--at-a-time", at_a_time),
        lengths=_numbers("--lengths", lengths),
        seconds=seconds,
        device=device,
    )
    if not as_json:
        print(machine())
        print(f"{'precision':<10}{'sentences':>10}{'of words':>10}{'words/s':>12}{'ms a call':>12}")
    for row in measure(loaded, settings):
        if as_json:
            print(json.dumps(asdict(row)), flush=True)
        else:
            print(
                f"{row.precision:<10}{row.at_a_time:>10,}{row.length:>10,}{row.words_per_second:>12,.0f}"
                f"{row.median_ms:>12,.1f}",
                flush=True,
            )


def _precisions(config: ModelConfig, device: str | None) -> tuple[str, ...]:
    """What there is to be had for a model on a device."""
    import torch

    from elmo.engine import precisions

    try:
        return precisions(config, torch.device(device or "cpu"))
    except RuntimeError as error:
        raise ElmoError(f"device is {device!r}, which cannot be used here: {error}") from error


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ElmoError(f"{name} is {text!r}: give whole numbers such as 1,16") from None


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="Model in any format that elmo reads, or default.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write; a zip for nlpl.")],
    format: Annotated[
        str, typer.Option(help="native, bilm-tf, nlpl (a zip), or token-cache (bilm-tf with vectors of --vocab).")
    ] = "native",
    dtype: Annotated[
        str, typer.Option(help="Of a native folder's large weights: float32, bfloat16, float16, int8.")
    ] = "float32",
    max_file_mb: Annotated[float | None, typer.Option(help="Split a native folder's weights into such files.")] = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    warm_with: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Store a warm start state made from this text.")
    ] = None,
    tokenize: TokenizeOption = False,
    language: LanguageOption = "en",
    errors: ErrorsOption = "strict",
    without_head: Annotated[bool, typer.Option("--without-head", help="Leave the language model's head out.")] = False,
    card: Annotated[str | None, typer.Option(metavar="FILE", help="Model card of a native folder.")] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write a model in another format or precision, with a warm start state, or without its head."""
    from dataclasses import replace

    from elmo.formats import check_target, left_out, write_model
    from elmo.vocab import Vocabulary

    check_target(Path(out), format=format, overwrite=overwrite)
    text = None if card is None else _read_card(card)
    if format == "token-cache" and vocab is not None:  # of words that need not be the model's own
        loaded = replace(_load(source, options, None), vocab=Vocabulary.read(vocab), head=None)
    else:
        loaded = _load(source, options, vocab)
    chosen: Any = format
    stored: Any = dtype
    if warm_with is not None:
        with _open_lines(warm_with, errors) as (lines, _):
            loaded = loaded.warmed(sentence for sentence in _sentences(lines, tokenize, language) if sentence)
    if without_head:
        loaded = replace(loaded, head=None)
    if text is not None:
        loaded = replace(loaded, card=text)
    write_model(loaded, Path(out), format=chosen, dtype=stored, max_file_mb=max_file_mb, overwrite=overwrite)
    print(f"{out}: {format}")
    for note in left_out(loaded, chosen):
        print(f"note: {note}", file=sys.stderr)


def _read_card(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ElmoError(f"cannot read --card {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ElmoError(f"--card {path} is not UTF-8 text: {error.reason} at byte {error.start:,}") from error


@app.command()
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


@app.command()
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
    try:
        with _corpus_bars(quiet) as report:
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
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same command with --resume goes on with {out}", file=sys.stderr)
        raise
    if not quiet:
        _print_corpus(out, corpus)


@app.command()
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
        begin = None if start is None else read_start(Path(start), text, settings)
        with _training_bar(quiet or not mine.first) as report:
            try:
                end = run(settings, text, Path(out), start=begin, ranks=mine, resume=resume, report=report)
            except KeyboardInterrupt:
                print(f"\ninterrupted; the same command with --resume goes on with {out}", file=sys.stderr)
                raise
        if mine.first and end.best_loss is not None:
            print(
                f"{Path(out) / MODEL}: held-out perplexity {math.exp(end.best_loss):.2f} at step {end.best_step:,}",
                file=sys.stderr,
            )


@app.command()
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
    with _open_lines(text, errors) as (lines, size):
        sentences = _sentences(lines, tokenize, language)
        loaded = _load(model, None, None)
        with ProgressBar("reading", total=size, quiet=quiet) as bar:

            def report(sentences: int, tokens: int) -> None:
                bar.update(lines.bytes_read, tokens, f"{sentences:,} sentences")

            report(0, 0)
            found = loaded.perplexity(sentences, device=device, report=report, **settings)
    _print_perplexity(found, state, as_json=as_json)


@app.command()
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
        lines, size = stack.enter_context(_open_lines(text, errors))
        sentences = _sentences(lines, tokenize, language)
        scores = _load(model, None, None).score_iter(sentences, device=device, **settings)
        write = stack.enter_context(_open_output(out, overwrite=overwrite))
        bar = stack.enter_context(ProgressBar("scoring", total=size, quiet=quiet or out == "-"))
        tokens = 0
        bar.update(0, 0, "0 sentences")
        for index, one in enumerate(scores):
            write(_score_line(index, one, format))
            tokens += len(one.tokens)
            bar.update(lines.bytes_read, tokens, f"{index + 1:,} sentences")


@app.command()
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
    found = _load(model, None, None).substitutes(sentence, place, k, divide_by_unigram=divide_by_unigram, device=device)
    if as_json:
        print(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    width = max((len(one.word) for one in found), default=0)
    print(f"{'':<{width}}  probability   forward  backward")
    for one in found:
        print(f"{one.word:<{width}}  {one.probability:>11.4f}  {one.forward:>8.2f}  {one.backward:>8.2f}")


@app.command()
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
    loaded = _load(model, options, vocab)
    try:
        with ExitStack() as bars, _training_bar(quiet, begin=bars.close) as report:
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
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same command with --resume goes on with {out}", file=sys.stderr)
        raise
    for what, found in (("before", done.before), ("after", done.after)):
        each = f"forward {math.exp(found.forward):.2f}, backward {math.exp(found.backward):.2f}"
        note = " (of a new, untrained head)" if done.fresh_head and what == "before" else ""
        print(f"{what}: held-out perplexity {found.perplexity:.2f}, {each}{note}")
    print(f"{out}: the best of {done.steps:,} steps, at step {done.after.step:,}", file=sys.stderr)
    for part, there in (("warm start state", loaded.warm), ("learned mix", loaded.mix)):
        if there is not None:
            print(f"note: the {part} was made with the old weights; it was left out", file=sys.stderr)


def main() -> None:
    """Run the command; a user's mistake is one line on standard error and exit code 2."""
    try:
        app(standalone_mode=True)
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _load(model: str | None, options: str | None, vocab: str | None) -> Model:
    from elmo.api import load

    return load(model, options=options, vocab=vocab)


@contextmanager
def _open_lines(source: str, errors: str) -> Iterator[tuple[LineReader, int | None]]:
    """Lines of a file or of standard input, and the file's size where it is known."""
    from elmo.lines import LineReader

    checked: Any = errors
    if source == "-":
        if sys.stdin is None:
            raise ElmoError("standard input is closed: give a file")
        yield LineReader(sys.stdin.buffer, "standard input", checked), None
        return
    try:
        file: BinaryIO = open(source, "rb")  # noqa: SIM115 - closed below; an error in the block must not come here
    except OSError as error:
        raise ElmoError(f"cannot read {source}: {error.strerror}") from error
    with file:
        yield LineReader(file, source, checked), os.fstat(file.fileno()).st_size or None


def _sentences(lines: LineReader, tokenize: bool, language: str) -> Iterator[list[str]]:
    if not tokenize:
        return (line.split() for line in lines)
    from elmo.text import Tokenizer

    tokenizer = Tokenizer(language)
    return (sentence.tokens for line in lines for sentence in tokenizer(line))


def _parse_layers(layers: str) -> str | int | list[int]:
    numbers = layers.split(",")
    if not all(number.strip().isdecimal() and len(number) < 10 for number in numbers):
        return layers
    return int(layers) if len(numbers) == 1 else [int(number) for number in numbers]


def _embed_to_stdout(embedder: Embedder, sentences: Iterator[list[str]], report: Callable[[Progress], None]) -> None:
    from elmo.jobs import Progress
    from elmo.sinks import Record, json_line

    if sys.stdout is None:
        raise ElmoError("standard output is closed: give a file with -o")
    done = Progress()
    report(done)
    for window in embedder.windows(sentences):
        for index, (sentence, vectors) in enumerate(
            zip(window.sentences, window.vectors, strict=True), start=done.sentences
        ):
            sys.stdout.write(json_line(Record(index, sentence, vectors)))
        sys.stdout.flush()
        tokens = sum(map(len, window.sentences))
        done = Progress(sentences=done.sentences + len(window.sentences), tokens=done.tokens + tokens)
        report(done)


@contextmanager
def _open_output(out: str, *, overwrite: bool) -> Iterator[Callable[[str], object]]:
    """What writes text to standard output, line by line, or to a file that is there when all is written."""
    from elmo.files import new_file

    if out == "-":
        if sys.stdout is None:
            raise ElmoError("standard output is closed: give a file with -o")

        def write(line: str) -> None:
            print(line, end="", flush=True)  # whoever reads along is answered at once

        yield write
        return
    if Path(out).is_dir() or (Path(out).exists() and not overwrite):
        raise ElmoError(
            f"{out} is a folder: give a file" if Path(out).is_dir() else f"{out} exists: --overwrite replaces it"
        )
    with new_file(Path(out)) as beside, beside.open("w", encoding="utf-8") as file:
        yield file.write


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
        shown = "sampled" if done.mean.sampled else f"perplexity {math.exp(min(done.mean.loss, 99)):.1f}"
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


def _facts(model: Model, path: str | None) -> dict[str, Any]:
    from elmo.engine import auto_precision
    from elmo.engine.compiled import compiled
    from elmo.engine.precision import PRECISIONS
    from elmo.model import parameter_count

    config = model.config
    lstm, cnn = config.lstm, config.char_cnn
    facts: dict[str, Any] = {
        "model": path or "embedded",
        "format": model.source,
        "parameters": parameter_count(config),
        "layers": config.n_layers,
        "dim": config.dim,
        "lstm": f"{lstm.n_layers} layers each way, {lstm.dim} cells, {lstm.projection_dim} out"
        + (", projected" if lstm.has_projection else ", no projection")
        + (", skip connections" if lstm.use_skip_connections else ""),
        "clips": f"cell {lstm.cell_clip or 'none'}, projection {lstm.proj_clip or 'none'}",
    }
    if model.stored is not None:
        facts |= {"stored precision": model.stored.dtype, "bytes on disk": model.stored.size}
    if cnn is None:
        facts["input"] = f"words, a table of {config.n_words:,}"
    else:
        symbols = "" if cnn.alphabet is None else f" of an alphabet of {len(cnn.alphabet):,}"
        words = f", a table of {config.n_words:,} words of {cnn.word_dim}" if config.n_words is not None else ""
        facts["input"] = (
            f"characters{symbols}{words}, {cnn.max_characters_per_token} a word, {cnn.n_filters} filters "
            f"({cnn.activation}), {cnn.n_highway} highway layers"
        )
    facts["vocabulary"] = len(model.vocab) if model.vocab is not None else "none"
    facts["states"] = ["zero", "carry", *(["warm"] if model.warm is not None else [])]
    facts["learned mix"] = "yes" if model.mix is not None else "no (layers=mix is the average)"
    facts["precisions here"] = list(_precisions(config, None))
    facts["auto precision"] = auto_precision(config)
    facts["compiled kernels"] = [p for p in PRECISIONS if compiled(p)] or "no"
    facts["language model head"] = "no" if model.head is None else f"yes, {model.head.n_words:,} words"
    return facts
