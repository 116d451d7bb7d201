"""`elmo bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import elmo
from conftest import run_elmo
from elmo.bench import BenchSettings, bench, machine
from elmo.errors import ElmoError


def test_every_combination_is_measured(model_folder: Path) -> None:
    settings = BenchSettings(precisions=("fp32",), at_a_time=(1, 3), lengths=(2, 5), seconds=0.01)
    rows = list(bench(elmo.load(model_folder), settings))
    assert [(row.precision, row.at_a_time, row.length) for row in rows] == [
        ("fp32", 1, 2),
        ("fp32", 1, 5),
        ("fp32", 3, 2),
        ("fp32", 3, 5),
    ]
    for row in rows:
        assert row.words_per_second > 0
        # A call's median and the mean speed are of the same calls; a slow first one may pull them apart.
        assert row.median_ms < 50 * 1000 * row.at_a_time * row.length / row.words_per_second


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ElmoError, match=r"lengths is \(0,\): give whole numbers"):
        BenchSettings(precisions=("fp32",), lengths=(0,))
    with pytest.raises(ElmoError, match="seconds is 0"):
        BenchSettings(precisions=("fp32",), seconds=0)


def test_the_machine_is_named() -> None:
    assert "threads, PyTorch" in machine()


def test_the_command_prints_a_table_or_json(model_folder: Path) -> None:
    options = ["bench", str(model_folder), "--precision", "fp32", "--at-a-time", "1,2", "--lengths", "3"]
    shown = run_elmo(*options, "--seconds", "0.01")
    assert shown.returncode == 0
    _, heads, *rows = shown.stdout.decode().splitlines()
    assert heads.split()[:4] == ["precision", "sentences", "of", "words"]
    assert [row.split()[:3] for row in rows] == [["fp32", "1", "3"], ["fp32", "2", "3"]]
    for_programs = run_elmo(*options, "--seconds", "0.01", "--json").stdout.splitlines()
    assert [json.loads(line)["at_a_time"] for line in for_programs] == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lengths", "ten"], "--lengths is 'ten': give whole numbers"),
        (["--precision", "fp8"], "precision is 'fp8': give one of"),
        (["--device", "moon"], "device is 'moon', which cannot be used here"),
        pytest.param(
            ["--device", "cuda"],
            "device is 'cuda', which cannot be used here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
    ],
)
def test_the_command_refuses_what_is_not_there(model_folder: Path, options: list[str], message: str) -> None:
    done = run_elmo("bench", str(model_folder), *options)
    assert done.returncode == 2
    assert message in done.stderr.decode()
