"""`elmo embed --engine ray`: options to settings, one call, what it printed."""

from __future__ import annotations

import math
import sys
from typing import Any

from elmo.api import Model
from elmo.command_io import told_of_resuming
from elmo.embed import EmbedSettings
from elmo.errors import ElmoError
from elmo.integrations.corpus import Reading
from elmo.integrations.ray import Done, Pool, embed_corpus
from elmo.progress import ProgressBar


def embed_with_ray(
    model: Model,
    texts: list[str],
    out: str,
    settings: dict[str, Any],
    reading: dict[str, Any],
    pool: dict[str, Any],
    *,
    part_mb: float | None,
    resume: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Embed a corpus into a folder, with the options of the command; those that are None were not given."""
    if out == "-":
        raise ElmoError("--engine ray writes a folder: give one with -o")
    given = {name: value for name, value in reading.items() if value is not None}
    if part_mb is not None:
        if not 0 < part_mb < math.inf:
            raise ElmoError(f"--part-mb is {part_mb}: give a number above 0")
        given["part_bytes"] = math.ceil(part_mb * 2**20)
    bar: ProgressBar | None = None

    def report(done: Done, whole: Done) -> None:
        nonlocal bar
        if bar is None:  # how much there is, is known after the corpus has been read once
            bar = ProgressBar("embedding", total=whole.words, quiet=quiet).__enter__()
        bar.update(done.words, done.words, f"{done.parts:,} of {whole.parts:,} parts")

    try:
        with told_of_resuming(out, overwrite=overwrite):
            whole = embed_corpus(
                model,
                texts,
                out,
                settings=EmbedSettings(**settings),
                reading=Reading(**given),
                pool=Pool(**pool),
                resume=resume,
                overwrite=overwrite,
                report=report,
            )
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)
    if not quiet:
        print(f"{out}: {whole.records:,} records in {whole.parts:,} parts, {whole.words:,} words", file=sys.stderr)
