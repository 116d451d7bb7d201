"""The ELMo inside AllenNLP's task models: archives, state dicts, mixes."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.errors import ElmoError

PREFIX = "text_field_embedder.token_embedder_elmo._elmo."
SENTENCES = ["the cat sat", "", "naïve 猫"]


def state_dict(weights: dict[str, Any], options: dict[str, Any], prefix: str = PREFIX) -> dict[str, torch.Tensor]:
    """What AllenNLP's `Elmo` makes of a bilm-tf file, in a task model with a layer of its own."""
    encoder, lstm = f"{prefix}_elmo_lstm._token_embedder.", f"{prefix}_elmo_lstm._elmo_lstm."
    zero = np.zeros((1, weights["char_embed"].shape[1]), dtype=np.float32)
    found = {f"{encoder}_char_embedding_weights": np.concatenate([zero, weights["char_embed"]])}
    for i in range(len(options["char_cnn"]["filters"])):
        found[f"{encoder}char_conv_{i}.weight"] = weights[f"CNN/W_cnn_{i}"][0].transpose(2, 1, 0)
        found[f"{encoder}char_conv_{i}.bias"] = weights[f"CNN/b_cnn_{i}"]
    for k in range(options["char_cnn"]["n_highway"]):
        theirs = {
            name: weights[f"CNN_high_{k}/{name}"] for name in ("W_transform", "W_carry", "b_transform", "b_carry")
        }
        both = np.concatenate([theirs["W_transform"].T, -theirs["W_carry"].T])
        found[f"{encoder}_highways._layers.{k}.weight"] = both
        found[f"{encoder}_highways._layers.{k}.bias"] = np.concatenate([theirs["b_transform"], -theirs["b_carry"]])
    found[f"{encoder}_projection.weight"] = weights["CNN_proj/W_proj"].T
    found[f"{encoder}_projection.bias"] = weights["CNN_proj/b_proj"]
    width, cells = options["lstm"]["projection_dim"], options["lstm"]["dim"]
    order = np.r_[0:cells, 2 * cells : 3 * cells, cells : 2 * cells, 3 * cells : 4 * cells]  # i, f, g, o
    for number, direction in enumerate(("forward", "backward")):
        for k in range(options["lstm"]["n_layers"]):
            cell = f"MultiRNNCell/Cell{k}/" if options["lstm"]["n_layers"] > 1 else ""
            name, source = f"{lstm}{direction}_layer_{k}.", f"RNN_{number}/RNN/{cell}LSTMCell/"
            kernel, bias = weights[f"{source}W_0"].T[order], weights[f"{source}B"][order].copy()
            bias[cells : 2 * cells] += 1
            found[f"{name}input_linearity.weight"] = kernel[:, :width]
            found[f"{name}state_linearity.weight"] = kernel[:, width:]
            found[f"{name}state_linearity.bias"] = bias
            found[f"{name}state_projection.weight"] = weights[f"{source}W_P_0"].T
    for mix in range(2):
        found[f"{prefix}scalar_mix_{mix}.gamma"] = np.array([1.5 + mix], dtype=np.float32)
        for layer in range(options["lstm"]["n_layers"] + 1):
            value = np.array([0.25 * layer + mix], dtype=np.float32)
            found[f"{prefix}scalar_mix_{mix}.scalar_parameters.{layer}"] = value
    found["classifier.weight"] = np.zeros((2, 3), dtype=np.float32)
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in found.items()}


def write_archive(path: Path, tensors: dict[str, torch.Tensor], **files: str) -> Path:
    """An archive as `allennlp train` leaves it; `files` by name, with `_` for `/`."""
    content = io.BytesIO()
    torch.save(tensors, content)
    members = {"weights.th": content.getvalue(), "vocabulary/tokens.txt": b"cat\n"}
    members |= {name.replace("__", "/"): text.encode() for name, text in files.items()}
    with tarfile.open(path, "w:gz") as archive:
        for name, member in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(member)
            archive.addfile(info, io.BytesIO(member))
    return path


@pytest.fixture
def weights(model_folder: Path) -> dict[str, Any]:
    return write_model(model_folder, small_options())


def config(**elmo_options: Any) -> str:
    embedder = {"type": "elmo_token_embedder", "options_file": "https://example.org/options.json"} | elmo_options
    return json.dumps({"model": {"text_field_embedder": {"token_embedders": {"elmo": embedder}}}})


def same(model: elmo.Model, folder: Path) -> bool:
    pairs = zip(model.embed(SENTENCES, layers="all"), elmo.load(folder).embed(SENTENCES, layers="all"), strict=True)
    return all(np.allclose(ours, theirs, atol=2e-6) for ours, theirs in pairs)


class TestStateDict:
    @pytest.mark.parametrize("prefix", ["", PREFIX, "a.b.c."])
    @pytest.mark.parametrize("legacy", [False, True])
    def test_the_network_is_found_under_any_prefix(
        self, weights: dict[str, Any], model_folder: Path, tmp_path: Path, prefix: str, legacy: bool
    ) -> None:
        tensors = state_dict(weights, small_options(), prefix)
        torch.save(tensors, tmp_path / "best.th", _use_new_zipfile_serialization=not legacy)
        model = elmo.load(tmp_path / "best.th", options=model_folder / "options.json")
        assert model.source == "allennlp"
        assert same(model, model_folder)

    def test_a_network_of_one_layer(self, model_folder: Path, tmp_path: Path) -> None:
        options = small_options(n_layers=1)
        torch.save(state_dict(write_model(model_folder, options), options), tmp_path / "best.th")
        assert same(elmo.load(tmp_path / "best.th", options=model_folder / "options.json"), model_folder)

    def test_the_first_mix_is_the_models_and_the_card_has_all(
        self, weights: dict[str, Any], model_folder: Path, tmp_path: Path
    ) -> None:
        torch.save(state_dict(weights, small_options()), tmp_path / "best.th")
        model = elmo.load(tmp_path / "best.th", options=model_folder / "options.json")
        shares = np.exp([0, 0.25, 0.5]) / np.exp([0, 0.25, 0.5]).sum()
        layers = model.embed(["the cat"], layers="all")[0]
        mixed = model.embed(["the cat"], layers="mix")[0]
        np.testing.assert_allclose(mixed, 1.5 * np.tensordot(shares, layers, axes=1), atol=1e-5)
        assert "mix 1: weights [1.0, 1.25, 1.5], gamma 2.5000" in (model.card or "")

    def test_what_weights_do_not_say_is_asked_for(self, weights: dict[str, Any], tmp_path: Path) -> None:
        torch.save(state_dict(weights, small_options()), tmp_path / "best.th")
        with pytest.raises(ElmoError, match=r"\(clips, activation\): give the model's options.json with options="):
            elmo.load(tmp_path / "best.th")

    def test_no_elmo_two_elmos_and_damaged_ones(
        self, weights: dict[str, Any], model_folder: Path, tmp_path: Path
    ) -> None:
        path, options = tmp_path / "best.th", model_folder / "options.json"
        whole = state_dict(weights, small_options())
        lstm = f"{PREFIX}_elmo_lstm._elmo_lstm.forward_layer_0.state_linearity.bias"
        for tensors, message in (
            ({"x": torch.zeros(2)}, "has no ELMo in it"),
            (whole | state_dict(weights, small_options(), "other."), "several ELMo models in it"),
            ({name: value for name, value in whole.items() if name != lstm}, "lacks _elmo_lstm.forward_layer_0"),
            (whole | {lstm: torch.zeros(3)}, r"has shape \(3,\), the options say \(48,\)"),
            (whole | {lstm: torch.full((48,), torch.nan)}, "holds NaN"),
            (whole | {f"{PREFIX}scalar_mix_0.gamma": torch.zeros(2)}, r"scalar_mix_0\..* has shape \(2,\)"),
            (whole | {f"{PREFIX}scalar_mix_0.scalar_parameters.3": torch.zeros(1)}, "has 4 weights, the model 3"),
        ):
            torch.save(tensors, path)
            with pytest.raises(ElmoError, match=message):
                elmo.load(path, options=options)

    def test_options_that_allennlp_cannot_have(
        self, weights: dict[str, Any], model_folder: Path, tmp_path: Path
    ) -> None:
        torch.save(state_dict(weights, small_options()), tmp_path / "best.th")
        for options, message in (
            (small_options(use_skip_connections=False), "always has them"),
            (small_options(dim=5), "LSTMs without a projection"),
            (
                {"lstm": small_options()["lstm"], "n_tokens_vocab": 4},
                "reads the bytes of words",
            ),
        ):
            (tmp_path / "o.json").write_text(json.dumps(options))
            with pytest.raises(ElmoError, match=message):
                elmo.load(tmp_path / "best.th", options=tmp_path / "o.json")


class TestArchive:
    def test_options_are_given_or_held(self, weights: dict[str, Any], model_folder: Path, tmp_path: Path) -> None:
        tensors = state_dict(weights, small_options())
        plain = write_archive(tmp_path / "model.tar.gz", tensors, **{"config.json": config()})
        with pytest.raises(ElmoError, match=r"it was read from https://example\.org/options\.json"):
            elmo.load(plain)
        assert same(elmo.load(plain, options=model_folder / "options.json"), model_folder)
        held = {"config.json": config(), "fta__model.elmo.options_file": json.dumps(small_options())}
        model = elmo.load(write_archive(tmp_path / "old.tar.gz", tensors, **held))
        assert same(model, model_folder)
        assert model.mix is not None

    def test_a_mix_with_layer_norm_is_no_models(
        self, weights: dict[str, Any], model_folder: Path, tmp_path: Path
    ) -> None:
        tensors = state_dict(weights, small_options())
        path = write_archive(tmp_path / "m.tar.gz", tensors, **{"config.json": config(do_layer_norm=True)})
        model = elmo.load(path, options=model_folder / "options.json")
        assert model.mix is None
        assert "gamma 1.5000" in (model.card or "")

    def test_it_is_converted_and_described(self, weights: dict[str, Any], model_folder: Path, tmp_path: Path) -> None:
        path = write_archive(tmp_path / "model.tar.gz", state_dict(weights, small_options()))
        options = model_folder / "options.json"
        assert b"allennlp" in run_elmo("info", path, "--options", options).stdout
        result = run_elmo("convert", path, tmp_path / "out", "--options", options, "--format", "bilm-tf")
        assert result.returncode == 0, result.stderr
        assert same(elmo.load(tmp_path / "out"), model_folder)

    def test_some_other_archive(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("README"), io.BytesIO())
        with pytest.raises(ElmoError, match=r"has no weights\.th: it is no archive of an AllenNLP model"):
            elmo.load(tmp_path / "x.tar.gz")
