"""`elmo plot`: pictures of what a model, a task or a run has learned, as PNG or SVG."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.errors import ElmoError
from elmo.explore.command import Reader, one_layer, query_in, splitter
from elmo.options import (
    DeviceOption,
    ErrorsOption,
    FieldOption,
    LanguageOption,
    ModelOption,
    OptionsOption,
    OverwriteOption,
    VocabOption,
)

if TYPE_CHECKING:
    from elmo.explore.neighbours import Query

app = typer.Typer(no_args_is_help=True, help="Draw what a model, a task or a run has learned (PNG or SVG).")

PictureOption = Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="File that ends in .png or .svg.")]
_EXAMPLE_WORDS = 12  # of an example's sentence, in the legend


@app.command()
def layers(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Task models, as elmo task -o makes them.")],
    out: PictureOption,
    overwrite: OverwriteOption = False,
) -> None:
    """How much of each layer task models have learned to take: the paper's Figure 2."""
    from elmo.plot.canvas import check_picture, save_figure
    from elmo.plot.figures import Mix, layers_figure
    from elmo.tasks.saved import read_learned

    check_picture(Path(out), overwrite=overwrite)
    learned = [read_learned(Path(model)) for model in models]
    if without := [one.name for one in learned if not one.weights]:
        raise ElmoError(
            f"{without[0]} has learned no layer weights: it was trained without ELMo, or with one layer of it"
        )
    mixes = [Mix(one.name, place, shares) for one in learned for place, shares in one.weights.items()]
    save_figure(layers_figure(mixes), Path(out))
    print(out)


@app.command()
def loss(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder that elmo pretrain -o made, or its metrics.jsonl.")],
    out: PictureOption,
    lines: Annotated[
        list[str] | None,
        typer.Option("--line", metavar="NAME=PERPLEXITY", help="A line to compare with, such as 'unigram=385.3'."),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """The curves of a training run: its own loss, and that of held-out text in both directions."""
    from elmo.plot.canvas import check_picture, save_figure
    from elmo.plot.figures import loss_figure
    from elmo.plot.metrics import read_curves

    check_picture(Path(out), overwrite=overwrite)
    save_figure(loss_figure(read_curves(Path(run)), dict(map(_line, lines or ()))), Path(out))
    print(out)


def _line(given: str) -> tuple[str, float]:
    name, _, perplexity = given.rpartition("=")
    try:
        loss = math.log(float(perplexity))
        if name and math.isfinite(loss):
            return name, loss
    except ValueError:
        pass
    raise ElmoError(f"--line is {given!r}: give a name and a perplexity, such as 'unigram model=385.3'")


@app.command()
def neighbours(
    word: Annotated[str, typer.Argument(metavar="WORD", help="The word whose occurrences are drawn.")],
    texts: Annotated[
        list[str], typer.Option("--text", metavar="TEXT", help="Where it occurs, as elmo prepare takes it; repeat.")
    ],
    out: PictureOption,
    contexts: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="SENTENCE", help="Example of a use, which gives occurrences a colour; repeat."),
    ] = None,
    most: Annotated[int, typer.Option(help="Occurrences that are drawn, the first of the text.")] = 1000,
    model: ModelOption = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    tokenize: Annotated[
        bool, typer.Option("--tokenize", help="SENTENCE and TEXT are raw text: split it into sentences and words.")
    ] = False,
    language: LanguageOption = "en",
    field: FieldOption = "text",
    errors: ErrorsOption = "strict",
    device: DeviceOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """A map of where a word stands in a text, for each layer: near points are used alike."""
    from elmo.api import load
    from elmo.lm.reading import find_sources
    from elmo.plot.canvas import check_picture, save_figure
    from elmo.plot.figures import map_figure
    from elmo.plot.occurrences import find_occurrences

    check_picture(Path(out), overwrite=overwrite)
    split = splitter(language if tokenize else None)
    queries = [query_in(word, context, split) for context in contexts or ()]
    reader = Reader(find_sources(texts), split, field, errors)
    embedder = load(model, options=options, vocab=vocab).embedder(device=device, layers="all")
    found = find_occurrences(embedder, word, reader, {_shown(query): query for query in queries}, most)
    save_figure(map_figure(word, found), Path(out))
    print(out)


def _shown(query: Query) -> str:
    start = max(0, query.position - _EXAMPLE_WORDS // 2)
    return " ".join(islice(query.tokens, start, start + _EXAMPLE_WORDS))


@app.command()
def cosines(
    first: Annotated[str, typer.Argument(metavar="SENTENCE", help="Its tokens are the rows.")],
    second: Annotated[str, typer.Argument(metavar="SENTENCE", help="Its tokens are the columns.")],
    out: PictureOption,
    layers: Annotated[str, typer.Option(help="top, average, mix, or a layer's number.")] = "top",
    model: ModelOption = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
    tokenize: Annotated[
        bool, typer.Option("--tokenize", help="The sentences are raw text: split it into words.")
    ] = False,
    language: LanguageOption = "en",
    device: DeviceOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """How near each token of one sentence is to each of another."""
    from elmo.api import load
    from elmo.explore.projection import cosines as cosines_of
    from elmo.plot.canvas import check_picture, save_figure
    from elmo.plot.figures import cosines_figure

    check_picture(Path(out), overwrite=overwrite)
    split = splitter(language if tokenize else None)
    sentences = [[token for spans in split(text) for token, _ in spans] for text in (first, second)]
    if not all(sentences):
        raise ElmoError("a sentence has no word in it: give two with words in them")
    chosen: Any = one_layer(layers)
    rows, columns = load(model, options=options, vocab=vocab).embed(sentences, layers=chosen, device=device)
    save_figure(cosines_figure(sentences[0], sentences[1], cosines_of(rows, columns)), Path(out))
    print(out)
