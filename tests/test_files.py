"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from elmo.files import locked, new_file, new_folder


def test_an_interrupt_between_the_two_renames_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if path.name.startswith(".model.new"):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "model") as folder:
        (folder / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    with new_file(tmp_path / "link") as beside:
        beside.write_text("written")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "written"


@pytest.mark.parametrize(
    ("number", "message"), [(errno.EWOULDBLOCK, "another run"), (errno.EACCES, "cannot lock"), (errno.ENOSYS, None)]
)
def test_where_a_file_system_has_no_locks_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str | None
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(pytest.importorskip("fcntl", reason="this system has no file locks"), "flock", refuse)
    entered = False
    if message is None:
        with locked(tmp_path / "lock", "another run"):
            entered = True
        assert entered
        return
    with pytest.raises(ElmoError, match=message), locked(tmp_path / "lock", "another run"):
        entered = True
    assert not entered
