"""`elmo reproduce`: the paper's tables and figures, made again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.errors import ElmoError
from elmo.options import DeviceOption

if TYPE_CHECKING:
    from elmo.reproduce.lab import Lab

NAMES = ("table1", "table2", "table3", "table4", "table5", "table6", "figure1", "figure2", "claims")


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help=f"Some of {', '.join(NAMES)}; all if not given.")
    ] = None,
    data: Annotated[str, typer.Option(help="Folder of the tasks' archives.")] = "../shared/data/tasks",
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for the results.")] = "docs/results",
    runs: Annotated[str, typer.Option(help="Folder that keeps the runs; a second call goes on with them.")] = "runs",
    tasks: Annotated[str | None, typer.Option(help="Some of the six, such as srl,ner; all if not given.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The biLM; the embedded one if not given.")] = None,
    vectors: Annotated[
        str, typer.Option(metavar="F", help="Static word vectors, such as GloVe's; default for the package's, or none.")
    ] = "default",
    tokens: Annotated[
        str | None, typer.Option(metavar="F", help="Tokens of raw text (scripts/pretokenise.py), instead of spaCy.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Of each row of Table 1.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="At toy size: shows that it works, nothing else.")] = False,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Do runs that were not done, or leave them out.")
    ] = True,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that do runs side by side.")] = 1,
    device: DeviceOption = None,
) -> None:
    """Make the paper's tables and figures again, on open data."""
    from elmo.reproduce.lab import SIX, Lab, NotDoneError, Study
    from elmo.reproduce.workers import run_all, runs_of
    from elmo.tasks.words import NAMED
    from elmo.transfer import usable_device

    for name in names or ():
        if name not in NAMES:
            raise ElmoError(f"there is no {name!r}: give some of {', '.join(NAMES)}")
    if not Path(data).is_dir():
        raise ElmoError(
            f"there is no folder {data}: give the one with the tasks' archives, --data DIR "
            "(docs/results/README.md names them)"
        )
    if tokens is not None and not Path(tokens).exists():
        raise ElmoError(f"there is no file {tokens}: scripts/pretokenise.py makes one")
    if vectors not in NAMED and not Path(vectors).exists():
        raise ElmoError(f"there are no word vectors {vectors}: give a file or folder of them, default or none")
    chosen = SIX if tasks is None else tuple(tasks.split(","))
    place = usable_device(device)
    study = Study(
        data=Path(data),
        runs=Path(runs),
        model=model,
        tasks=chosen,
        seeds=seeds,
        quick=quick,
        train=train,
        device=place,
        vectors=vectors,
        tokens=tokens,
    )
    if jobs > 1 and train:
        run_all(study, runs_of(names or NAMES, study), jobs)
    lab = Lab(study)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    left_out = []
    for name in names or NAMES:
        lab.asked.clear()
        try:
            text = _made(name, lab, folder)
        except ElmoError as error:
            left_out.append(f"{name} was not made: {error}")
            continue
        (folder / f"{name}.md").write_text(f"{text}\n{_footer(name, lab)}\n", encoding="utf-8")
        print(f"{text}\n{folder / name}.md")
    if left_out:
        raise NotDoneError("; ".join(left_out))


def _made(name: str, lab: Lab, folder: Path) -> str:
    from elmo.reproduce import claims, figures, tables

    if name.startswith("figure"):
        draw: Callable[[Lab, Path], str] = getattr(figures, name)
        return draw(lab, folder)
    make: Callable[[Lab], str] = claims.claims if name == "claims" else getattr(tables, name)
    return make(lab)


def _footer(name: str, lab: Lab) -> str:
    """How it was made."""
    from elmo.reproduce.lab import Study
    from elmo.tasks.run import hardware

    study, plain = lab.study, Study(data=lab.study.data, runs=lab.study.runs, device=lab.study.device)
    options = {
        "--quick": study.quick,
        f"--model {study.model}": study.model is not None,
        f"--tasks {','.join(study.tasks)}": study.tasks != plain.tasks,
        f"--seeds {study.seeds}": study.seeds != plain.seeds,
        f"--vectors {study.vectors}": study.vectors != plain.vectors,
    }
    places = sorted({run.hardware for run in lab.asked})
    seeds = sorted({run.config["seed"] for run in lab.asked})
    facts = [
        f"`elmo reproduce {' '.join([name, *(option for option, given in options.items() if given)])}`",
        f"commit {_commit()}",
        f"{date.today():%Y-%m-%d}",
        f"runs on {' and '.join(places)}" if places else hardware(study.device),
        *([f"seeds {', '.join(map(str, seeds))}"] if seeds else []),
    ]
    size = "\n\n**At toy size: these numbers say nothing but that the machinery works.**" if study.quick else ""
    return f"*{'; '.join(facts)}.*{size}"


def _commit() -> str:
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
