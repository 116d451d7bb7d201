"""`elmo task NAME`, which trains a task's model on a user's files, and `elmo predict`, which runs it on text."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.command_io import told_of_resuming
from elmo.errors import ElmoError
from elmo.options import DeviceOption, JsonOption, ModelOption, OptionsOption, QuietOption, VocabOption

if TYPE_CHECKING:
    from elmo.tasks.run import Result, TaskReport
    from elmo.tasks.settings import TaskConfig

_ANSWERED_AT_ONCE = 2048  # examples whose sentences' layers are kept

NAMES = {
    "coref": "Coreference by ranking spans: CoNLL-U with Entity= brackets (OntoGUM), or CoNLL 2012.",
    "inference": "Does one sentence follow from another, by ESIM: SNLI's jsonl, a table, or SICK.txt#TRAIN.",
    "ner": "Named entities by a biLSTM-CRF: a token and its BIO tag a line.",
    "pos": "Parts of speech by a biLSTM-CRF: CoNLL-U.",
    "sentiment": "Classes of texts by a biattentive network: trees, or a label, a tab, and a text a line.",
    "squad": "Answers to questions within a paragraph, by attention: SQuAD 1.1's JSON.",
    "srl": "Semantic roles by a deep alternating LSTM: JSON lines, or CoNLL 2012.",
}
"""Tasks that can be trained, with a line of help: here, so that `--help` need not wait for PyTorch."""

FileOption = Annotated[str, typer.Option(metavar="F", help="A file, also as ARCHIVE.tar.xz/PATH.")]
MaybeFileOption = Annotated[str | None, typer.Option(metavar="F", help="Scored at the end, if given.")]


def add_tasks(app: typer.Typer) -> None:
    """Give each task its command; all have the same options."""
    for name, help_line in NAMES.items():
        app.command(name, help=help_line)(_command(name))


def _command(name: str) -> Callable[..., None]:
    def command(
        train: FileOption,
        dev: FileOption,
        test: MaybeFileOption = None,
        out: Annotated[str | None, typer.Option("--out", "-o", metavar="OUT", help="Folder for the model.")] = None,
        elmo: Annotated[str | None, typer.Option(help="Where ELMo goes in: none, input, output or both.")] = None,
        layers: Annotated[str, typer.Option(help="Of the biLM: all, top, or a number.")] = "all",
        lambda_: Annotated[float | None, typer.Option("--lambda", help="Penalty on the layers' weights.")] = None,
        layer_norm: Annotated[bool, typer.Option("--layer-norm", help="Normalise the layers first.")] = False,
        train_bilm: Annotated[bool, typer.Option("--train-bilm", help="Train the biLM, too.")] = False,
        vectors: Annotated[
            str, typer.Option(help="Static word vectors: default, none, or a file of GloVe, word2vec, fastText.")
        ] = "default",
        model: ModelOption = None,
        options: OptionsOption = None,
        vocab: VocabOption = None,
        seed: Annotated[int, typer.Option(help="Start values, order and dropout follow from it.")] = 0,
        sets: Annotated[
            list[str] | None, typer.Option("--set", metavar="A.B=V", help="A setting, such as train.epochs=5; repeat.")
        ] = None,
        resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut.")] = False,
        device: DeviceOption = None,
        as_json: JsonOption = False,
        quiet: QuietOption = False,
    ) -> None:
        own = {"elmo": elmo, "penalty": lambda_}  # a task's own where they are not given
        encoder = {name: value for name, value in own.items() if value is not None}
        encoder |= {"layers": layers, "layer_norm": layer_norm, "train_bilm": train_bilm, "vectors": vectors}
        values = {"seed": seed, "encoder": encoder}
        files = (train, dev, test)
        result = _train(name, files, out, values, sets or [], (model, options, vocab), resume, device, quiet)
        _print(name, result, as_json=as_json)

    return command


def _train(
    name: str,
    files: tuple[str, str, str | None],
    out: str | None,
    values: dict[str, Any],
    sets: list[str],
    model: tuple[str | None, str | None, str | None],
    resume: bool,
    device: str | None,
    quiet: bool,
) -> Result:
    from elmo.api import is_embedded, load
    from elmo.tasks.all import task_named
    from elmo.tasks.run import Data, freeze, train_task
    from elmo.tasks.saved import save_task
    from elmo.tasks.settings import TaskConfig
    from elmo.transfer import usable_device

    task = task_named(name)
    config = TaskConfig.of(task, values, sets)
    _refuse_idle(config, {"--lambda": "penalty" in values["encoder"], "--model": model[0] is not None})
    target = None if out is None else Path(out)
    if target is not None and target.exists():
        raise ElmoError(f"{out} exists: give another folder")
    if resume and out is None:
        raise ElmoError("--resume goes on with the run of an OUT: give -o OUT, too")
    train, dev, test = ([] if file is None else task.read(file) for file in files)
    data = Data(train, dev, test)
    place, embedded = usable_device(device), is_embedded(model[0])
    bilm = load(model[0], options=model[1], vocab=model[2])
    with told_of_resuming(target), _folder(target) as folder, _bars(quiet) as (embedding, training):
        frozen = None
        if config.encoder.places and not config.encoder.train_bilm:
            frozen = freeze(task, config, bilm, data, device=place, report=embedding)
        done = train_task(
            task, config, data, folder, bilm=bilm, frozen=frozen, device=place, resume=resume, report=training
        )
        if target is not None:
            save_task(done, bilm, target, embedded=embedded)
            shutil.rmtree(folder)
    return done.result


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder that elmo task -o has made.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A file; - is standard input.")],
    tokenize: Annotated[
        bool, typer.Option("--tokenize", help="TEXT is raw: split it into sentences and words.")
    ] = False,
    language: Annotated[str, typer.Option(help="Language of raw text.")] = "en",
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each answer.")] = False,
) -> None:
    """Answers of a trained task model to new text."""
    from elmo.tasks.saved import load_task
    from elmo.transfer import usable_device

    answerer = load_task(Path(model), usable_device(device))
    if tokenize and not answerer.task.raw_lines:
        raise ElmoError(
            f"--tokenize is not for {answerer.task.name}: its lines have marks in them, or texts that it splits itself"
        )
    given = _lines(text)
    if tokenize:
        from elmo.text import Tokenizer

        tokenizer = Tokenizer(language)
        split = ([" ".join(sentence.tokens) for sentence in tokenizer(line)] for line in given)
        given = [sentence for sentences in split for sentence in sentences or [""]]  # a blank line ends a document
    examples = answerer.task.parse(given)
    if not examples:
        raise ElmoError(f"{text} has nothing to answer in it")
    for start in range(0, len(examples), _ANSWERED_AT_ONCE):
        some = examples[start : start + _ANSWERED_AT_ONCE]
        for example, answer in zip(some, answerer.answers(some), strict=True):
            if as_json:
                print(json.dumps(answerer.task.record(example, answer), ensure_ascii=False))
            else:
                print(answerer.task.show(example, answer))


def _refuse_idle(config: TaskConfig, given: Mapping[str, bool]) -> None:
    """Refuse options that would do nothing, as nothing of the biLM goes into the model."""
    encoder = config.encoder
    idle = {**given, "--layers": encoder.layers != "all", "--layer-norm": encoder.layer_norm}
    idle["--train-bilm"] = encoder.train_bilm
    if not encoder.places and any(idle.values()):
        said = ", ".join(name for name, there in idle.items() if there)
        raise ElmoError(
            f"without ELMo (--elmo none) there is no use for {said}: say where it goes in, or leave that out"
        )


def _lines(text: str) -> list[str]:
    """Those of a file, maybe in an archive, or of standard input."""
    from elmo.command_io import open_lines
    from elmo.tasks.files import lines

    if text != "-":
        return [line for _, line in lines(text)]
    with open_lines("-", "strict") as (reader, _):
        return list(reader)


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The folder of a run: beside OUT, where it outlives a cut, or else a temporary one."""
    if out is not None:
        yield out.with_name(f"{out.name}.training")
        return
    with TemporaryDirectory(prefix="elmo-task-") as folder:
        yield Path(folder) / "run"


@contextmanager
def _bars(quiet: bool) -> Iterator[tuple[Callable[[int, int], None], TaskReport]]:
    """Progress of embedding, then of training."""
    from elmo.progress import ProgressBar

    with ExitStack() as stack:
        bars: dict[str, ProgressBar] = {}

        def bar(what: str, total: int | None, units: str) -> ProgressBar:
            if what not in bars:
                stack.close()
                bars[what] = stack.enter_context(ProgressBar(what, total=total, quiet=quiet, units=units))
            return bars[what]

        def embedding(sentences: int, tokens: int) -> None:
            bar("embedding", None, "tokens").update(sentences, tokens, f"{sentences:,} sentences")

        def training(done: Any) -> None:
            note = f"step {done.event.step:,} of {done.steps:,}"
            if done.mean is not None:
                note += f", loss {done.mean.task_loss:.3f}"
            if done.validated is not None:
                note += f", dev {done.validated.deciding} {100 * done.validated.scores[done.validated.deciding]:.2f}"
            bar("training", done.steps, "examples").update(done.event.step, done.units, note)

        yield embedding, training


def _print(name: str, result: Result, *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print(json.dumps({"task": name} | asdict(result), indent=2))
        return
    for part, scores in (("dev", result.dev), ("test", result.test)):
        if scores:
            print(f"{part:<5}" + "  ".join(f"{metric} {100 * value:.2f}" for metric, value in scores.items()))
    if not any(result.dev.values()):
        print("note: nothing on the development set is right; --set train.epochs=N trains longer", file=sys.stderr)
    print(f"{result.examples:,} examples, best after {result.best_epoch:g} of {len(result.curve)} epochs")
    for place, shares in result.layer_weights.items():
        print(f"layers at the {place}: {', '.join(f'{share:.2f}' for share in shares)}")
