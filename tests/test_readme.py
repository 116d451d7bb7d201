"""The README is true: its Python prints what it says, its commands too, and its file tree is the one there is."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import elmo
from conftest import run_example

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_python_blocks_print_what_stands_below_them() -> None:
    pytest.importorskip("spacy", reason="the README tokenises raw text")
    names: dict[str, Any] = {}
    shown = 0
    for (kind, code), (next_kind, output) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        if kind != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert next_kind == "text", code
        assert printed.getvalue() == output
        shown += 1
    assert shown >= 4


def test_console_blocks_print_what_they_show(tmp_path: Path) -> None:
    pytest.importorskip("spacy", reason="the README tokenises raw text")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    commands = 0
    for kind, text in BLOCKS:
        if kind != "console":
            continue
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE):
            result = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
            )
            assert result.stdout + result.stderr == expected
            commands += 1
    assert commands >= 3


def test_the_file_tree_is_the_one_there_is() -> None:
    tree = README[README.index("src/elmo/\n") :].split("```")[0]
    named = set(re.findall(r"^  (\w+)(?:\.py|/)", tree, flags=re.MULTILINE))
    package = Path(elmo.__file__).parent
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" and not path.name.startswith("__")}
    there |= {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert named == there


def test_the_demo_shows_senses_contexts_and_substitutes() -> None:
    printed = run_example("demo.py")
    assert '"bank" in four sentences' in printed
    assert printed.count("cosine between its vectors") == 3
    assert "[bank] of the Dnieper river" in printed
    assert "match, game" in printed


def test_the_table_of_neighbours_is_what_its_script_prints() -> None:
    assert run_example("neighbours.py") in README


def test_files_and_headings_that_readers_are_sent_to_exist() -> None:
    for link in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        if anchor:
            text = (ROOT / (path or "README.md")).read_text(encoding="utf-8")
            titles = re.findall(r"^#+ (.*)", text, flags=re.MULTILINE)
            assert anchor in {title.lower().replace(" ", "-") for title in titles}, link
