"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Model folder or .hdf5 file; the embedded model if not given.")
]
OptionsOption = Annotated[str | None, typer.Option(help="options.json of an .hdf5 file, where it is elsewhere.")]
VocabOption = Annotated[str | None, typer.Option(help="Vocabulary of a model that reads words.")]
TokenizeOption = Annotated[bool, typer.Option("--tokenize", help="IN is raw text: split it into sentences and words.")]
LanguageOption = Annotated[str, typer.Option(help="Language of raw text: a code such as en; xx for any.")]
ErrorsOption = Annotated[str, typer.Option(help="Bytes that are not text: strict stops, replace goes on.")]
TextsArgument = Annotated[
    list[str],
    typer.Argument(metavar="TEXT...", help="Files, folders, globs, URLs; .gz .xz .zst .jsonl .parquet; - is stdin."),
]
MaxWordsOption = Annotated[int, typer.Option(help="Size of the vocabulary, the three special words included.")]
FieldOption = Annotated[str, typer.Option(help="Where the text is: field of .jsonl, column of .parquet.")]
WorkersOption = Annotated[int | None, typer.Option(help="Processes; all cores if not given.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
HeadArgument = Annotated[
    str, typer.Argument(metavar="M", help="Model with its language model head; default is the embedded one.")
]
TextArgument = Annotated[str, typer.Argument(metavar="TEXT", help="Text, one sentence a line; - is standard input.")]
RowsOption = Annotated[
    int, typer.Option(help="With --state carry: read so many sentences side by side, each as far behind the next.")
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...")]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is at OUT.")]
