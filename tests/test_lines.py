from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo import lines
from elmo.errors import ElmoError
from elmo.lines import LineReader


def read(data: bytes, errors: lines.Errors = "strict") -> list[str]:
    return list(LineReader(BytesIO(data), "in.txt", errors))


def test_lines_lose_their_ends_and_empty_ones_stay() -> None:
    assert read(b"a b\r\n\nc") == ["a b", "", "c"]
    assert read(b"a\n") == ["a"]
    assert read(b"") == []


def test_a_byte_order_mark_is_no_part_of_the_first_word() -> None:
    assert read(b"\xef\xbb\xbfa\n\xef\xbb\xbfb") == ["a", "\ufeffb"]


def test_what_is_not_utf8_is_an_error_with_its_line() -> None:
    with pytest.raises(ElmoError, match=r"in\.txt, line 2: not UTF-8 at byte 1 \(0xff\)"):
        read(b"ok\na\xffb\n")
    assert read(b"ok\na\xffb\n", "replace") == ["ok", "a\ufffdb"]


def test_a_nul_byte_is_an_error_with_its_line() -> None:
    with pytest.raises(ElmoError, match=r"in\.txt, line 1: a NUL byte"):
        read(b"a\0b\n")
    assert read(b"a\0b\n", "replace") == ["a\ufffdb"]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_LONGEST_LINE", 10)
    assert read(b"123456789\n") == ["123456789"]
    with pytest.raises(ElmoError, match="line 2: longer than"):
        read(b"1\n" + b"x" * 100)


def test_an_unknown_way_with_errors_is_refused() -> None:
    with pytest.raises(ElmoError, match="'strict' or 'replace'"):
        LineReader(BytesIO(), "in.txt", "ignore")  # type: ignore[arg-type]


@given(st.binary())
def test_any_bytes_are_lines_or_an_error_of_ours(data: bytes) -> None:
    replaced = read(data, "replace")
    assert len(replaced) == len(data.split(b"\n")) - (not data or data.endswith(b"\n"))
    try:
        assert read(data) == replaced
    except ElmoError as error:
        assert "in.txt, line" in str(error)  # noqa: PT017 - either outcome is right
