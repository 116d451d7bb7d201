"""Task data as published, and every way in which it can be wrong: file, line and what was expected."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import ElmoError
from elmo.tasks import files
from elmo.tasks.files import json_lines, lines
from elmo.tasks.readers import TaggedSentence, read_conllu
from elmo.tasks.sense_readers import SenseInstance, find_wsd, lemma_of_key, read_inventory, read_semcor, read_wsd


def conllu(*rows: str) -> str:
    """Rows of number, word, upos, xpos as ten columns."""
    lines = []
    for row in rows:
        number, word, upos, xpos = row.split()
        lines.append("\t".join([number, word, "_", upos, xpos, *["_"] * 5]))
    return "\n".join(lines) + "\n"


CATS = "# text = Cats don't.\n" + conllu(
    "1 Cats NOUN NNS", "2-3 don't _ _", "2 do AUX VBP", "2.1 x _ _", "3 n't PART RB"
)

XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en"><text id="d0"><sentence id="d0.s0">
<wf lemma="``" pos=".">``</wf>
<instance id="d0.s0.t0" lemma="old age" pos="NOUN">old age</instance>
<wf lemma="be" pos="VERB">is &amp;</wf>
<instance id="d0.s0.t1" lemma="Good" pos="ADJ">good</instance>
</sentence></text></corpus>
"""
KEYS = "d0.s0.t0 old_age%1:28:00::\nd0.s0.t1 good%3:00:01:: good%5:00:00:nice:00\n"


def write_wsd(folder: Path, xml: str = XML, keys: str = KEYS, name: str = "toy") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.data.xml").write_text(xml, encoding="utf-8")
    (folder / f"{name}.gold.key.txt").write_text(keys, encoding="utf-8")
    return str(folder / f"{name}.data.xml")


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


class TestConllu:
    def test_words_and_either_tag_column_without_ranges_and_empty_nodes(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.conllu", CATS + "\n\n" + conllu("1 Yes INTJ UH").rstrip("\n"))
        assert read_conllu(path) == [
            TaggedSentence(("Cats", "do", "n't"), ("NOUN", "AUX", "PART")),
            TaggedSentence(("Yes",), ("INTJ",)),
        ]
        assert read_conllu(path, "xpos")[0].tags == ("NNS", "VBP", "RB")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("1\tCats\tNOUN\n", "line 1: found 3 columns, expected 10"),
            (conllu("1 a X X", "3 b X X"), "line 2: found token number '3', expected 2"),
            (conllu("1 a _ X"), "line 1: found no upos tag"),
            (conllu("1 a X X").replace("a", " "), "line 1: found no word, expected one in column 2"),
            ("\n# nothing\n", "has no sentence in it"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        path = write(tmp_path / "bad.conllu", text)
        with pytest.raises(ElmoError, match=message) as error:
            read_conllu(path)
        assert path in str(error.value)

    def test_line_ends_of_windows_a_byte_order_mark_and_blanks_change_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "a.conllu"
        path.write_text(CATS + "\n" + CATS, encoding="utf-8")
        plain = read_conllu(str(path))
        path.write_bytes(b"\xef\xbb\xbf" + (CATS + " \t\n" + CATS).replace("\n", "\r\n").encode())
        assert read_conllu(str(path)) == plain
        assert len(plain) == 2

    def test_bytes_that_are_no_text_are_named_with_their_line(self, tmp_path: Path) -> None:
        (tmp_path / "bad.conllu").write_bytes(b"# a\n# \xff\n")
        with pytest.raises(ElmoError, match=r"line 2: not UTF-8"):
            read_conllu(str(tmp_path / "bad.conllu"))

    def test_an_unknown_column_is_refused(self) -> None:
        column: Any = "pos"
        with pytest.raises(ElmoError, match="tags is 'pos': give one of upos, xpos"):
            read_conllu("any", column)


class TestPaths:
    def archive(self, folder: Path, members: dict[str, str], links: dict[str, str] | None = None) -> Path:
        path = folder / "data.tar.xz"
        with tarfile.open(path, "w:xz") as tar:
            for name, text in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
            for name, target in (links or {}).items():
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, target
                tar.addfile(info)
        return path

    def test_a_path_leads_into_an_archive(self, tmp_path: Path) -> None:
        path = self.archive(tmp_path, {"./pos/a.conllu": CATS})
        assert len(read_conllu(f"{path}/pos/a.conllu")) == 1
        assert [file.name for file in tmp_path.iterdir()] == ["data.tar.xz"]  # nothing was written

    def test_test_sets_are_found_in_folders_and_archives(self, tmp_path: Path) -> None:
        for name in ("ALL", "one", "two"):
            write_wsd(tmp_path / "sets" / name, name=name)
        assert [Path(file).name for file in find_wsd(str(tmp_path / "sets"))] == ["one.data.xml", "two.data.xml"]
        corpora = tmp_path / "sets" / "Training_Corpora"
        write_wsd(corpora / "SemCor", name="semcor")
        assert [Path(file).name for file in find_wsd(str(tmp_path / "sets"))] == ["one.data.xml", "two.data.xml"]
        assert [Path(file).name for file in find_wsd(str(corpora))] == ["semcor.data.xml"]
        assert find_wsd(str(tmp_path / "sets" / "ALL")) == [str(tmp_path / "sets" / "ALL" / "ALL.data.xml")]
        path = self.archive(tmp_path, {"a/x.data.xml": XML, "a/x.gold.key.txt": KEYS, "b/y.data.xml": XML})
        assert find_wsd(f"{path}/a") == [f"{path}/a/x.data.xml"]
        assert len(find_wsd(str(path))) == 2
        assert len(read_wsd(f"{path}/a/x.data.xml")) == 1
        with pytest.raises(ElmoError, match="has no test set in it"):
            find_wsd(f"{path}/c")

    def test_a_link_is_not_followed_and_a_missing_member_is_named(self, tmp_path: Path) -> None:
        outside = write(tmp_path / "secret.conllu", CATS)
        path = self.archive(tmp_path, {"a": CATS}, {"link.conllu": outside, "inside": "a"})
        for name in ("link.conllu", "inside", "nothing", "../secret.conllu"):
            with pytest.raises(ElmoError, match="has no file"):
                read_conllu(f"{path}/{name}")

    def test_what_is_not_there_or_no_archive_is_an_error(self, tmp_path: Path) -> None:
        plain = write(tmp_path / "plain.conllu", CATS)
        for path in (str(tmp_path / "nothing"), f"{plain}/inside", str(tmp_path)):
            with pytest.raises(ElmoError, match="cannot read"):
                read_conllu(path)
        with pytest.raises(ElmoError, match="there is nothing at"):
            find_wsd(str(tmp_path / "nothing"))
        with pytest.raises(ElmoError, match="cannot read"):
            find_wsd(plain)

    def test_a_damaged_archive_is_an_error(self, tmp_path: Path) -> None:
        path = self.archive(tmp_path, {f"{i}.conllu": CATS * 50 for i in range(20)})
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(ElmoError, match="cannot read"):
            read_conllu(f"{path}/nothing.conllu")

    def test_packed_files_are_unpacked_up_to_a_bound(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a.conllu.gz").write_bytes(gzip.compress(CATS.encode()))
        assert len(read_conllu(str(tmp_path / "a.conllu.gz"))) == 1
        monkeypatch.setattr(files, "_MOST_BYTES", 20)
        with pytest.raises(ElmoError, match="more than 20 bytes unpacked"):
            read_conllu(str(tmp_path / "a.conllu.gz"))

    def test_lines_of_a_file_of_any_size_are_read_no_further_than_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "_MOST_BYTES", 20)
        text = "one\ntwo\n" + "3" * 11 + "\n" + "four\n" * 100
        (tmp_path / "a.gz").write_bytes(gzip.compress(text.encode()) + b"no gzip")
        inside = self.archive(tmp_path, {"a": text})
        for path in (tmp_path / "a.gz", inside / "a"):
            found = lines(str(path), longest=10)
            assert [next(found), next(found)] == [(1, "one"), (2, "two")]
            with pytest.raises(ElmoError, match=f"{path}, line 3: found over 10 bytes, expected a line"):
                next(found)

    @given(st.text(alphabet="a\r\n\ufeff\x85\u2028é", max_size=12), st.booleans())
    def test_a_line_ends_where_an_editor_ends_it(
        self, tmp_path_factory: pytest.TempPathFactory, text: str, mark: bool
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "lines.txt"
        path.write_text(text, encoding="utf-8-sig" if mark else "utf-8", newline="")
        expected = text if mark else text.removeprefix("\ufeff")
        assert list(lines(str(path))) == [
            (number, line.removesuffix("\r")) for number, line in enumerate(expected.split("\n"), start=1)
        ]

    def test_half_a_surrogate_pair_is_no_text(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", '{"a": "\\ud83d\\ude00 \\\\ud800"}\n{"b": ["\\uD83D"]}\n')
        found = json_lines(path)
        assert next(found) == (1, {"a": "😀 \\ud800"})
        with pytest.raises(ElmoError, match=r"line 2: found half a surrogate pair \('\\ud83d'\), expected valid"):
            next(found)


class TestWsd:
    def test_words_of_an_expression_are_tokens_and_any_key_will_do(self, tmp_path: Path) -> None:
        (sentence,) = read_wsd(write_wsd(tmp_path))
        assert sentence.tokens == ('"', "old", "age", "is", "&", "good")
        assert sentence.instances == (
            SenseInstance("d0.s0.t0", ("old_age", "n"), 1, 3, ("old_age%1:28:00::",)),
            SenseInstance("d0.s0.t1", ("good", "a"), 5, 6, ("good%3:00:01::", "good%5:00:00:nice:00")),
        )

    @pytest.mark.parametrize(
        ("xml", "message"),
        [
            (XML.replace("<corpus", '<!DOCTYPE x [<!ENTITY a "b">]>\n<corpus'), "line 2: found a document type"),
            (XML.replace("&amp;", "&b;"), r"line 5: no XML \(undefined entity\)"),
            (XML.replace("</corpus>", ""), "no XML"),
            (XML.replace("<sentence", "<sentence><sentence", 1), "found a <sentence> within another"),
            (XML.replace(' pos="ADJ"', ""), "line 6: found an instance without 'pos'"),
            (XML.replace("ADJ", "JJ"), "line 6: found pos 'JJ', expected one of NOUN, VERB, ADJ, ADV"),
            (XML.replace("s0.t1", "s0.t7"), "line 6: found instance 'd0.s0.t7', for which there is no key"),
            (XML.replace("s0.t1", "s0.t0"), "line 6: found instance 'd0.s0.t0', again"),
            (XML.replace(">good<", "> <"), "line 6: found an empty <instance>"),
            (XML.replace("is &amp;", "<wf>is</wf>"), "line 5: found <wf> where none may be"),
            ("<corpus></corpus>", "has no sentence in it"),
        ],
    )
    def test_bad_xml_is_an_error_with_its_line(self, tmp_path: Path, xml: str, message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            read_wsd(write_wsd(tmp_path, xml))

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            (KEYS + "d0.s0.t9 a%1:00:00::\n", "has no instance 'd0.s0.t9'"),
            (KEYS + "d0.s0.t1 a%1:00:00::\n", "line 3: found 'd0.s0.t1' again"),
            ("d0.s0.t0\n", "line 1: found an id alone"),
        ],
    )
    def test_bad_keys_are_an_error(self, tmp_path: Path, keys: str, message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            read_wsd(write_wsd(tmp_path, keys=keys))

    def test_another_file_is_refused(self) -> None:
        with pytest.raises(ElmoError, match=r"give NAME.data.xml"):
            read_wsd("toy.xml")


class TestSemcor:
    def test_expressions_are_split_and_a_key_says_lemma_and_part_of_speech(self, tmp_path: Path) -> None:
        record = {
            "id": "s1",
            "tokens": ["``", "took_place", "_", "well"],
            "senses": [None, ["take_place%2:30:00::"], None, ["well%4:02:00::", "well%4:02:01::"]],
        }
        (sentence,) = read_semcor(write(tmp_path / "s.jsonl", json.dumps(record) + "\n\n"))
        assert sentence.tokens == ('"', "took", "place", "_", "well")
        assert [(one.lemma, one.start, one.end, len(one.keys)) for one in sentence.instances] == [
            (("take_place", "v"), 1, 3, 1),
            (("well", "r"), 4, 5, 2),
        ]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", r"line 1: found no JSON"),
            ("[1]", r"line 1: found \[1\], expected an object"),
            ('{"tokens": ["a", 1], "senses": [null, null]}', "no list of strings in 'tokens'"),
            ('{"tokens": ["a"], "senses": []}', "'senses' is no list as long as 'tokens'"),
            ('{"tokens": ["a"], "senses": [[]]}', r"senses of 'a' are \[\]"),
            ('{"tokens": ["a"], "senses": [["a%9:"]]}', "sense key 'a%9:'"),
            ("", "has no sentence in it"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path: Path, line: str, message: str) -> None:
        with pytest.raises(ElmoError, match=message):
            read_semcor(write(tmp_path / "s.jsonl", line))

    def test_satellite_adjectives_are_adjectives(self) -> None:
        assert lemma_of_key("Good%5:00:00:nice:00") == ("good", "a")
        assert lemma_of_key("good") is None


class TestInventory:
    def test_lemmas_that_differ_in_case_are_one(self, tmp_path: Path) -> None:
        text = "China\tn\tchina%1:15:00::\nchina\tn\tchina%1:06:00:: china%1:06:01::\nchina\tv\tchina%2:30:00::\n"
        assert read_inventory(write(tmp_path / "i.tsv", text)) == {
            ("china", "n"): ("china%1:15:00::", "china%1:06:00::", "china%1:06:01::"),
            ("china", "v"): ("china%2:30:00::",),
        }

    @pytest.mark.parametrize("line", ["a n k", "a\tx\tk", "a\tn\t ", "a\tn"])
    def test_a_bad_line_is_named(self, tmp_path: Path, line: str) -> None:
        with pytest.raises(ElmoError, match="line 2: found"):
            read_inventory(write(tmp_path / "i.tsv", f"ok\tn\tok%1:00:00::\n{line}\n"))
