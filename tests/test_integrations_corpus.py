"""A corpus in parts and the folder they are embedded into, without Ray (tests/test_ray.py has it)."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

import elmo
from conftest import run_elmo
from elmo.embed import EmbedSettings
from elmo.errors import ElmoError
from elmo.integrations.corpus import Part, Reading, Record, count, find_parts, numbered, read
from elmo.integrations.folder import MANIFEST, Folder, begin, check, finish, write_manifest
from elmo.integrations.ray import Pool, embed_corpus

LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"), max_size=12)


def all_records(texts: list[str], reading: Reading) -> list[Record]:
    return [record for part in find_parts(texts, reading.part_bytes) for record in read(part, reading)]


@given(st.lists(LINES, min_size=1, max_size=12), st.integers(1, 40), st.booleans())
def test_each_line_is_in_one_part_wherever_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], part_bytes: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(("\n".join(lines) + ("\n" if ends else "")).encode())
    expected = lines if ends or lines[-1] else lines[:-1]
    found = all_records([str(path)], Reading(part_bytes=part_bytes))
    assert found == [Record(line) for line in expected]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The same ten records in each layout."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    rows = [{"text": f"sentence {n} .", "key": n} for n in range(10)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "a.jsonl").write_text(lines)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=3)
    return folder


class StoredFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file of a store, as those of S3 or HTTP are: it has less than a file of a disk."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return Path(self.path).read_bytes()[start:end]


class Store(AbstractFileSystem):  # type: ignore[misc]  # the same
    protocol = "store"

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return {"name": path, "size": Path(path).stat().st_size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> StoredFile:
        return StoredFile(self, path, mode, block_size=64)


@pytest.mark.parametrize(("name", "parts"), [("a.jsonl", 8), ("a.jsonl.gz", 1), ("a.parquet", 4)])
@pytest.mark.parametrize("scheme", ["", "file://", "store://"])
def test_records_of_each_layout_have_their_keys(corpus: Path, name: str, parts: int, scheme: str) -> None:
    fsspec.register_implementation("store", Store, clobber=True)
    reading = Reading(id="key", part_bytes=40)
    text = f"{scheme}{corpus / name}"
    counted = numbered([count(part, reading) for part in find_parts([text], reading.part_bytes)])
    assert len(counted) == parts
    assert [part.first for part in counted] == [sum(p.records for p in counted[:n]) for n in range(parts)]
    assert [part.file for part in counted[:2]] == ["part-0000000.parquet", "part-0000001.parquet"][:parts]
    assert sum(part.words for part in counted) == 30
    records = [record for part in counted for record in read(part, reading)]
    assert records == [Record(f"sentence {n} .", str(n)) for n in range(10)]


def test_parts_without_a_line_are_left_out_and_what_changed_has_another_digest(tmp_path: Path) -> None:
    path, reading = tmp_path / "t.txt", Reading(part_bytes=4)
    path.write_text("a line of many bytes\nb\n")
    parts = numbered([count(part, reading) for part in find_parts([str(path)], 4)])
    assert [(part.number, part.first, part.records) for part in parts] == [(0, 0, 1), (1, 1, 1)]
    path.write_text("a line of many bytes\nc\n")
    again = numbered([count(part, reading) for part in find_parts([str(path)], 4)])
    assert [one.digest == other.digest for one, other in zip(parts, again, strict=True)] == [True, False]


def test_text_may_be_tokens_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": ["New York", "is"]}\n\n{"text": null}\n')
    assert [record.tokens for record in all_records([str(path)], Reading())] == [["New York", "is"], []]


@pytest.mark.parametrize(
    ("line", "reading", "message"),
    [
        ("{", Reading(), "line 1 from byte 0: not JSON"),
        ("[1]", Reading(), "an object with the field 'text'"),
        ('{"text": "a"}', Reading(id="key"), "an object with the field 'key'"),
        ('{"text": "a", "key": 1.5}', Reading(id="key"), "the id 'key' is 1.5"),
        ('{"text": 3}', Reading(), "'text' is a int"),
        ('{"text": ["a"]}', Reading(language="en"), "leave --tokenize out"),
        ('{"text": "\\ud800"}', Reading(), "half a surrogate pair"),
    ],
)
def test_what_is_no_record_is_named(tmp_path: Path, line: str, reading: Reading, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(line + "\n")
    with pytest.raises(ElmoError, match=message):
        all_records([str(tmp_path / "t.jsonl")], reading)


def test_keys_of_plain_text_are_refused_and_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a\n")
    with pytest.raises(ElmoError, match="lines have no key: leave --id out"):
        all_records([str(tmp_path / "t.txt")], Reading(id="key"))


def test_files_that_cannot_be_read_are_named(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
    (tmp_path / "bad.txt").write_bytes(b"fine\nab\xff\n")
    for name in ("bad.parquet", "bad.txt.gz"):
        with pytest.raises(ElmoError, match=f"cannot read .*{name}"):
            all_records([str(tmp_path / name)], Reading())
    with pytest.raises(ElmoError, match=r"bad.txt, line 2: not UTF-8"):
        all_records([str(tmp_path / "bad.txt")], Reading(part_bytes=5))
    with pytest.raises(ElmoError, match="has no column 'words', but text, key"):
        all_records([str(corpus / "a.parquet")], Reading(field="words"))
    with pytest.raises(ElmoError, match="standard input can be read by one process alone"):
        find_parts(["-"], 100)


class CutError(Exception):
    pass


class TestFolder:
    @pytest.fixture(params=["local", "store"])
    def folder(self, request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
        path = tmp_path / "out"
        return Folder(str(path) if request.param == "local" else f"file://{path}")

    def manifest(self, **settings: Any) -> dict[str, Any]:
        parts = [{"file": Part(source="s", number=number).file} for number in range(2)]
        return {"complete": False, "settings": settings, "parts": parts}

    def put(self, folder: Folder, name: str) -> None:
        with folder.new(name) as path:
            path.write_text(name)

    def test_a_file_appears_whole_or_not_at_all(self, folder: Folder) -> None:
        self.put(folder, "part-0000000.parquet")
        with contextlib.suppress(CutError), folder.new("part-0000001.parquet") as path:
            path.write_text("half")
            raise CutError
        assert folder.names() == {"part-0000000.parquet"}
        assert [folder.has(f"part-000000{number}.parquet") for number in range(2)] == [True, False]
        assert folder.read("part-0000000.parquet") == "part-0000000.parquet"

    def test_a_run_that_was_cut_goes_on_with_what_is_there(self, folder: Folder) -> None:
        assert begin(folder, self.manifest(layers="top"), resume=False, overwrite=False) == set()
        self.put(folder, "part-0000000.parquet")
        self.put(folder, ".part-0000001.parquet.new-99")  # its writer was killed
        with pytest.raises(ElmoError, match="--resume goes on"):
            check(folder, resume=False, overwrite=False)
        there = begin(folder, self.manifest(layers="top"), resume=True, overwrite=False)
        assert "part-0000000.parquet" in there
        assert folder.names() == {MANIFEST, "part-0000000.parquet"}
        with pytest.raises(ElmoError, match="1 of 2 parts"):
            finish(folder, self.manifest(layers="top"))
        self.put(folder, "part-0000001.parquet")
        finish(folder, self.manifest(layers="top"))
        assert json.loads(folder.read(MANIFEST))["complete"] is True

    def test_other_settings_are_refused_and_not_mixed(self, folder: Folder) -> None:
        begin(folder, self.manifest(layers="top"), resume=False, overwrite=False)
        self.put(folder, "part-0000000.parquet")
        with pytest.raises(ElmoError, match="layers was 'top' and is 'all' now"):
            begin(folder, self.manifest(layers="all"), resume=True, overwrite=False)
        assert begin(folder, self.manifest(layers="all"), resume=False, overwrite=True) == set()
        assert folder.names() == {MANIFEST}

    def test_what_is_not_ours_is_left_alone(self, folder: Folder) -> None:
        self.put(folder, "thesis.txt")
        with pytest.raises(ElmoError, match=r"something else than embedded parts \(thesis.txt\)"):
            begin(folder, self.manifest(), resume=False, overwrite=True)
        assert folder.names() == {"thesis.txt"}

    def test_parts_that_nobody_explains_are_refused(self, folder: Folder) -> None:
        self.put(folder, "part-0000000.parquet")
        with pytest.raises(ElmoError, match=r"no _manifest\.json"):
            begin(folder, self.manifest(), resume=True, overwrite=False)

    def test_a_part_of_another_run_is_not_taken_for_one_of_this(self, folder: Folder) -> None:
        write_manifest(folder, self.manifest())
        for number in range(3):
            self.put(folder, Part(source="s", number=number).file)
        with pytest.raises(ElmoError, match="1 others"):
            finish(folder, self.manifest())

    def test_a_file_in_its_place_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("mine")
        with pytest.raises(ElmoError, match="is a file"):
            check(Folder(str(tmp_path / "out")), resume=False, overwrite=True)
        with pytest.raises(ElmoError, match="cannot write"), Folder(str(tmp_path / "out" / "in")).locked():
            pass
        url = f"file://{tmp_path}/out/in"
        with pytest.raises(ElmoError, match=f"cannot use the folder {url}: "), Folder(url).new("a") as path:
            path.write_text("a")

    def test_a_second_run_waits(self, tmp_path: Path) -> None:
        folder = Folder(str(tmp_path / "out"))
        with folder.locked(), pytest.raises(ElmoError, match="another run"), folder.locked():
            pass


def test_a_finished_folder_has_nothing_half_written_in_it(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    (tmp_path / ".part-00000.parquet.new-7").write_text("of a worker that was killed")
    (tmp_path / "part-00000.parquet").write_text("{}")
    (tmp_path / ".notebook").mkdir()  # somebody else's
    finish(folder, {"parts": [{"file": "part-00000.parquet"}]})
    assert folder.names() == {"part-00000.parquet", MANIFEST, ".notebook"}


def test_a_missing_extra_says_what_to_install(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ElmoError, match=r"pip install 'elmo\[ray\]'"):
        embed_corpus(elmo.load(model_folder), ["t.txt"], "out", settings=EmbedSettings())


@pytest.mark.parametrize(
    ("settings", "message"), [({"state": "carry"}, "no state is carried"), ({"precision": "auto"}, "give fp32")]
)
def test_settings_that_depend_on_order_or_machine_are_refused(
    model_folder: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ElmoError, match=message):
        embed_corpus(elmo.load(model_folder), ["t.txt"], "out", settings=EmbedSettings(**settings))


def test_a_pool_of_nobody_and_parts_of_nothing_are_refused() -> None:
    with pytest.raises(ElmoError, match="workers is 0"):
        Pool(workers=0)
    with pytest.raises(ElmoError, match="--part-mb"):
        Reading(part_bytes=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t.txt", "--workers", "2"], b"--workers goes with --engine ray alone"),
        (["t.txt", "u.txt"], b"more than one IN goes with --engine ray alone"),
        (["t.txt", "--engine", "ray"], b"give one with -o"),
        (["t.txt", "--engine", "ray", "-o", "out", "--part-mb", "nan"], b"--part-mb is nan: give a number above 0"),
        (["t.txt", "--engine", "ray", "-o", "out", "--part-mb", "0"], b"--part-mb is 0.0: give a number above 0"),
        (["t.txt", "--engine", "ray", "-o", "out", "--device", "cuda"], b"--device does not go with --engine ray"),
    ],
)
def test_options_that_do_not_belong_together(tmp_path: Path, arguments: list[str], message: bytes) -> None:
    done = run_elmo("embed", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
