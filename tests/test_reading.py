"""Text from wherever it lies: the same lines, each once, and clear errors."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import ElmoError, MissingExtraError, TextError
from elmo.lines import Errors, LineReader
from elmo.lm import reading
from elmo.lm.reading import Lines, Piece, Source, cut, find_sources, layout_of

TEXT = "the cat\nü 日本\n\nsecond document\n"
LINES = ["", "the cat", "ü 日本", "", "second document"]
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def lines_of(*texts: object, field: str = "text", errors: Errors = "strict") -> list[str]:
    """All lines of some texts, piece after piece."""
    pieces = cut(find_sources(map(str, texts)))
    return [line for piece in pieces for line in Lines(piece, field=field, errors=errors)]


def write_parquet(path: Path, column: str, values: list[str | None]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({column: values}), path)
    return path


def test_a_file_starts_a_document_and_so_does_a_blank_line(tmp_path: Path) -> None:
    for name in ("a.txt", "b"):
        (tmp_path / name).write_text(TEXT, encoding="utf-8")
    assert lines_of(tmp_path / "a.txt", tmp_path / "b") == LINES + LINES


@pytest.mark.parametrize("ending", PACKERS)
def test_a_packed_file_reads_as_the_plain_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.TXT{ending}"
    first, second = TEXT.encode()[:9], TEXT.encode()[9:]
    path.write_bytes(PACKERS[ending](first) + PACKERS[ending](second))  # as `cat` joins two of them
    assert lines_of(path) == LINES


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("layout", ["a.txt", "a.jsonl"])
def test_a_packed_file_that_was_cut_is_no_whole_one(tmp_path: Path, ending: str, layout: str) -> None:
    text = "\n".join(json.dumps({"text": f"line {n * n}"}) for n in range(5000))
    packed = PACKERS[ending](text.encode())
    path = tmp_path / (layout + ending)
    path.write_bytes(packed)
    assert lines_of(path)
    for cut_at in (len(packed) - 3, len(packed) // 2):
        path.write_bytes(packed[:cut_at])
        with pytest.raises(ElmoError, match=rf"cannot read .*{layout}{ending}: .*(ended|cut)"):
            lines_of(path)


@pytest.mark.parametrize("ending", PACKERS)
def test_what_only_looks_packed_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_text("no such thing\n")
    with pytest.raises(ElmoError, match=r"cannot read .*a\..*: \w"):
        lines_of(path)


def test_a_record_is_a_document_whatever_lines_it_has(tmp_path: Path) -> None:
    texts = ["the cat\n\n  \nsat", "", "ü"]
    expected = ["", "the cat", "sat", "", "", "ü"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"n": 1, "text": text}) + "\n\n" for text in texts))
    assert lines_of(path) == expected
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes().replace(b'"text"', b'"body"')))
    assert lines_of(tmp_path / "a.jsonl.gz", field="body") == expected
    assert lines_of(write_parquet(tmp_path / "a.parquet", "body", [*texts, None]), field="body") == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ('["text"]', "line 2: an object with the field 'text'"),
        ('{"body": "x"}', r"line 2: an object with the field 'text' is expected \(--field\)"),
        ('{"text": 3}', "line 2: 'text' is a int"),
        (r'{"text": "\ud800"}', "line 2: half a surrogate pair"),
        (r'{"text": "a\u0000"}', "line 2: a NUL"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line)
    with pytest.raises(TextError, match=rf"a\.jsonl, {message}"):
        lines_of(path)


def test_what_is_not_text_in_a_record_is_replaced_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": "\ud83d\ude00 \ud800x \u0000"}')
    assert lines_of(path, errors="replace") == ["", "😀 \ufffdx \ufffd"]


def test_parquet_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", "body", ["x"])
    with pytest.raises(TextError, match="no column 'text', but body"):
        lines_of(path)
    path.write_text("oh")
    with pytest.raises(ElmoError, match=r"cannot read .*a\.parquet"):
        lines_of(path)


@given(text=st.text("ab\n\r é", max_size=200), size=st.integers(1, 40))
def test_pieces_hold_each_line_once_in_order(tmp_path_factory: pytest.TempPathFactory, text: str, size: int) -> None:
    path = tmp_path_factory.mktemp("pieces") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_PIECE_BYTES", size)
        assert len(cut(find_sources([str(path)]))) == max(1, -(-len(text.encode()) // size))
        assert lines_of(path) == ["", *LineReader(BytesIO(text.encode()), "whole")]


def test_an_error_has_its_line_in_the_file_not_in_the_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PIECE_BYTES", 7)
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n\nthree four five six seven\neight\nb\xffd\n")
    with pytest.raises(TextError, match=r"a\.txt, line 6: not UTF-8 at byte 1"):
        lines_of(path)
    path.write_bytes(b"one\ntwo\n\nthree four five six seven\nei\0ght\n")
    with pytest.raises(TextError, match=r"a\.txt, line 5: a NUL byte"):
        lines_of(path)


def test_a_byte_order_mark_goes_at_the_start_of_the_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PIECE_BYTES", 4)
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfab\n\xef\xbb\xbfcd\n")
    assert lines_of(tmp_path / "a.txt") == ["", "ab", "\ufeffcd"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_a_giant_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(reading, "_LONGEST_LINE", 2**20)
    monkeypatch.setattr(reading, "_PIECE_BYTES", 2**16)
    giant = "x y " * 2**19
    data = (json.dumps({"text": giant}) if name == "a.jsonl" else f"fine\n{giant}").encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(TextError, match=r"line [12]: .*1 Mi"):
        lines_of(tmp_path / name)


def test_folders_and_globs_stand_for_their_files_by_name(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden", ".git/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    def found(*texts: object) -> list[str]:
        return [str(Path(source.name).relative_to(tmp_path)) for source in find_sources(map(str, texts))]

    assert found(tmp_path) == ["a.txt", "b/1.txt", "b/2.txt"]
    assert found(tmp_path / "**" / "[12].txt", tmp_path / "a.txt") == ["b/1.txt", "b/2.txt", "a.txt"]
    assert found(tmp_path / "*") == found(tmp_path)
    assert found(tmp_path / "a.txt", tmp_path) == found(tmp_path)
    (tmp_path / "what[1].txt").write_text("a name, not a pattern")
    assert found(tmp_path / "what[1].txt") == ["what[1].txt"]


def test_a_name_that_stands_for_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for text, message in (
        ("no.txt", r"cannot read .*no\.txt: No such file"),
        ("no*.txt", r"no file is called like .*no\*\.txt"),
        ("empty", "empty has no file in it"),
        ("a\0b", "cannot read"),
    ):
        with pytest.raises(ElmoError, match=message):
            find_sources([str(tmp_path / text)])


def test_a_url_reads_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "b.txt").write_text(TEXT, encoding="utf-8")
    url = f"file://{tmp_path}"
    assert lines_of(f"{url}/a.txt.gz") == LINES
    assert lines_of(url) == lines_of(f"{url}/*.t*") == LINES + LINES
    assert [source.size for source in find_sources([f"{url}/b.txt"])] == [len(TEXT.encode())]
    for text, message in (
        (f"{url}/no.txt", r"cannot read file://.*no\.txt"),
        (f"{url}/no*", "no file is called like"),
        ("nosuch://x/y", "cannot read nosuch://x/y: .*nosuch"),
    ):
        with pytest.raises(ElmoError, match=message):
            find_sources([text])


@pytest.mark.parametrize(
    ("name", "package", "feature"),
    [("a.zst", "zstandard", ".zst"), ("a.parquet", "pyarrow", "Parquet"), ("file:///a", "fsspec.core", "a URL")],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, feature: str
) -> None:
    (tmp_path / name.removeprefix("file://").lstrip("/")).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"Reading {feature} .*pip install 'elmo\[corpus\]'"):
        lines_of(name if "://" in name else tmp_path / name)


def test_a_missing_package_is_told_from_another_process_too() -> None:
    error = MissingExtraError("Reading .zst", "corpus")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_pipe_is_read_by_one_process() -> None:
    assert not find_sources(["/dev/null"])[0].can_reopen
    assert cut([Source("-", can_reopen=False)]) == [Piece(Source("-", can_reopen=False))]


def test_the_layout_comes_from_the_name() -> None:
    assert layout_of("x/A.JSONL.GZ") == ("jsonl", ".gz")
    assert layout_of("a.parquet") == ("parquet", "")
    assert layout_of("a.txt.zst") == ("text", ".zst")
    assert layout_of("a.jsonl.txt") == layout_of("a") == ("text", "")
