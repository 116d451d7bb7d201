from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import small_options
from elmo.errors import ElmoError
from elmo.lm.settings import TrainConfig
from elmo.model import parameter_count

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("[model.lstm]\ndim = 8\nprojection_dim = 4\n[model]\nn_tokens_vocab = 9\n[train]\nsteps = 5\n")
    return path


def test_reads_toml_and_fills_in_the_published_settings(file: Path) -> None:
    config = TrainConfig.read(file)
    assert config.model.lstm.dim == 8
    assert config.train.steps == 5
    assert (config.data.rows, config.data.unroll_steps, config.softmax.samples) == (128, 20, 8192)
    optimizer = config.optimizer
    assert (optimizer.kind, optimizer.rate, optimizer.accumulator, optimizer.clip) == ("adagrad", 0.2, 1.0, 10.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.steps=7", 7),
        ("optimizer.rate=1", 1.0),
        ("softmax.kind=full", "full"),
        ('corpus="a b"', "a b"),
        ("corpus=some/folder", "some/folder"),
        ("train.tensorboard=true", True),
    ],
)
def test_set_replaces_a_setting(file: Path, text: str, expected: object) -> None:
    value: Any = TrainConfig.read(file, [text])
    for name in text.split("=")[0].split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.step=7", r"unknown setting train\.step: did you mean train\.steps\?"),
        ("optimiser.rate=1", r"unknown setting optimiser: did you mean optimizer\?"),
        ("model.lstm.projecton_dim=4", r"unknown setting model\.lstm\.projecton_dim: .*model\.lstm\.projection_dim"),
        ("model.chars=4", r"unknown setting model\.chars"),
        ("train.zzz=1", r"unknown setting train\.zzz: known are epochs"),
        ("train.steps=0", r"train\.steps is 0: give a whole number from 1"),
        ("train.steps=2.5", r"train\.steps is 2\.5: a whole number is expected"),
        ("train.steps=true", r"train\.steps is True: a whole number is expected"),
        ("train.dropout=1", r"train\.dropout is 1\.0"),
        ("train.precision=fp16", r"train\.precision is 'fp16': give one of 'fp32', 'bf16', 'auto'"),
        ("optimizer.rate=-1", r"optimizer\.rate is -1\.0: give a number above 0"),
        ("optimizer.beta2=1", r"optimizer\.beta2 is 1\.0"),
        ("softmax.kind=adaptive", r"cutoffs belong to 'adaptive', which needs them"),
        ("softmax.cutoffs=[5]", r"cutoffs belong to 'adaptive'"),
        ("softmax.cutoffs=[a]", r"softmax\.cutoffs is '\[a\]': a list of whole numbers"),
        ("data=3", "data is 3: a section is expected"),
        ("corpus.a=1", "corpus is .*: text is expected"),
        ("seed=-1", "seed is -1"),
        ("train.steps", "give a key and its value"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_typed(file: Path, text: str, message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        TrainConfig.read(file, [text])


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match=r"cannot read .*none\.toml"):
        TrainConfig.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 3")
    with pytest.raises(ElmoError, match=r"bad\.toml is not TOML"):
        TrainConfig.read(tmp_path / "bad.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ElmoError, match=r"empty\.toml: the section \[model\] is missing"):
        TrainConfig.read(tmp_path / "empty.toml")


def test_plain_values_make_the_same_settings_again() -> None:
    config = TrainConfig.from_dict(
        {"model": small_options(), "softmax": {"kind": "adaptive", "cutoffs": [3, 5]}, "train": {"steps": 3}}
    )
    assert TrainConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("name", "parameters"), [("original", 93_600_848), ("medium", 28_027_728), ("small", 13_593_296)]
)
def test_ready_configs_have_the_published_sizes(name: str, parameters: int) -> None:
    config = TrainConfig.read(CONFIGS / f"{name}.toml")
    assert parameter_count(config.model) == parameters
    assert config.softmax.samples == 8192
    assert config.train.epochs == 10


def test_every_ready_config_can_be_read() -> None:
    found = sorted(path.stem for path in CONFIGS.glob("*.toml"))
    assert found == ["default", "demo", "medium", "original", "small"]
    for path in CONFIGS.glob("*.toml"):
        TrainConfig.read(path)
