from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from conftest import small_options
from elmo.config import LSTMConfig, ModelConfig, read_json
from elmo.errors import ElmoError


def changed(path: str, value: object) -> dict[str, Any]:
    options = copy.deepcopy(small_options())
    *parents, last = path.split(".")
    section = options
    for name in parents:
        section = section[name]
    section[last] = value
    return options


def test_options_survive_a_round_trip() -> None:
    config = ModelConfig.from_options(small_options())
    assert ModelConfig.from_options(config.to_options()) == config
    assert config.to_options() == small_options()


def test_261_and_262_characters_are_the_same_model() -> None:
    assert ModelConfig.from_options(changed("char_cnn.n_characters", 261)) == ModelConfig.from_options(small_options())


def test_keys_of_the_trainer_are_passed_over() -> None:
    options = small_options() | {"n_train_tokens": 768648884, "dropout": 0.1, "n_tokens_vocab": 793471}
    assert ModelConfig.from_options(options) == ModelConfig.from_options(small_options())


def test_a_model_without_characters_reads_words() -> None:
    config = ModelConfig.from_options({"lstm": small_options()["lstm"], "n_tokens_vocab": 7})
    assert config.n_words == 7
    assert ModelConfig.from_options(config.to_options()) == config


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("lstm", None, "lstm is missing"),
        ("lstm", [1], r"lstm is \[1\]"),
        ("lstm", {}, "lstm.dim is missing"),
        ("lstm.dim", 0, "lstm.dim is 0: give a whole number from 1 to 1,048,576"),
        ("lstm.dim", 12.5, "lstm.dim is 12.5"),
        ("lstm.dim", True, "lstm.dim is True"),
        ("lstm.n_layers", "2", "lstm.n_layers is '2'"),
        ("lstm.projection_dim", 13, r"lstm.projection_dim \(13\) is larger than lstm.dim \(12\)"),
        ("lstm.cell_clip", -1, "lstm.cell_clip is -1"),
        ("lstm.proj_clip", "3", "lstm.proj_clip is '3'"),
        ("lstm.use_skip_connections", "yes", "use_skip_connections is 'yes'"),
        ("char_cnn", "yes", "char_cnn is 'yes'"),
        ("char_cnn.activation", "gelu", "activation is 'gelu': give 'relu' or 'tanh'"),
        ("char_cnn.filters", [], "filters is empty"),
        ("char_cnn.filters", [[1, 2, 3]], r"filters is \[\[1, 2, 3\]\]"),
        ("char_cnn.filters", [[60, 4]], "width of 60, but a word is only 50"),
        ("char_cnn.filters", [[0, 4]], "a width is 0"),
        ("char_cnn.n_characters", 300, "n_characters is 300"),
        ("char_cnn.n_highway", -1, "n_highway is -1"),
        ("char_cnn.max_characters_per_token", 2, "max_characters_per_token is 2"),
        ("char_cnn.embedding", {}, "char_cnn.embedding.dim is missing"),
        ("lstm.dim", 10**30, "lstm.dim is 1000"),
        ("lstm.n_layers", 3_000_000, "lstm.n_layers is 3000000: give a whole number from 1 to 1,000"),
        ("lstm.cell_clip", 10**400, "lstm.cell_clip is 1000"),
        ("char_cnn.max_characters_per_token", 10**10, "from 3 to 10,000"),
        ("char_cnn.n_highway", 10**7, "char_cnn.n_highway is 10000000"),
        ("char_cnn.filters", [[1, 1]] * 100_000, "the number of char_cnn.filters is 100000"),
    ],
)
def test_a_wrong_option_is_named_as_it_was_typed(path: str, value: object, message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        ModelConfig.from_options(changed(path, value))


def test_a_model_has_one_kind_of_input() -> None:
    with pytest.raises(ElmoError, match="neither is given"):
        ModelConfig(lstm=LSTMConfig(dim=4, projection_dim=2))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\udcff", "[" * 100_000, "9" * 5000])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "options.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ElmoError, match=r"options\.json"):
        read_json(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match=r"cannot read .*options\.json: No such file"):
        read_json(tmp_path / "options.json")
