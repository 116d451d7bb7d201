"""`elmo task`: task models (`train_command.py`), and what a model's vectors alone are good for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.errors import ElmoError
from elmo.options import DeviceOption, JsonOption, ModelOption, OptionsOption, QuietOption, VocabOption
from elmo.tasks.train_command import add_tasks

if TYPE_CHECKING:
    from elmo.embed import Embedder

app = typer.Typer(no_args_is_help=True, help="Train task models, with ELMo or without.", rich_markup_mode=None)
add_tasks(app)

LayersOption = Annotated[str, typer.Option(help="all, or numbers such as 0,2.")]
StateOption = Annotated[str, typer.Option(help="zero, carry or warm: what a sentence starts from.")]
PrecisionOption = Annotated[str, typer.Option(help="fp32, bf16, int8 or auto.")]


@app.command()
def probe(
    train: Annotated[str, typer.Option(metavar="F", help="CoNLL-U file, also as ARCHIVE.tar.xz/PATH.")],
    dev: Annotated[str, typer.Option(metavar="F", help="The file that decides when training ends.")],
    test: Annotated[str, typer.Option(metavar="F", help="The file that is scored.")],
    model: ModelOption = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    tags: Annotated[str, typer.Option(help="upos or xpos: which column of the files.")] = "upos",
    layers: LayersOption = "all",
    state: StateOption = "zero",
    precision: PrecisionOption = "fp32",
    epochs: Annotated[int, typer.Option(help="At most; training ends when it gets no better.")] = 40,
    seed: Annotated[int, typer.Option(help="Decides the order of the training tokens.")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Part-of-speech tags by a linear probe on the frozen vectors of each layer."""
    from dataclasses import asdict

    from elmo.tasks.probe import ProbeSettings, probe_tags
    from elmo.tasks.readers import read_conllu

    settings = ProbeSettings(epochs=epochs, seed=seed)
    column: Any = tags
    parts: Any = {name: read_conllu(file, column) for name, file in (("train", train), ("dev", dev), ("test", test))}
    embedder = _embedder(model, options, vocab, layers, state, precision, device)
    with _bars({name: len(sentences) for name, sentences in parts.items()}, quiet) as report:

        def training(layer: int) -> None:
            if not quiet:
                print(f"training on layer {layer}", file=sys.stderr)

        found = probe_tags(embedder, parts, settings, embedding=report, training=training)
    if as_json:
        print(json.dumps({"task": "probe", "column": tags, "state": state, "seed": seed} | asdict(found), indent=2))
        return
    baseline = ["word alone", _percent(found.baseline_dev), _percent(found.baseline_test), ""]
    rows = [[f"layer {s.layer}", _percent(s.dev), _percent(s.test), str(s.epochs)] for s in found.layers]
    _print_table(["vectors", "dev", "test", "epochs"], [baseline, *rows])
    sizes = ", ".join(f"{part} {count:,}" for part, count in found.tokens.items())
    print(f"accuracy in percent; {len(found.tags)} {tags} tags; tokens: {sizes}; state {state}")


@app.command()
def senses(
    train: Annotated[str, typer.Option(metavar="F", help="SemCor as JSON lines, also as ARCHIVE.tar.xz/PATH.")],
    test: Annotated[
        list[str], typer.Option(metavar="F", help="NAME.data.xml with its keys beside it, or a folder of such; repeat.")
    ],
    inventory: Annotated[str, typer.Option(metavar="F", help="Lemma, part of speech, sense keys: the first first.")],
    model: ModelOption = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    layers: LayersOption = "all",
    state: StateOption = "zero",
    precision: PrecisionOption = "fp32",
    device: DeviceOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Word senses by the nearest mean vector of each layer, beside two baselines that ask no context."""
    from elmo.tasks.sense_readers import read_inventory, read_semcor, read_wsd
    from elmo.tasks.senses import disambiguate

    tests = {name: read_wsd(file) for name, file in _test_sets(test).items()}
    known, learned = read_inventory(inventory), read_semcor(train)
    embedder = _embedder(model, options, vocab, layers, state, precision, device)
    sizes = {"train": len(learned)} | {name: len(sentences) for name, sentences in tests.items()}
    with _bars(sizes, quiet) as report:
        found = disambiguate(embedder, learned, tests, known, report=report)
    together = found.total()
    sets = {**found.sets, "all": together}
    if as_json:
        scores = {
            name: {
                system: {"f1": score.f1, "precision": score.precision, "recall": score.recall, "instances": score.total}
                for system, score in systems.items()
            }
            for name, systems in sets.items()
        }
        print(json.dumps({"task": "senses", "state": state, "unseen": found.unseen, "sets": scores}, indent=2))
        return
    rows = [[system, *(_percent(systems[system].f1) for systems in sets.values())] for system in together]
    _print_table(["F1", *sets], rows)
    instances = next(iter(together.values())).total
    print(
        f"{instances:,} instances, {sum(found.unseen.values()):,} of a lemma that the training text lacks (it gets the "
        f"inventory's first sense); state {state}"
    )


def _test_sets(paths: Sequence[str]) -> dict[str, str]:
    """The files of test sets by the names that their scores get."""
    from elmo.tasks.sense_readers import find_wsd

    found: dict[str, str] = {}
    for file in (file for path in paths for file in find_wsd(path)):
        name = PurePath(file).name.removesuffix(".data.xml")
        if name in ("train", "all"):
            raise ElmoError(f"{file}: found a test set of the name {name!r}, which stands for another: rename it")
        if name in found:
            raise ElmoError(f"{file}: found a second test set of the name {name!r}, behind {found[name]}: rename it")
        found[name] = file
    return found


def _embedder(
    model: str | None,
    options: str | None,
    vocab: str | None,
    layers: str,
    state: str,
    precision: str,
    device: str | None,
) -> Embedder:
    from elmo.api import load

    numbers = layers.split(",")
    if layers != "all" and not all(number.strip().isdecimal() and len(number) < 10 for number in numbers):
        raise ElmoError(f"--layers is {layers!r}: give all, or numbers such as 0,2")
    settings: Any = {"state": state, "precision": precision}
    chosen: Any = layers if layers == "all" else [int(number) for number in numbers]
    return load(model, options=options, vocab=vocab).embedder(device=device, layers=chosen, **settings)


@contextmanager
def _bars(totals: Mapping[str, int], quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for each data set, one after the other: called with its name, sentences and tokens."""
    from elmo.progress import ProgressBar

    with ExitStack() as stack:
        bars: dict[str, ProgressBar] = {}

        def report(name: str, sentences: int, tokens: int) -> None:
            if name not in bars:
                stack.close()
                bars[name] = stack.enter_context(ProgressBar(f"embedding {name}", total=totals.get(name), quiet=quiet))
            bars[name].update(sentences, tokens, f"{sentences:,} sentences")
            if sentences == totals.get(name):
                stack.close()  # what is printed next is not to be in its way

        yield report


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*header[:1])
        for name in header[1:]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
