"""The `elmo` command: each command parses its options, makes one public call and prints.

Nothing heavy is imported before a command runs, so `elmo --help` starts at once.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo import __version__
from elmo.command_io import load_model, open_lines, sentences_of, told_of_resuming
from elmo.errors import ElmoError, lack_of_memory
from elmo.explore.command import neighbours
from elmo.lm.command import finetune, perplexity, prepare, pretrain, score, substitutes, vocab
from elmo.options import (
    ErrorsOption,
    LanguageOption,
    ModelOption,
    OptionsOption,
    OverwriteOption,
    TokenizeOption,
    VocabOption,
)
from elmo.plot.command import app as plot_app
from elmo.reproduce.command import reproduce
from elmo.serve.command import serve
from elmo.tasks.command import app as task_app
from elmo.tasks.train_command import predict

if TYPE_CHECKING:
    from elmo.api import Model
    from elmo.config import ModelConfig
    from elmo.embed import Embedder
    from elmo.jobs import Progress

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="IN...", help="Text, one sentence a line; - is standard input; several with --engine ray."
        ),
    ],
    out: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="File; - is standard output; a folder for ray.")
    ] = "-",
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
    engine: Annotated[
        str, typer.Option(help="auto; reference for the readable network; ray for a corpus on many machines.")
    ] = "auto",
    workers: Annotated[int | None, typer.Option(help="With ray: processes; all CPUs (GPUs) if not given.")] = None,
    gpus: Annotated[bool, typer.Option("--gpus", help="With ray: a GPU for each worker.")] = False,
    field: Annotated[
        str | None, typer.Option(help="With ray: where the text is, a field of .jsonl or column of .parquet.")
    ] = None,
    id_field: Annotated[str | None, typer.Option("--id", help="With ray: the field or column with a key.")] = None,
    part_mb: Annotated[
        float | None, typer.Option(help="With ray: MiB of text for each file that is written; 1 if not given.")
    ] = None,
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

    settings: Any = {
        "layers": _parse_layers(layers),
        "pool": pool,
        "precision": precision,
        "state": state,
        "dtype": dtype,
        "batch_tokens": batch_tokens,
        "batch_size": batch_size,
    }
    if engine == "ray":
        from elmo.integrations.ray_command import embed_with_ray

        given: dict[str, object] = {
            "--format": format not in (None, "parquet"),
            "--device": device,
            "--verbose": verbose,
        }
        given |= {"--sentence-to-index": sentence_to_index, "--use-sentence-keys": use_sentence_keys}
        _refuse(given, "does not go with --engine ray, which writes Parquet, by CPUs or (--gpus) by GPUs")
        embed_with_ray(
            load_model(model, options, vocab),
            sources,
            out,
            settings,
            {"field": field, "id": id_field, "errors": errors, "language": language if tokenize else None},
            {"workers": workers, "gpus": gpus},
            part_mb=part_mb,
            resume=resume,
            overwrite=overwrite,
            quiet=quiet,
        )
        return
    given = {"--workers": workers, "--gpus": gpus, "--field": field, "--id": id_field, "--part-mb": part_mb}
    _refuse(given | {"more than one IN": len(sources) > 1}, "goes with --engine ray alone")
    settings["engine"] = engine
    to_stdout = out == "-"
    chosen: Any = format or ("jsonl" if to_stdout else format_of(Path(out)))
    check_format(chosen, sentence_to_index=sentence_to_index, sentence_keys=use_sentence_keys)
    if to_stdout and (chosen != "jsonl" or resume):
        what = "--resume" if resume else f"--format {chosen}"
        raise ElmoError(f"{what} needs a file: give one with -o")
    with open_lines(sources[0], errors) as (lines, size):
        sentences = sentences_of(lines, tokenize, language)
        embedder = load_model(model, options, vocab).embedder(device=device, **settings)
        with ProgressBar("embedding", total=size, quiet=quiet or to_stdout) as bar:

            def report(done: Progress) -> None:
                bar.update(lines.bytes_read, done.tokens, f"{done.sentences:,} sentences")

            if to_stdout:
                _embed_to_stdout(embedder, sentences, report)
            else:
                with told_of_resuming(out, overwrite=overwrite):
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
    facts = _facts(load_model(model, options, vocab), model)
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

    loaded = load_model(model, options, vocab)
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
    from elmo.engine import precisions
    from elmo.transfer import usable_device

    return precisions(config, usable_device(device or "cpu"))


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
        loaded = replace(load_model(source, options, None), vocab=Vocabulary.read(vocab), head=None)
    else:
        loaded = load_model(source, options, vocab)
    chosen: Any = format
    stored: Any = dtype
    if warm_with is not None:
        with open_lines(warm_with, errors) as (lines, _):
            loaded = loaded.warmed(sentence for sentence in sentences_of(lines, tokenize, language) if sentence)
    if without_head:
        loaded = replace(loaded, head=None)
    if text is not None:
        loaded = replace(loaded, card=text)
    write_model(loaded, Path(out), format=chosen, dtype=stored, max_file_mb=max_file_mb, overwrite=overwrite)
    print(f"{out}: {format}")
    for note in left_out(loaded, chosen):
        print(f"note: {note}", file=sys.stderr)


@app.command()
def export(
    model: Annotated[str, typer.Argument(metavar="M", help="Model in any format that elmo reads, or default.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="File to write, such as model.onnx.")],
    int8: Annotated[bool, typer.Option("--int8", help="Large weights as integers: a quarter of the size.")] = False,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write a model as ONNX, for programs without PyTorch: character ids and states in, layers and states out."""
    from elmo.files import check_new_file
    from elmo.formats.onnx import export as write

    check_new_file(Path(out), overwrite=overwrite)
    write(load_model(model, options, vocab), Path(out), int8=int8, overwrite=overwrite)
    print(f"{out}: {Path(out).stat().st_size / 1e6:,.1f} MB")


def _read_card(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ElmoError(f"cannot read --card {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ElmoError(f"--card {path} is not UTF-8 text: {error.reason} at byte {error.start:,}") from error


for _command in (
    vocab,
    prepare,
    pretrain,
    finetune,
    perplexity,
    score,
    substitutes,
    neighbours,
    predict,
    reproduce,
    serve,
):
    app.command()(_command)
app.add_typer(task_app, name="task")
app.add_typer(plot_app, name="plot")


def main() -> None:
    """Run the command; a user's mistake is one line on standard error and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file or a pipe is UTF-8, as the text that is read
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")
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
    except (RuntimeError, MemoryError) as error:
        if (reason := lack_of_memory(error)) is None:
            raise
        print(f"error: {reason}: smaller batches, or shorter texts, need less", file=sys.stderr)
        sys.exit(2)


def _refuse(given: dict[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None and value is not False:
            raise ElmoError(f"{name} {why}")


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
