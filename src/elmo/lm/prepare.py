"""Text to the folder that training reads, and to a vocabulary: what `elmo prepare` and `elmo vocab` do.

1. Text is read on all cores into parts that number their words by themselves (`parts`).
2. Documents are divided into training and held-out text.
3. The words of all parts become one table, counted in the training part (`merge`), and the vocabulary.
4. Parts are written again as shards of one numbering.

While this lasts everything lies in `OUT.partial`. A run that was cut goes on with step 1 where it was, and repeats the
rest, which is a small part of the time. OUT appears when all of it is there. Memory: 160 MB for each worker (450 MB for
raw text, most of it spaCy's), then for the last steps some 500 MB and 32 bytes for each different word.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError, TextError
from elmo.files import check_new_file, new_file
from elmo.lm.corpus import MANIFEST, Corpus, check_vocabulary
from elmo.lm.merge import WordTable, make_vocabulary, merge_words
from elmo.lm.parts import Progress, Reading, load_part, part_paths, piece_of, read_pieces
from elmo.lm.reading import Piece, Source, cut, find_sources
from elmo.lm.shards import choose_held_out, count_words, given_held_out, write_corpus
from elmo.lm.work import Work, compare
from elmo.vocab import SPECIAL_WORDS, Vocabulary

Report = Callable[[str, Progress, int], None]
"""Called with what is being done, how far it has come, and the bytes of text there are in all (0: not known)."""


def _silent(stage: str, done: Progress, total: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """What is made of the text."""

    reading: Reading = field(default_factory=Reading)
    max_words: int = 800_000
    """Size of a vocabulary that is made from the text, its special words included."""
    min_count: int = 2
    """A rarer word is not in that vocabulary. With 1, no word of the training text is unknown, and a model never
    learns what to expect where one is."""
    valid_share: float = 0.01
    """Share of the documents that is held out, where no held-out text is given; one document at least."""
    seed: int = 0
    """Which ones."""
    max_characters: int = 50
    """Of a word, with the marks of its beginning and its end."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _check_vocabulary_size(self.max_words, self.min_count)
        if not 0 < self.valid_share < 1:
            raise ElmoError(f"valid_share is {self.valid_share}: give a number between 0 and 1, such as 0.01")
        if not 0 <= self.seed < 2**64:
            raise ElmoError(f"seed is {self.seed}: give a number from 0 to 2^64 - 1")
        if not 4 <= self.max_characters <= 1000:
            raise ElmoError(f"max_characters is {self.max_characters}: give a number from 4 to 1000; published: 50")


def prepare(
    texts: Sequence[str],
    out: Path,
    config: PrepareConfig | None = None,
    *,
    valid: Sequence[str] = (),
    vocab: Path | None = None,
    workers: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    also_made: Sequence[Path] = (),
    report: Report = _silent,
) -> Corpus:
    """Prepare text for training; the result depends neither on `workers` nor on where a run was cut.

    With more than one worker, call it from a script that has `if __name__ == "__main__"`: each imports it again.

    Args:
        texts: files, folders, globs and URLs; `-` is standard input.
        out: the folder to write.
        config: what is made of it.
        valid: held-out text; a share of the documents of `texts` if not given.
        vocab: the vocabulary; made from the training text if not given.
        workers: processes; all cores if not given.
        resume: go on where an earlier run with the same settings was cut; start where there was none. Of a run that has
            ended, text is compared by names and sizes.
        overwrite: replace `out`, and what is left of an earlier run.
        also_made: what else the caller writes, and is no text though a pattern matches it.
        report: called now and then.

    Raises:
        ElmoError: the text, the vocabulary or a setting is of no use; nothing half-written is left.
    """
    config = config or PrepareConfig()
    words = None if vocab is None else check_vocabulary(Vocabulary.read(vocab), str(vocab))
    made = (out, Work(out).folder, *also_made)
    pieces = [*_cut(texts, made), *_cut(valid, made, held_out=True)]
    _refuse_overlap(pieces)
    settings = _settings(config, words, pieces)
    work = Work(out)
    if resume and not all(piece.source.can_reopen for piece in pieces):
        raise ElmoError("--resume reads the text again, so it cannot come from standard input or a pipe: give files")
    if _is_complete(work, settings, resume=resume, overwrite=overwrite):
        return Corpus.open(out)
    with work.locked(_reading(config.reading, pieces), overwrite=overwrite):
        _read(pieces, work.folder, config.reading, workers, report)
        work.assemble(lambda folder: _write(folder, work.folder, pieces, config, words, settings, report))
    return Corpus.open(out, verify=False)


def write_vocabulary(
    texts: Sequence[str],
    out: Path,
    *,
    reading: Reading | None = None,
    max_words: int = 800_000,
    min_count: int = 1,
    workers: int | None = None,
    overwrite: bool = False,
    report: Report = _silent,
) -> Vocabulary:
    """Count the words of texts and write the most frequent ones: `<S>`, `</S>`, `<UNK>`, then by falling frequency.

    Words that are as frequent as each other are in the order of their code points. All words are counted exactly.

    Args:
        texts: files, folders, globs and URLs; `-` is standard input.
        out: the file to write.
        reading: how they are read.
        max_words: size of the vocabulary, the special words included.
        min_count: a rarer word is left out.
        workers: processes; all cores if not given.
        overwrite: replace `out`.
        report: called now and then.
    """
    _check_vocabulary_size(max_words, min_count)
    check_new_file(out, overwrite=overwrite)
    reading = reading or Reading()
    work = Work(out)
    pieces = _cut(texts, (out, work.folder))
    with work.locked(_reading(reading, pieces), overwrite=True):
        _read(pieces, work.folder, reading, workers, report)
        parts = part_paths(work.folder)
        count_words(parts, None, work.folder / "counts")
        table = merge_words(parts, work.folder / "counts", work.folder)
        vocab = _vocabulary_of(table, max_words, min_count)
        with new_file(out) as beside:
            vocab.write(beside)
        work.clear()
    return vocab


def _write(
    folder: Path,
    work: Path,
    pieces: Sequence[Piece],
    config: PrepareConfig,
    vocab: Vocabulary | None,
    settings: Mapping[str, Any],
    report: Report,
) -> None:
    """Fill `folder` with what becomes of the parts in `work`."""
    parts = part_paths(work)
    if any(piece.held_out for piece in pieces):
        sides = given_held_out(parts, [pieces[piece_of(path)].held_out for path in parts])
    else:
        sides = choose_held_out(parts, share=config.valid_share, seed=config.seed)
    count_words(parts, sides, work / "counts")
    table = merge_words(parts, work / "counts", work)
    write_corpus(
        folder,
        parts,
        sides,
        table,
        vocab or _vocabulary_of(table, config.max_words, config.min_count),
        max_characters=config.max_characters,
        settings=settings,
        report=lambda tokens: report("writing", Progress(tokens=tokens), 0),
    )


def _is_complete(work: Work, settings: Mapping[str, Any], *, resume: bool, overwrite: bool) -> bool:
    """Whether a run with the same settings has ended; refuses to go over what somebody else has written."""
    out = work.out
    if resume and overwrite:
        raise ElmoError("resume and overwrite contradict each other: give one of them")
    if out.exists() and not (out / MANIFEST).is_file():
        raise ElmoError(f"{out} is something else than prepared text: it is never overwritten; give another folder")
    if overwrite:
        return False
    if work.folder.exists():
        if resume:
            return False
        raise ElmoError(
            f"{work.folder} is left of a run that was cut, or of one that still goes on: "
            "--resume goes on with it, --overwrite starts again"
        )
    if out.exists():
        if not resume:
            raise ElmoError(f"{out} exists: --overwrite replaces it, --resume goes on with a run that was cut")
        compare(json.loads(json.dumps(settings)), Corpus.open(out, verify=False).settings, out)
    return out.exists()


def _check_vocabulary_size(max_words: int, min_count: int) -> None:
    if not len(SPECIAL_WORDS) < max_words < 2**31:
        raise ElmoError(f"max_words is {max_words}: give a number above 3, which is <S>, </S> and <UNK>")
    if min_count < 1:
        raise ElmoError(f"min_count is {min_count}: give 1 or more")


def _cut(texts: Sequence[str], made: Sequence[Path], *, held_out: bool = False) -> list[Piece]:
    for text in texts:
        out = made[0].resolve()
        if "://" not in text and Path(text).is_dir() and out.is_relative_to(Path(text).resolve()):
            raise ElmoError(f"{made[0]} would lie among the text in {text}: write it elsewhere")
    sources = find_sources(texts, made)
    if texts and not sources:
        raise ElmoError(f"{', '.join(texts)}: there is no file but what is to be written")
    return cut(sources, held_out=held_out)


def _refuse_overlap(pieces: Sequence[Piece]) -> None:
    training = {piece.source.place for piece in pieces if not piece.held_out}
    both = [piece.source.shown for piece in pieces if piece.held_out and piece.source.place in training]
    if both:
        raise ElmoError(f"{min(both)} is given for training and as held-out text")


def _settings(config: PrepareConfig, vocab: Vocabulary | None, pieces: Sequence[Piece]) -> dict[str, Any]:
    """What the result depends on, as the manifest has it."""
    settings = asdict(config)
    reading = settings.pop("reading")
    del reading["part_tokens"]  # of no effect
    if vocab is not None:
        del settings["max_words"], settings["min_count"]
        settings["vocab"] = hashlib.sha256("\n".join(vocab).encode()).hexdigest()
    if any(piece.held_out for piece in pieces):
        del settings["valid_share"], settings["seed"]
    text = _fingerprint(f"{Path(source.name).name}\0{source.size}" for source in _sources(pieces))
    return {**reading, **settings, "text": text}


def _reading(reading: Reading, pieces: Sequence[Piece]) -> dict[str, Any]:
    """What the parts depend on: a run goes on with those of another if this is the same."""
    sources = (f"{source.name}\0{source.size}\0{source.changed}" for source in _sources(pieces))
    return asdict(reading) | {"text": _fingerprint(sources), "pieces": len(pieces)}


def _sources(pieces: Sequence[Piece]) -> list[Source]:
    return list(dict.fromkeys(piece.source for piece in pieces))


def _fingerprint(facts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


def _read(pieces: Sequence[Piece], folder: Path, reading: Reading, workers: int | None, report: Report) -> None:
    if workers is not None and workers < 1:
        raise ElmoError(f"workers is {workers}: give 1 or more")
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = sum(source.size for source in _sources(pieces))
    read_pieces(pieces, folder, reading, workers=workers, report=lambda done: report("reading", done, total))
    if not any(len(load_part(path, "lengths")["lengths"]) for path in part_paths(folder)):
        raise TextError("there is no word in the text")


def _vocabulary_of(table: WordTable, max_words: int, min_count: int) -> Vocabulary:
    vocab = make_vocabulary(table, max_words=max_words, min_count=min_count)
    if len(vocab) == len(SPECIAL_WORDS):
        raise TextError(f"no word occurs {min_count} times, so the vocabulary would be empty: lower --min-count")
    return vocab
