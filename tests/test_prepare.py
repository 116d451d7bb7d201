"""What becomes of text: every sentence once, on one side, with its characters, targets and counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import heed_interrupts, run_elmo
from elmo.chars import words_to_ids
from elmo.errors import ElmoError
from elmo.lm import merge, reading, shards
from elmo.lm.corpus import Corpus
from elmo.lm.parts import Reading
from elmo.lm.prepare import PrepareConfig, prepare, write_vocabulary

Document = list[list[str]]

DOCUMENTS: list[Document] = [
    [[f"w{(n * n + i) % 97}" for n in range(i, i + 1 + i % 9)] + [f"only{i}"] for i in range(d, d + 1 + d % 4)]
    for d in range(60)
]


def write_text(path: Path, documents: Sequence[Document]) -> Path:
    text = "\n\n".join("\n".join(" ".join(sentence) for sentence in document) for document in documents)
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "in.txt", DOCUMENTS)


def run(text: Path | Sequence[Path], out: Path, *, part_tokens: int = 2**21, **kwargs: Any) -> Corpus:
    """Prepare with one worker; settings of the config are told from the rest by name."""
    texts = [str(text)] if isinstance(text, Path) else [str(path) for path in text]
    others: dict[str, Any] = {
        name: kwargs.pop(name) for name in ("valid", "vocab", "workers", "resume", "overwrite") if name in kwargs
    }
    how = {name: kwargs.pop(name) for name in ("language", "field", "errors") if name in kwargs}
    config = PrepareConfig(reading=Reading(part_tokens=part_tokens, **how), **kwargs)
    return prepare(texts, out, config, **{"workers": 1, **others})


def word_of(row: Any) -> str:
    """A word again from its characters."""
    return bytes(int(c) - 1 for c in row if 1 <= c <= 256).decode()


def sentences_of(corpus: Corpus, split: Any) -> list[list[str]]:
    words = [word_of(row) for row in corpus.characters()]
    return [
        [words[token] for token in shard.tokens[int(start) : int(end)]]
        for shard in corpus.split(split).shards
        for start, end in zip(shard.starts[:-1], shard.starts[1:], strict=True)
    ]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def on_sides(corpus: Corpus, documents: Sequence[Document]) -> list[str]:
    """The side of each document; fails where a sentence is missing, out of order or on both sides."""
    whole = {name: sentences_of(corpus, name) for name in ("train", "valid")}
    # One document may begin as another does, so all ways to deal them out are tried, side by side.
    ways: list[tuple[dict[str, int], list[str]]] = [(dict.fromkeys(whole, 0), [])]
    for document in documents:
        ways = [
            (read | {name: read[name] + len(document)}, [*sides, name])
            for read, sides in ways
            for name, sentences in whole.items()
            if sentences[read[name] : read[name] + len(document)] == document
        ]
        ways = list({tuple(read.values()): (read, sides) for read, sides in reversed(ways)}.values())
    ends = {name: len(sentences) for name, sentences in whole.items()}
    return next(sides for read, sides in ways if read == ends)


class TestContent:
    def test_each_document_is_whole_on_one_side_and_counts_are_measured(self, text: Path, tmp_path: Path) -> None:
        corpus = run(text, tmp_path / "out", valid_share=0.2)
        sides = on_sides(corpus, DOCUMENTS)
        assert sides.count("valid") == 12
        for name in ("train", "valid"):
            split = corpus.split(name)
            mine = [document for document, side in zip(DOCUMENTS, sides, strict=True) if side == name]
            assert split.n_documents == len(mine)
            assert split.n_sentences == sum(map(len, mine))
            assert split.n_tokens == sum(len(sentence) for document in mine for sentence in document)

    def test_types_have_their_characters_targets_and_counts(self, text: Path, tmp_path: Path) -> None:
        corpus = run(text, tmp_path / "out", valid_share=0.2, min_count=3)
        words = [word_of(row) for row in corpus.characters()]
        train = Counter(word for sentence in sentences_of(corpus, "train") for word in sentence)
        assert set(words[2:]) == {word for document in DOCUMENTS for sentence in document for word in sentence}
        assert len(words) == corpus.n_types == len(set(words[2:])) + 2
        assert np.array_equal(corpus.characters(), words_to_ids(["<S>", "</S>", *words[2:]]))
        frequent = {word: count for word, count in train.items() if count >= 3}
        expected = sorted(frequent, key=lambda word: (-frequent[word], word))
        assert corpus.vocab.words == ("<S>", "</S>", "<UNK>", *expected)
        assert corpus.targets().tolist() == [0, 1, *corpus.vocab.ids(words[2:])]
        n_sentences = corpus.split("train").n_sentences
        unknown = sum(train.values()) - sum(frequent.values())
        assert corpus.counts().tolist() == [n_sentences, n_sentences, unknown, *[train[word] for word in expected]]
        frequencies = [train[word] for word in words[2:]]
        assert frequencies == sorted(frequencies, reverse=True)

    def test_the_types_of_arrays_are_those_training_expects(self, text: Path, tmp_path: Path) -> None:
        corpus = run(text, tmp_path / "out", max_characters=6)
        shard = corpus.split("train").shards[0]
        arrays = (corpus.characters(), corpus.targets(), corpus.counts(), shard.tokens, shard.starts)
        assert [array.dtype for array in arrays] == [np.int16, np.int32, np.int64, np.uint32, np.uint64]
        assert all(isinstance(array, np.memmap) for array in arrays)
        assert corpus.characters().shape == (corpus.n_types, 6)

    def test_white_space_and_empty_sentences_leave_no_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "in.txt"
        path.write_bytes("  a\u00a0b \t\r\n \t \n\n\nc\u3000d\n".encode())
        corpus = run(path, tmp_path / "out", min_count=1)
        assert sorted(sentences_of(corpus, "train") + sentences_of(corpus, "valid")) == [["a", "b"], ["c", "d"]]

    def test_sentence_boundaries_in_the_text_are_left_out(self, tmp_path: Path) -> None:
        documents = [[["<S>", "a", "b", "</S>"], ["<S>", "</S>"]], [["a", "<UNK>", "S>"]]]
        corpus = run(write_text(tmp_path / "in.txt", documents), tmp_path / "out", min_count=1)
        assert sorted(sentences_of(corpus, "train") + sentences_of(corpus, "valid")) == [
            ["a", "<UNK>", "S>"],
            ["a", "b"],
        ]
        assert corpus.vocab.words.count("<UNK>") == 1

    def test_raw_text_is_split_into_sentences(self, tmp_path: Path) -> None:
        pytest.importorskip("spacy", reason="tokenising needs spaCy")
        (tmp_path / "in.txt").write_text("I can't. Why?\nNo.\n\nIt's fine, isn't it?\n")
        corpus = run(tmp_path / "in.txt", tmp_path / "out", min_count=1, language="en")
        first = [["I", "ca", "n't", "."], ["Why", "?"], ["No", "."]]
        on_sides(corpus, [first, [["It", "'s", "fine", ",", "is", "n't", "it", "?"]]])

    @settings(max_examples=25)
    @given(
        documents=st.lists(
            st.lists(
                st.lists(st.sampled_from(["a", "b", "ü", "日本", "c.", "x" * 30]), min_size=1, max_size=9),
                min_size=1,
                max_size=5,
            ),
            min_size=2,
            max_size=8,
        ).filter(lambda documents: len({tuple(sorted(chain(*document))) for document in documents}) > 1),
        sizes=st.tuples(*[st.integers(10, 80)] * 4),
    )
    def test_any_text_comes_out_as_it_went_in_wherever_it_is_cut(
        self, tmp_path_factory: pytest.TempPathFactory, documents: list[Document], sizes: tuple[int, int, int, int]
    ) -> None:
        folder = tmp_path_factory.mktemp("any")
        path = write_text(folder / "in.txt", documents)
        whole = run(path, folder / "whole", min_count=1, valid_share=0.3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "_PIECE_BYTES", sizes[0])
            patch.setattr(merge, "_AT_ONCE", sizes[1])
            patch.setattr(shards, "_SHARD_TOKENS", sizes[2])
            cut = run(path, folder / "cut", min_count=1, valid_share=0.3, part_tokens=sizes[3])
        for corpus in (whole, cut):
            on_sides(corpus, documents)
            Corpus.open(corpus.folder)
        for name in ("characters.npy", "targets.npy", "counts.npy", "vocab.txt"):
            assert (folder / "cut" / name).read_bytes() == (folder / "whole" / name).read_bytes()
        for split in ("train", "valid"):
            longest = max(map(len, sentences_of(cut, split)))
            assert all(len(shard.tokens) <= max(sizes[2], longest) for shard in cut.split(split).shards)


class TestHeldOut:
    def test_the_seed_chooses_and_nothing_else(self, text: Path, tmp_path: Path) -> None:
        sides = [
            on_sides(run(text, tmp_path / f"out{n}", valid_share=0.3, seed=seed), DOCUMENTS)
            for n, seed in enumerate((1, 1, 2))
        ]
        assert sides[0] == sides[1] != sides[2]
        turned = write_text(tmp_path / "turned.txt", DOCUMENTS[::-1])
        assert on_sides(run(turned, tmp_path / "out", valid_share=0.3, seed=1), DOCUMENTS[::-1]) == sides[0][::-1]

    def test_copies_of_a_document_are_on_the_same_side(self, tmp_path: Path) -> None:
        twice = [document for document in DOCUMENTS for _ in range(2)]
        corpus = run(write_text(tmp_path / "in.txt", twice), tmp_path / "out", valid_share=0.5)
        sides = on_sides(corpus, twice)
        assert sides[::2] == sides[1::2]
        assert sides.count("valid") == 60

    def test_a_small_share_is_one_document_at_least(self, text: Path, tmp_path: Path) -> None:
        assert run(text, tmp_path / "out", valid_share=1e-9).split("valid").n_documents == 1
        assert run(text, tmp_path / "most", valid_share=0.999, min_count=1).split("train").n_documents == 1

    def test_held_out_text_may_be_given_and_is_not_counted(self, text: Path, tmp_path: Path) -> None:
        other = write_text(tmp_path / "valid.txt", [[["w1", "new", "new"]], [["w2"]]])
        corpus = run(text, tmp_path / "out", valid=[str(other)])
        assert sentences_of(corpus, "valid") == [["w1", "new", "new"], ["w2"]]
        assert corpus.split("valid").n_documents == 2
        assert sentences_of(corpus, "train") == [sentence for document in DOCUMENTS for sentence in document]
        assert "new" not in corpus.vocab
        assert corpus.counts().sum() == corpus.split("train").n_tokens + 2 * corpus.split("train").n_sentences

    @pytest.mark.parametrize(
        ("documents", "message"), [(DOCUMENTS[3:4], "one document"), ([[["a", "b"]], [["b", "a"]]], "2 documents")]
    )
    def test_nothing_is_left_to_hold_out(self, tmp_path: Path, documents: list[Document], message: str) -> None:
        with pytest.raises(ElmoError, match=f"{message}.*none can be held out.*--valid"):
            run(write_text(tmp_path / "in.txt", documents), tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]

    def test_no_file_is_on_both_sides(self, text: Path, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match=r"in\.txt is given for training and as held-out text"):
            run(text, tmp_path / "out", valid=[str(text)])

    def test_nor_by_another_name(self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "link.txt").symlink_to(text)
        for name in ("./in.txt", "in*.txt", "link.txt", f"../{tmp_path.name}//in.txt"):
            with pytest.raises(ElmoError, match="is given for training and as held-out text"):
                run(text, tmp_path / "out", valid=[name])
        once = run(text, tmp_path / "once")
        run([text, Path("in.txt"), Path("link.txt")], tmp_path / "thrice")
        assert content(tmp_path / "thrice") == content(once.folder)

    def test_given_text_without_a_word_is_refused(self, text: Path, tmp_path: Path) -> None:
        (tmp_path / "blank.txt").write_text(" \n\n")
        with pytest.raises(ElmoError, match="no word in the held-out text"):
            run(text, tmp_path / "out", valid=[str(tmp_path / "blank.txt")])
        with pytest.raises(ElmoError, match="no word in the text"):
            run(tmp_path / "blank.txt", tmp_path / "out", valid=[str(text)])


class TestVocabulary:
    def words(self, tmp_path: Path, text: str, **kwargs: Any) -> list[str]:
        (tmp_path / "in.txt").write_text(text, encoding="utf-8")
        write_vocabulary([str(tmp_path / "in.txt")], tmp_path / "v.txt", workers=1, overwrite=True, **kwargs)
        return (tmp_path / "v.txt").read_text(encoding="utf-8").splitlines()

    def test_words_come_by_frequency_and_then_by_themselves(self, tmp_path: Path) -> None:
        special = ["<S>", "</S>", "<UNK>"]
        text = "b a ü <UNK> <UNK>\nz b <S> 日本\n"
        assert self.words(tmp_path, text) == [*special, "b", "a", "z", "ü", "日本"]
        assert self.words(tmp_path, text, max_words=6) == [*special, "b", "a", "z"]
        assert self.words(tmp_path, text, max_words=4) == [*special, "b"]
        assert self.words(tmp_path, text, min_count=2) == [*special, "b"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "v.txt"]

    @settings(max_examples=40)
    @given(
        words=st.lists(st.text("abcdü日", min_size=1, max_size=3), min_size=1, max_size=40),
        room=st.integers(1, 20),
        at_once=st.integers(1, 20),
        part_tokens=st.integers(8, 40),
    )
    def test_any_text_is_counted_exactly(
        self, tmp_path_factory: pytest.TempPathFactory, words: list[str], room: int, at_once: int, part_tokens: int
    ) -> None:
        counts = Counter(words)
        expected = sorted(counts, key=lambda word: (-counts[word], word))[:room]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merge, "_AT_ONCE", at_once)
            how: dict[str, Any] = {"max_words": room + 3, "reading": Reading(part_tokens=part_tokens)}
            found = self.words(tmp_path_factory.mktemp("words"), "\n".join(words), **how)
        assert found[3:] == expected

    def test_what_a_vocabulary_file_cannot_hold_is_unknown(self, tmp_path: Path) -> None:
        odd = [[["!!!MAXTERMID", "<UNK>", "a"]], [["!!!MAXTERMID", "<UNK>", "b"]]] * 2
        corpus = run(write_text(tmp_path / "in.txt", odd), tmp_path / "out", min_count=1, max_words=4)
        assert corpus.vocab.words in (("<S>", "</S>", "<UNK>", "a"), ("<S>", "</S>", "<UNK>", "b"))
        Corpus.open(tmp_path / "out")

    def test_too_many_words_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(merge, "_MOST_TYPES", 5)
        with pytest.raises(ElmoError, match="more than 5 different words"):
            self.words(tmp_path, "a b c d e f")

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ("a\nb\n", "lacks <S>, </S>, <UNK>"),
            ("a\n<S>\n</S>\n<UNK>\n", "its first lines are a, <S>, </S>"),
            ("<S>\n</S>\n<UNK>\na\nb\na\n", "the word 'a' is there twice, line 6"),
            ("<S>\n</S>\n<UNK>\na\n\nb\n", "an empty line, line 5"),
            ("<S>\n</S>\n<UNK>\n<S>\n", "the word '<S>' is there twice"),
        ],
    )
    def test_a_vocabulary_that_training_cannot_use_is_refused(
        self, text: Path, tmp_path: Path, lines: str, message: str
    ) -> None:
        (tmp_path / "v.txt").write_text(lines)
        with pytest.raises(ElmoError, match=rf"v\.txt: .*{message}"):
            run(text, tmp_path / "out", vocab=tmp_path / "v.txt")

    def test_a_given_vocabulary_is_kept_in_its_order(self, text: Path, tmp_path: Path) -> None:
        (tmp_path / "v.txt").write_text("<S>\n</S>\n<UNK>\nnot-there\nw5\nw1\n")
        corpus = run(text, tmp_path / "out", vocab=tmp_path / "v.txt")
        assert corpus.vocab.words == ("<S>", "</S>", "<UNK>", "not-there", "w5", "w1")
        assert corpus.counts()[3] == 0
        train = Counter(word for sentence in sentences_of(corpus, "train") for word in sentence)
        assert corpus.counts()[4:].tolist() == [train["w5"], train["w1"]]


class TestAgain:
    """A run that was cut, one that was done, and runs beside each other."""

    def test_workers_make_no_difference(self, tmp_path: Path) -> None:
        texts = [write_text(tmp_path / f"{n}.txt", DOCUMENTS[n::5]) for n in range(5)]
        run(texts, tmp_path / "one", workers=1)
        run(texts, tmp_path / "two", workers=2)
        assert content(tmp_path / "one") == content(tmp_path / "two")

    def test_a_process_killed_half_way_is_resumed_to_the_same_bytes(self, tmp_path: Path) -> None:
        """As a user would see it: SIGKILL to `elmo prepare`, then the same command with --resume."""
        (tmp_path / "text").mkdir()
        for n in range(150):
            write_text(tmp_path / "text" / f"{n:03d}.txt", DOCUMENTS[n % 7 :: 7] * 20)
        command = [sys.executable, "-m", "elmo", "prepare", str(tmp_path / "text"), "-q", "-o"]
        subprocess.run([*command, str(tmp_path / "whole"), "--workers", "1"], check=True, timeout=300)
        out, partial = tmp_path / "cut", tmp_path / "cut.partial"
        for parts, workers in ((3, "2"), (60, "1")):
            process = subprocess.Popen([*command, str(out), "--resume", "--workers", workers])
            while process.poll() is None and len(list(partial.glob("part-*"))) < parts:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            assert not out.exists()
            time.sleep(0.5)
            left = len(list(partial.glob("part-*")))
            time.sleep(0.5)
            assert len(list(partial.glob("part-*"))) == left < 150  # its workers have ended too
        subprocess.run([*command, str(out), "--resume", "--workers", "2"], check=True, timeout=300)
        assert content(out) == content(tmp_path / "whole")
        assert not partial.exists()

    def test_a_run_cut_inside_a_file_goes_on_there(
        self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(text, tmp_path / "whole", valid_share=0.2)

        def stop_after(parts: int) -> None:
            class StopError(Exception):
                pass

            def report(stage: str, done: Any, total: int) -> None:
                if len(list(tmp_path.glob("cut.partial/part-*"))) >= parts:
                    raise StopError

            config = PrepareConfig(reading=Reading(part_tokens=17), valid_share=0.2)
            with pytest.raises(StopError):
                prepare([str(text)], tmp_path / "cut", config, workers=1, resume=True, report=report)

        stop_after(2)
        stop_after(9)
        run(text, tmp_path / "cut", part_tokens=17, valid_share=0.2, resume=True)
        assert content(tmp_path / "cut") == content(tmp_path / "whole")

    def test_a_run_goes_on_only_with_the_same_text_read_the_same_way(self, text: Path, tmp_path: Path) -> None:
        def cut(*_: object) -> None:
            if list(tmp_path.glob("out.partial/part-*")):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare([str(text)], tmp_path / "out", workers=1, report=cut)
        with pytest.raises(ElmoError, match=r"left of a run that was cut.*--resume"):
            run(text, tmp_path / "out")
        with pytest.raises(ElmoError, match="field was 'text' and is 'body' now"):
            run(text, tmp_path / "out", field="body", resume=True)
        text.touch()
        with pytest.raises(ElmoError, match="text has changed since"):
            run(text, tmp_path / "out", resume=True)
        run(text, tmp_path / "out", overwrite=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out"]

    def test_what_a_run_has_written_is_no_text_of_its_own(self, text: Path, tmp_path: Path) -> None:
        def cut(*_: object) -> None:
            if list(tmp_path.glob("out.partial/part-*")):
                raise KeyboardInterrupt

        whole = run(text, tmp_path.parent / f"{tmp_path.name}-whole")
        pattern, out = str(tmp_path / "*"), tmp_path / "out"
        with pytest.raises(KeyboardInterrupt):
            prepare([pattern], out, workers=1, report=cut)
        run(Path(pattern), out, resume=True)
        assert content(out) == content(whole.folder)
        run(Path(pattern), out, overwrite=True)
        assert content(out) == content(whole.folder)
        with pytest.raises(ElmoError, match=r"vocab\.txt is given as text, and is what is to be written"):
            run([text, out / "vocab.txt"], out, overwrite=True)
        with pytest.raises(ElmoError, match="there is no file but what is to be written"):
            run(out / "v*", out, overwrite=True)
        assert content(out) == content(whole.folder)

    def test_a_damaged_part_is_named(self, text: Path, tmp_path: Path) -> None:
        def cut(*_: object) -> None:
            for path in tmp_path.glob("out.partial/part-*"):
                path.write_bytes(path.read_bytes()[:-30])
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare([str(text)], tmp_path / "out", workers=1, report=cut)
        with pytest.raises(ElmoError, match=r"part-000000-000000\.npz is damaged.*--overwrite"):
            run(text, tmp_path / "out", resume=True)

    def test_what_is_there_is_replaced_on_request_only(self, text: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        run(text, out)
        before = content(out)
        with pytest.raises(ElmoError, match="out exists: --overwrite replaces it"):
            run(text, out)
        run(text, out, resume=True)
        assert content(out) == before
        with pytest.raises(ElmoError, match="seed was 0 and is 1 now"):
            run(text, out, resume=True, seed=1)
        with pytest.raises(ElmoError, match="contradict"):
            run(text, out, resume=True, overwrite=True)
        run(text, out, overwrite=True, valid_share=0.5)
        assert content(out) != before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out"]

    def test_a_folder_of_something_else_is_never_overwritten(self, text: Path, tmp_path: Path) -> None:
        for name in ("out", "new.partial"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "thesis.tex").write_text("years of work")
        with pytest.raises(ElmoError, match="something else than prepared text"):
            run(text, tmp_path / "out", overwrite=True)
        with pytest.raises(ElmoError, match=r"something else than a run that was cut \(thesis.tex\)"):
            run(text, tmp_path / "new", overwrite=True)
        assert len(list(tmp_path.glob("*/thesis.tex"))) == 2

    def test_two_runs_do_not_write_into_the_same_folder(self, text: Path, tmp_path: Path) -> None:
        pytest.importorskip("fcntl", reason="this system has no file locks")

        tried = 0

        def second(stage: str, done: Any, total: int) -> None:
            nonlocal tried
            if stage == "writing":
                tried += 1
                with pytest.raises(ElmoError, match="another run is writing"):
                    run(text, tmp_path / "out", overwrite=True)

        prepare([str(text)], tmp_path / "out", workers=1, report=second)
        assert tried
        assert len(Corpus.open(tmp_path / "out").vocab) > 3


FULL_DISK = """
import resource, sys
from elmo.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv = ["elmo", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_loses_nothing_and_the_run_goes_on_later(tmp_path: Path, workers: int) -> None:
    """A limit on a file's size stands in for the disk: large enough for each part, too small for a shard."""
    texts = [write_text(tmp_path / f"{n}.txt", DOCUMENTS * 20) for n in range(6)]
    command = ["prepare", *texts, "-o", tmp_path / "out", "--workers", workers, "-q"]
    arguments = [sys.executable, "-c", FULL_DISK, "130000", *map(str, command)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2, result.stderr
    assert result.stderr == f"error: cannot write {tmp_path / 'out'}: File too large\n"
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.glob("out.partial/part-*"))) == 6
    assert run_elmo(*command, "--resume").returncode == 0
    run(texts, tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finding a worker needs /proc")
def test_a_worker_that_is_killed_ends_the_run_with_advice(tmp_path: Path) -> None:
    text = tmp_path / "in.txt"
    text.write_text("".join(f"a{n % 9973} b c d\n\n" for n in range(1_500_000)))
    command = [sys.executable, "-m", "elmo", "prepare", str(text), "-o", str(tmp_path / "out"), "--workers", "2", "-q"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(tmp_path.glob("out.partial/part-*")):
        time.sleep(0.002)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[-1], signal.SIGKILL)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 2, message
    assert message.startswith("error: a worker process was killed")
    assert list(tmp_path.glob("out.partial/part-*"))


class TestCommand:
    def refused(self, tmp_path: Path, *arguments: object, stdin: bytes = b"") -> str:
        before = sorted(tmp_path.rglob("*"))
        result = run_elmo(*arguments, stdin=stdin)
        message = result.stderr.decode()
        assert result.returncode == 2, message
        assert message.startswith(("error: ", "Usage: "))
        assert "Traceback" not in message
        assert sorted(tmp_path.rglob("*")) == before
        return message

    def test_a_vocabulary_then_the_corpus(self, text: Path, tmp_path: Path) -> None:
        result = run_elmo("vocab", text, "-o", tmp_path / "v.txt", "--min-count", 2, "--max-words", 50)
        assert result.returncode == 0, result.stderr
        assert b"v.txt: 50 words" in result.stderr
        result = run_elmo("prepare", text, "-o", tmp_path / "out", "--vocab", tmp_path / "v.txt", "--valid-share", 0.1)
        assert result.returncode == 0, result.stderr
        assert b"valid: 6 documents, " in result.stderr
        assert len(Corpus.open(tmp_path / "out").vocab) == 50

    def test_standard_input(self, text: Path, tmp_path: Path) -> None:
        assert run_elmo("prepare", "-", "-o", tmp_path / "piped", stdin=text.read_bytes()).returncode == 0
        run(text, tmp_path / "read")
        shared = [name for name in content(tmp_path / "read") if name != "manifest.json"]
        for name in shared:
            assert (tmp_path / "piped" / name).read_bytes() == (tmp_path / "read" / name).read_bytes()
        for out in ("o", "piped"):
            message = self.refused(tmp_path, "prepare", "-", "-o", tmp_path / out, "--resume", stdin=b"a\n")
            assert "cannot come from standard input" in message

    def test_unknown_words_that_cannot_be_learned_are_told(self, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_text("a b\n\nb c\n")
        result = run_elmo("prepare", tmp_path / "in.txt", "-o", tmp_path / "out", "--min-count", 1)
        assert b"note: no word of the training text is unknown" in result.stderr

    @pytest.mark.parametrize("command", ["vocab", "prepare"])
    @pytest.mark.parametrize("workers", [1, 2])
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "there is no word in the text"),
            (b"\n \n", "there is no word in the text"),
            (b"fine\n\nb\xffd\n", "bad.txt, line 3: not UTF-8"),
            (b"\x7fELF\0\0\n", "bad.txt, line 1: a NUL byte"),
            (b"x " * 2**22, "bad.txt, line 1: longer than 4 MiB"),
        ],
    )
    def test_text_that_is_none(self, tmp_path: Path, command: str, workers: int, data: bytes, message: str) -> None:
        (tmp_path / "bad.txt").write_bytes(data)
        (tmp_path / "blank.txt").write_text("\n")
        texts = [tmp_path / "blank.txt", tmp_path / "bad.txt"]
        assert message in self.refused(tmp_path, command, *texts, "-o", tmp_path / "out", "--workers", workers)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["vocab", "no.txt"], "cannot read no.txt: No such file"),
            (["prepare", "no.txt"], "cannot read no.txt: No such file"),
            (["prepare", "IN", "--valid", "no.txt"], "cannot read no.txt: No such file"),
            (["prepare", "IN", "--vocab", "no.txt"], "cannot read the vocabulary no.txt"),
            (["prepare", "IN", "--valid-share", "0"], "valid_share is 0.0: give a number between 0 and 1"),
            (["prepare", "IN", "--valid-share", "1"], "valid_share is 1.0"),
            (["prepare", "IN", "--valid-share", "nan"], "valid_share is nan"),
            (["prepare", "IN", "--max-words", "3"], "max_words is 3"),
            (["vocab", "IN", "--min-count", "0"], "min_count is 0"),
            (["prepare", "IN", "--seed", "-1"], "seed is -1"),
            (["prepare", "IN", "--max-characters", "3"], "max_characters is 3"),
            (["prepare", "IN", "--workers", "0"], "workers is 0"),
            (["prepare", "IN", "--errors", "ignore"], "errors is 'ignore'"),
            (["prepare", "IN", "--min-count", "1000"], "no word occurs 1000 times"),
            (["prepare", "IN", "--tokenize", "--language", "klingon"], "Unknown language 'klingon'"),
            (["prepare", "FOLDER"], "would lie among the text"),
        ],
    )
    def test_a_mistake_is_named(self, text: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
        given = [{"IN": str(text), "FOLDER": str(tmp_path)}.get(argument, argument) for argument in arguments]
        assert message in self.refused(tmp_path, *given, "-o", tmp_path / "out")

    def test_an_interrupted_run_says_how_to_go_on(self, tmp_path: Path) -> None:
        text = tmp_path / "in.txt"
        text.write_text("".join(f"a{n % 9973} b c d\n\n" for n in range(1_500_000)))
        arguments = ["prepare", str(text), "-o", str(tmp_path / "out"), "--workers", "2", "-q"]
        process = subprocess.Popen(
            [sys.executable, "-m", "elmo", *arguments], stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
        )
        while process.poll() is None and not list(tmp_path.glob("out.partial/part-*")):
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)
        assert process.returncode not in (0, -signal.SIGKILL)
        assert "the same command with --resume goes on" in message
        assert "Traceback" not in message
        assert run_elmo(*arguments, "--resume").returncode == 0


def test_the_same_documents_from_any_layout(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": "\n".join(map(" ".join, document))}) + "\n" for document in DOCUMENTS)
    )
    plain = run(write_text(tmp_path / "a.txt", DOCUMENTS), tmp_path / "plain")
    records = run(tmp_path / "a.jsonl", tmp_path / "records")
    assert on_sides(plain, DOCUMENTS) == on_sides(records, DOCUMENTS)
