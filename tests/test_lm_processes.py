"""Runs that are killed and go on, and runs of several processes: see `lm_process.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("lm_process.py")


def start(*arguments: object, ranks: int = 0, restarts: int = 0) -> str:
    """Run the script to its end, alone or with so many processes under torchrun; what it printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, "--max-restarts", restarts]
    command = [sys.executable, *(launcher if ranks else []), SCRIPT, *arguments]
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def metrics(folder: Path, key: str) -> list[Any]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line[key] for line in lines if key in line]


def test_killed_at_twenty_random_moments_a_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    steps, kills = 300, 20
    landed, ended = start("kill", tmp_path / "killed", steps, kills, 1).split()
    assert int(landed) >= kills // 2, "the run was over before it could be killed"
    assert ended == "0"
    start("kill", tmp_path / "whole", steps, 0, 1)
    whole, killed = files(tmp_path / "whole"), files(tmp_path / "killed")
    assert {"metrics.jsonl", "last.safetensors", "best.safetensors", "model/model.safetensors"} <= set(whole)
    assert set(killed) == set(whole)
    for name, content in whole.items():
        assert killed[name] == content, name


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "two"
    start("run", folder, 50, ranks=2)
    return folder


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "one"
    start("run", folder, 60)
    return folder


def test_two_ranks_have_the_loss_of_one_with_the_same_batch(one_rank: Path, two_ranks: Path) -> None:
    for key, count in (("forward", 50), ("backward", 50), ("norm", 50), ("valid_loss", 2)):
        one, two = metrics(one_rank, key), metrics(two_ranks, key)
        assert len(two) == count
        np.testing.assert_allclose(two, one[:count], atol=1e-5)


def test_what_two_ranks_began_one_can_go_on_with(tmp_path: Path, one_rank: Path, two_ranks: Path) -> None:
    shutil.copytree(two_ranks, tmp_path / "run")
    start("run", tmp_path / "run", 60)
    together = metrics(tmp_path / "run", "forward")
    assert len(together) == 60
    np.testing.assert_allclose(together, metrics(one_rank, "forward"), atol=1e-5)


def test_a_killed_rank_starts_again_and_the_run_goes_on(tmp_path: Path, two_ranks: Path) -> None:
    start("run", tmp_path / "killed", 50, "1:20", ranks=2, restarts=2)
    assert files(tmp_path / "killed") == files(two_ranks)
