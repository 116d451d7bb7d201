from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import elmo
from conftest import small_options, weight_shapes, write_model
from elmo.config import ModelConfig
from elmo.engine import compiled
from elmo.errors import ElmoError
from elmo.formats import Format
from elmo.formats.native import Dtype
from elmo.lm.softmax import AdaptiveHead, SoftmaxHead
from elmo.model import ScalarMix
from elmo.vocab import Vocabulary

SENTENCES = ["the cat sat", "", "on the mat"]


def read_weights(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda n, o: found.update({n: o[...]}) if isinstance(o, h5py.Dataset) else None)
    return found


def same_vectors(one: elmo.Model, other: elmo.Model) -> bool:
    pairs = zip(one.embed(SENTENCES, layers="all"), other.embed(SENTENCES, layers="all"), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


KINDS: list[dict[str, Any]] = [
    small_options(),
    small_options(n_layers=1),
    small_options(projection_dim=12, use_skip_connections=False),
    small_options(projection_dim=12) | {"char_cnn": small_options()["char_cnn"] | {"filters": [[2, 12]]}},
    {"lstm": small_options()["lstm"], "n_tokens_vocab": 4},
]


@pytest.mark.parametrize("options", KINDS)
def test_bilm_tf_to_native_to_bilm_tf_changes_no_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    weights = write_model(tmp_path / "a", options)
    if "char_cnn" not in options:
        (tmp_path / "a" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ncat\n")
    first = elmo.load(tmp_path / "a")
    elmo.save(first, tmp_path / "b")
    second = elmo.load(tmp_path / "b")
    elmo.save(second, tmp_path / "c", format="bilm-tf")
    again = read_weights(tmp_path / "c" / "weights.hdf5")
    assert again.keys() == weights.keys()
    for name, value in weights.items():
        assert again[name].dtype == np.float32
        assert again[name].tobytes() == value.tobytes()
    assert second.config == first.config == elmo.load(tmp_path / "c").config
    assert same_vectors(first, second)
    assert same_vectors(first, elmo.load(tmp_path / "c"))


class TestWhereAModelIs:
    def test_a_folder_with_options_and_one_hdf5_of_any_name(self, model_folder: Path) -> None:
        (model_folder / "weights.hdf5").rename(model_folder / "elmo_2x12.h5")
        (model_folder / "options.json").rename(model_folder / "elmo_2x12_options.json")
        assert elmo.load(model_folder).source == "bilm-tf"

    def test_the_hdf5_itself_with_its_options_elsewhere(self, model_folder: Path, tmp_path: Path) -> None:
        shutil.move(model_folder / "options.json", tmp_path / "o.json")
        assert elmo.load(str(model_folder / "weights.hdf5"), options=str(tmp_path / "o.json")).config.dim == 10

    def test_a_file_inside_a_native_folder_means_the_folder(self, model_folder: Path, tmp_path: Path) -> None:
        elmo.save(elmo.load(model_folder), tmp_path / "n")
        assert elmo.load(tmp_path / "n" / "model.safetensors").source == "native"
        with pytest.raises(ElmoError, match="has its own options and vocabulary"):
            elmo.load(tmp_path / "n", vocab=tmp_path / "v")

    def test_options_without_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="give its path"):
            elmo.load(options=tmp_path / "options.json")

    def test_a_model_of_characters_does_without_a_damaged_vocabulary(self, model_folder: Path) -> None:
        (model_folder / "vocab.txt").write_text("just\nwords\n")
        assert elmo.load(model_folder).vocab is None

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match=r"there is no model at .*nowhere"):
            elmo.load(tmp_path / "nowhere")

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="has no HDF5 file: known are a native folder"):
            elmo.load(tmp_path)

    def test_several_hdf5_files(self, model_folder: Path) -> None:
        shutil.copy(model_folder / "weights.hdf5", model_folder / "other.hdf5")
        with pytest.raises(ElmoError, match=r"more than one HDF5 file \(other.hdf5, weights.hdf5\)"):
            elmo.load(model_folder)

    def test_no_options(self, model_folder: Path) -> None:
        (model_folder / "options.json").unlink()
        with pytest.raises(ElmoError, match=r"has no options\.json"):
            elmo.load(model_folder)

    def test_the_embedded_model_is_the_default(self) -> None:
        assert elmo.load().source == "native"
        assert elmo.load("default").config == elmo.load().config

    def test_a_folder_of_that_name_goes_before_the_embedded_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "default").mkdir()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ElmoError, match="default has no HDF5 file"):
            elmo.load("default")


class TestDamagedHdf5:
    def test_not_hdf5(self, model_folder: Path) -> None:
        (model_folder / "weights.hdf5").write_bytes(b"not weights")
        with pytest.raises(ElmoError, match=r"weights\.hdf5 is not an HDF5 file"):
            elmo.load(model_folder)

    def test_truncated(self, model_folder: Path) -> None:
        path = model_folder / "weights.hdf5"
        path.write_bytes(path.read_bytes()[:-500])
        with pytest.raises(ElmoError, match="damaged HDF5 file"):
            elmo.load(model_folder)

    def test_a_missing_weight_is_named(self, model_folder: Path) -> None:
        with h5py.File(model_folder / "weights.hdf5", "a") as file:
            del file["CNN_proj/b_proj"]
        with pytest.raises(ElmoError, match="lacks CNN_proj/b_proj"):
            elmo.load(model_folder)

    def test_an_extra_weight_is_named(self, model_folder: Path) -> None:
        with h5py.File(model_folder / "weights.hdf5", "a") as file:
            file["softmax/W"] = np.zeros(3)
        with pytest.raises(ElmoError, match="has unexpected softmax/W"):
            elmo.load(model_folder)

    def test_a_mis_shaped_weight_is_named_with_both_shapes(self, model_folder: Path) -> None:
        options = small_options(dim=13)
        (model_folder / "options.json").write_text(json.dumps(options))
        with pytest.raises(ElmoError, match=r"LSTMCell/W_0 has shape \(10, 48\), the options say \(10, 52\)"):
            elmo.load(model_folder)

    def test_options_of_another_architecture(self, model_folder: Path) -> None:
        options = small_options(n_layers=3)
        (model_folder / "options.json").write_text(json.dumps(options))
        with pytest.raises(ElmoError, match=r"lacks .*Cell2.* the weights do not fit the options"):
            elmo.load(model_folder)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_nan_and_infinity_are_refused_by_name(self, model_folder: Path, value: float) -> None:
        with h5py.File(model_folder / "weights.hdf5", "a") as file:
            file["CNN/b_cnn_1"][2] = value
        with pytest.raises(ElmoError, match="CNN/b_cnn_1 holds NaN or infinity"):
            elmo.load(model_folder)

    def test_links_out_of_the_file_are_not_followed(self, model_folder: Path, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "secret.hdf5", "w") as file:
            file["b"] = np.zeros(4, dtype=np.float32)
        with h5py.File(model_folder / "weights.hdf5", "a") as file:
            del file["CNN/b_cnn_0"]
            file["CNN/b_cnn_0"] = h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "b")
        with pytest.raises(ElmoError, match="CNN/b_cnn_0 is a link to another file: it is not followed"):
            elmo.load(model_folder)

    def test_weights_that_are_not_numbers(self, model_folder: Path) -> None:
        with h5py.File(model_folder / "weights.hdf5", "a") as file:
            del file["CNN/b_cnn_0"]
            file["CNN/b_cnn_0"] = np.arange(4)
        with pytest.raises(ElmoError, match="CNN/b_cnn_0 is not a plain table of floating-point numbers"):
            elmo.load(model_folder)

    @settings(max_examples=150)
    @given(data=st.data())
    def test_a_file_with_any_bytes_changed_loads_or_is_refused(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("fuzz")
        write_model(folder, small_options(dim=5, projection_dim=2))
        content = bytearray((folder / "weights.hdf5").read_bytes())
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=20)):
            content[place] = data.draw(st.integers(0, 255))
        (folder / "weights.hdf5").write_bytes(content)
        try:
            elmo.load(folder)
        except ElmoError as error:
            assert "weights.hdf5" in str(error)  # noqa: PT017 - either outcome is right


class TestNative:
    @pytest.fixture
    def native(self, model_folder: Path, tmp_path: Path) -> Path:
        elmo.save(elmo.load(model_folder), tmp_path / "native")
        return tmp_path / "native"

    def test_it_carries_the_warm_state_the_mix_and_the_card(self, model_folder: Path, tmp_path: Path) -> None:
        mix = ScalarMix(3)
        with torch.no_grad():
            mix.weights.copy_(torch.tensor([1.0, 2.0, 3.0]))
        plain = elmo.load(model_folder)
        model = elmo.Model.of(plain.bilm, mix=mix, card="# Mine\n").warmed(["some text", "and more"])
        elmo.save(model, tmp_path / "n")
        again = elmo.load(tmp_path / "n")
        assert again.card == "# Mine\n"
        for options in ({"state": "warm"}, {"layers": "mix"}):
            for ours, theirs in zip(
                model.embed(SENTENCES, **options),  # type: ignore[arg-type]
                again.embed(SENTENCES, **options),  # type: ignore[arg-type]
                strict=True,
            ):
                assert np.array_equal(ours, theirs)

    def test_half_precision_weights_are_read(self, native: Path) -> None:
        halves = {name: value.half() for name, value in load_file(native / "model.safetensors").items()}
        expected = elmo.load(native).embed(SENTENCES)
        save_file(halves, native / "model.safetensors")
        for ours, theirs in zip(elmo.load(native).embed(SENTENCES), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-2)

    def test_another_version_is_refused(self, native: Path) -> None:
        config = json.loads((native / "config.json").read_text())
        (native / "config.json").write_text(json.dumps(config | {"version": 2}))
        with pytest.raises(ElmoError, match="version 2; this release of elmo reads format 'elmo', version 1"):
            elmo.load(native)

    @pytest.mark.parametrize(("parts", "message"), [(["wings"], "names the part 'wings'"), (5, "a list is expected")])
    def test_an_unknown_part_is_refused(self, native: Path, parts: object, message: str) -> None:
        config = json.loads((native / "config.json").read_text())
        (native / "config.json").write_text(json.dumps(config | {"parts": parts}))
        with pytest.raises(ElmoError, match=message):
            elmo.load(native)

    def test_missing_extra_and_mis_shaped_weights_are_named(self, native: Path) -> None:
        weights = load_file(native / "model.safetensors")
        name = "bilm.forwards.0.kernel"
        for changed, message in (
            ({k: v for k, v in weights.items() if k != name}, f"lacks {name}"),
            (weights | {"extra": torch.zeros(1)}, "has unexpected extra"),
            (weights | {name: torch.zeros(2, 2)}, rf"{name} has shape \(2, 2\)"),
            (weights | {name: torch.full_like(weights[name], torch.nan)}, f"{name} holds NaN"),
            (weights | {name: weights[name].int()}, f"{name} is of type I32"),
        ):
            save_file(changed, native / "model.safetensors")
            with pytest.raises(ElmoError, match=message):
                elmo.load(native)

    def test_a_truncated_file_is_named(self, native: Path) -> None:
        path = native / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(ElmoError, match=r"model\.safetensors is not a whole safetensors file"):
            elmo.load(native)


DTYPES: list[Dtype] = ["float32", "bfloat16", "float16", "int8"]


class TestStoredPrecisions:
    @pytest.fixture
    def model(self) -> elmo.Model:
        """Every part there is: a head, a warm start state, a mix."""
        torch.manual_seed(0)
        bilm = elmo.BiLM(ModelConfig.from_options(small_options(dim=40, projection_dim=20))).eval()
        words = Vocabulary(("<S>", "</S>", "<UNK>", *(f"w{i}" for i in range(60))))
        head = SoftmaxHead(len(words), 20).eval().requires_grad_(False)
        return elmo.Model.of(bilm, head=head, vocab=words, mix=ScalarMix(3)).warmed(["some text", "and more"])

    @pytest.mark.parametrize("options", KINDS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_kind_of_model_comes_back_close(self, tmp_path: Path, options: dict[str, Any], dtype: Dtype) -> None:
        write_model(tmp_path / "a", options, scale=0.3)
        if "char_cnn" not in options:
            (tmp_path / "a" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ncat\n")
        model = elmo.load(tmp_path / "a")
        elmo.save(model, tmp_path / "b", dtype=dtype)
        again = elmo.load(tmp_path / "b")
        assert again.stored is not None
        assert again.stored.dtype == dtype
        for ours, theirs in zip(again.embed(SENTENCES), model.embed(SENTENCES), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=0 if dtype == "float32" else 0.05)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("max_file_mb", [None, 0.05])
    def test_loaded_and_saved_again_it_has_the_same_bytes(
        self, model: elmo.Model, tmp_path: Path, dtype: Dtype, max_file_mb: float | None
    ) -> None:
        elmo.save(model, tmp_path / "a", dtype=dtype, max_file_mb=max_file_mb)
        elmo.save(elmo.load(tmp_path / "a"), tmp_path / "b", dtype=dtype, max_file_mb=max_file_mb)
        names = sorted(path.name for path in (tmp_path / "a").iterdir())
        assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
        for name in names:
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()

    def test_small_weights_keep_their_bits(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "m", dtype="int8")
        again = elmo.load(tmp_path / "m")
        assert again.warm is not None
        assert model.warm is not None
        assert isinstance(again.head, SoftmaxHead)
        assert isinstance(model.head, SoftmaxHead)
        assert torch.equal(again.warm.c, model.warm.c)
        assert torch.equal(again.head.bias, model.head.bias)
        for name in ("encoder.characters.weight", "forwards.0.bias", "encoder.highways.0.carry.bias"):
            assert torch.equal(again.network.read(name), model.network.read(name))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_are_read_by_themselves(self, model: elmo.Model, tmp_path: Path, dtype: Dtype) -> None:
        elmo.save(model, tmp_path / "m", dtype=dtype)
        stored = elmo.load(tmp_path / "m").network
        for name in ("forwards.0.kernel", "forwards.1.projection", "encoder.projection.weight"):
            whole = stored.read(name)
            for start in range(len(whole)):
                for stop in (start, start + 1, len(whole) // 2, len(whole)):
                    assert torch.equal(stored.read(name, slice(start, stop)), whole[start:stop])

    def test_a_quantised_kernel_has_a_scale_for_each_half_of_a_column(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "m", dtype="int8")
        weights = load_file(tmp_path / "m" / "model.safetensors")
        values, scale = weights["bilm.forwards.0.kernel"], weights["bilm.forwards.0.kernel.scale"]
        assert (values.dtype, scale.dtype) == (torch.int8, torch.float32)
        halves = values.view(2, 20, 160)
        assert bool((halves.abs().amax(dim=1) == 127).all())
        read = elmo.load(tmp_path / "m").network.read("forwards.0.kernel")
        assert torch.equal(read.view(2, 20, 160), halves * scale[:, None])

    @pytest.mark.skipif(not compiled.compiled("int8"), reason="the kernels are not built, or not for this CPU")
    @pytest.mark.parametrize(
        ("name", "rows", "scales"),
        [
            ("forwards.0.projection", slice(0, 40), 0),
            ("forwards.0.kernel", slice(0, 20), 0),
            ("forwards.0.kernel", slice(20, 40), 1),
        ],
    )
    def test_the_int8_engine_takes_stored_integers_and_scales_as_they_are(
        self, model: elmo.Model, tmp_path: Path, name: str, rows: slice, scales: int
    ) -> None:
        elmo.save(model, tmp_path / "m", dtype="int8")
        weights = load_file(tmp_path / "m" / "model.safetensors")
        values, scale = weights[f"bilm.{name}"][rows], weights[f"bilm.{name}.scale"][scales]
        packed = compiled._pack(elmo.load(tmp_path / "m").network.read(name, rows), None, "int8")
        assert packed._scales is not None
        assert torch.equal(packed._scales[: len(scale)], scale)
        columns = packed._data.permute(1, 3, 0, 2).flatten(2).flatten(0, 1)
        assert torch.equal(columns[: len(values), : len(scale)], values)

    def test_an_unknown_precision_is_refused_on_both_sides(self, model: elmo.Model, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="dtype is 'int4': give one of float32, bfloat16, float16, int8"):
            elmo.save(model, tmp_path / "m", dtype="int4")  # type: ignore[arg-type]
        elmo.save(model, tmp_path / "m")
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"dtype": "int4"}))
        with pytest.raises(ElmoError, match="stored as 'int4'; this release of elmo reads float32, bfloat16"):
            elmo.load(tmp_path / "m")

    def test_a_folder_from_before_that_does_not_say_its_precision_opens(
        self, model: elmo.Model, tmp_path: Path
    ) -> None:
        elmo.save(model, tmp_path / "m")
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        del config["dtype"], config["files"]
        (tmp_path / "m" / "config.json").write_text(json.dumps(config))
        assert same_vectors(elmo.load(tmp_path / "m"), model)

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_nan_and_infinity_are_refused_by_name(
        self, model: elmo.Model, tmp_path: Path, dtype: Dtype, value: float
    ) -> None:
        with torch.no_grad():
            model.bilm.get_parameter("forwards.1.kernel")[3, 4] = value
        with pytest.raises(ElmoError, match=r"the model: bilm\.forwards\.1\.kernel holds NaN or infinity"):
            elmo.save(model, tmp_path / "m", dtype=dtype)
        assert not (tmp_path / "m").exists()

    @pytest.mark.parametrize("format", ["native", "bilm-tf"])
    def test_a_model_is_not_replaced_by_one_that_nobody_could_load(
        self, model: elmo.Model, tmp_path: Path, format: Format
    ) -> None:
        model = replace(model, warm=None, mix=None, head=None)
        elmo.save(model, tmp_path / "m", format=format)
        with torch.no_grad():
            model.bilm.get_parameter("forwards.1.bias")[3] = math.nan
        with pytest.raises(ElmoError, match="holds NaN or infinity"):
            elmo.save(model, tmp_path / "m", format=format, overwrite=True)
        elmo.load(tmp_path / "m")

    def test_what_half_precision_cannot_hold_is_refused(self, model: elmo.Model, tmp_path: Path) -> None:
        with torch.no_grad():
            model.bilm.get_parameter("forwards.1.kernel")[3, 4] = 70_000.0
        with pytest.raises(ElmoError, match="numbers that are too large"):
            elmo.save(model, tmp_path / "m", dtype="float16")
        elmo.save(model, tmp_path / "m", dtype="bfloat16")

    def test_bilm_tf_has_no_other_precision(self, model: elmo.Model, tmp_path: Path) -> None:
        for options in ({"dtype": "int8"}, {"max_file_mb": 45}):
            with pytest.raises(ElmoError, match="bilm-tf is one file of float32"):
                elmo.save(model, tmp_path / "m", format="bilm-tf", **options)

    def test_damaged_scales_and_integers_are_refused_by_name(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "m", dtype="int8")
        path = tmp_path / "m" / "model.safetensors"
        weights = load_file(path)
        name = "bilm.forwards.0.kernel"
        scale = weights[name + ".scale"]
        for changed, message in (
            ({k: v for k, v in weights.items() if k != name + ".scale"}, f"lacks {name}.scale"),
            (weights | {name + ".scale": scale[:1]}, rf"{name}.scale has shape \(1, 160\)"),
            (weights | {name + ".scale": scale * torch.nan}, f"{name}.scale holds NaN"),
            (weights | {name + ".scale": scale * 0}, f"{name}.scale holds numbers that are no scales"),
            (weights | {name + ".scale": -scale}, f"{name}.scale holds numbers that are no scales"),
            (weights | {name + ".scale": torch.full_like(scale, 3e38)}, f"{name}.scale holds numbers that are no"),
            (weights | {name + ".scale": scale.to(torch.int8)}, f"{name}.scale is of type int8; floating-point"),
            (weights | {name: weights[name].float()}, f"{name} is of type float32; int8 are expected"),
        ):
            save_file(changed, path)
            with pytest.raises(ElmoError, match=message):
                elmo.load(tmp_path / "m")

    def test_integers_where_none_are_announced_are_refused(self, model: elmo.Model, tmp_path: Path) -> None:
        elmo.save(model, tmp_path / "m")
        path = tmp_path / "m" / "model.safetensors"
        weights = load_file(path)
        save_file(weights | {"head.weight": weights["head.weight"].to(torch.int8)}, path)
        with pytest.raises(ElmoError, match=r"head\.weight is of type int8; floating-point numbers are expected"):
            elmo.load(tmp_path / "m")


@pytest.mark.parametrize("kind", ["full", "adaptive"])
def test_loading_a_head_does_not_wait_for_pytorchs_compiler(tmp_path: Path, kind: str) -> None:
    words = Vocabulary(("<S>", "</S>", "<UNK>", *(f"w{i}" for i in range(60))))
    head = SoftmaxHead(63, 20) if kind == "full" else AdaptiveHead(63, 20, [10, 30])
    bilm = elmo.BiLM(ModelConfig.from_options(small_options(dim=40, projection_dim=20)))
    elmo.save(elmo.Model.of(bilm, head=head, vocab=words), tmp_path / "m", dtype="int8")
    code = "import elmo, sys; elmo.load(sys.argv[1]).bilm; print('torch._dynamo' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code, str(tmp_path / "m")], text=True) == "False\n"


class TestSeveralFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        write_model(tmp_path / "hdf5", small_options(dim=60, projection_dim=20))
        elmo.save(elmo.load(tmp_path / "hdf5"), tmp_path / "m", dtype="int8", max_file_mb=0.02)
        return tmp_path / "m"

    def test_none_is_larger_than_asked(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors"))
        assert [path.name for path in files] == [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, 6)]
        assert max(path.stat().st_size for path in files) <= 20_000

    def test_the_model_is_that_of_one_file(self, folder: Path, tmp_path: Path) -> None:
        elmo.save(elmo.load(tmp_path / "hdf5"), tmp_path / "one", dtype="int8")
        assert same_vectors(elmo.load(folder), elmo.load(tmp_path / "one"))
        assert elmo.load(folder / "model-00002-of-00005.safetensors").source == "native"

    def test_what_fits_into_one_is_in_one(self, tmp_path: Path, folder: Path) -> None:
        elmo.save(elmo.load(folder), tmp_path / "one", max_file_mb=1)
        assert [path.name for path in (tmp_path / "one").glob("*.safetensors")] == ["model.safetensors"]

    def test_such_a_folder_is_replaced_as_a_whole(self, folder: Path, tmp_path: Path) -> None:
        elmo.save(elmo.load(tmp_path / "hdf5"), folder, overwrite=True)
        assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]

    @pytest.mark.parametrize(
        ("max_file_mb", "message"),
        [
            (0.01, r"bilm\.forwards\.0\.kernel alone takes .* MB; give more, or a smaller dtype"),
            (0, "give a number above 0"),
            (float("nan"), "give a number above 0"),
        ],
    )
    def test_a_limit_that_cannot_be_kept_is_refused(
        self, folder: Path, tmp_path: Path, max_file_mb: float, message: str
    ) -> None:
        with pytest.raises(ElmoError, match=message):
            elmo.save(elmo.load(folder), tmp_path / "out", dtype="int8", max_file_mb=max_file_mb)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("count", [0, -1, 1000, 2.0, True, "4", ["../secret.safetensors"], None])
    def test_the_number_of_files_is_a_number(self, folder: Path, count: object) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"files": count}))
        with pytest.raises(ElmoError, match=r"files is .* a number from 1 to 999 is expected"):
            elmo.load(folder)

    def test_a_file_that_is_missing_is_named(self, folder: Path) -> None:
        (folder / "model-00003-of-00005.safetensors").unlink()
        with pytest.raises(ElmoError, match=r"cannot read .*model-00003-of-00005\.safetensors"):
            elmo.load(folder)

    def test_a_weight_in_two_files_is_refused(self, folder: Path) -> None:
        first, second = (folder / f"model-0000{i}-of-00005.safetensors" for i in (1, 2))
        save_file(load_file(second) | {"bilm.encoder.projection.bias": torch.zeros(20)}, second)
        message = r"model-00002-of-00005\.safetensors has bilm\.encoder\.projection\.bias, and so has model-00001"
        with pytest.raises(ElmoError, match=message):
            elmo.load(folder)
        assert first.exists()

    def test_a_weight_is_in_the_file_of_its_scales(self, folder: Path) -> None:
        first, second = (folder / f"model-0000{i}-of-00005.safetensors" for i in (1, 2))
        weights, name = load_file(first), "bilm.encoder.projection.weight.scale"
        save_file(load_file(second) | {name: weights.pop(name)}, second)
        save_file(weights, first)
        with pytest.raises(ElmoError, match=rf"weight is in another file than {name}"):
            elmo.load(folder)

    def test_a_name_twice_in_one_header_is_refused(self, folder: Path) -> None:
        path = folder / "model-00001-of-00005.safetensors"
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = content[8 : 8 + length].rstrip()
        row = json.dumps(json.loads(header)["bilm.encoder.projection.bias"])
        header = header[:-1] + f',"bilm.encoder.projection.bias":{row}}}'.encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
        with pytest.raises(ElmoError, match=r"model-00001-of-00005\.safetensors .* a name stands twice in its header"):
            elmo.load(folder)

    @settings(max_examples=150)
    @given(data=st.data())
    def test_files_with_any_bytes_changed_load_or_are_refused(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("fuzz")
        bilm = elmo.BiLM(ModelConfig.from_options(small_options(dim=5, projection_dim=2)))
        elmo.save(elmo.Model.of(bilm), folder / "m", dtype="int8", max_file_mb=0.02)
        path = data.draw(st.sampled_from(sorted((folder / "m").glob("*.safetensors"))))
        content = bytearray(path.read_bytes())
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=20)):
            content[place] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try:
            elmo.load(folder / "m").embed(SENTENCES)
        except ElmoError as error:
            assert str(folder) in str(error)  # noqa: PT017 - either outcome is right


class TestSaving:
    def test_an_existing_folder_is_kept_unless_told_otherwise(self, model_folder: Path, tmp_path: Path) -> None:
        model = elmo.load(model_folder)
        elmo.save(model, tmp_path / "out")
        with pytest.raises(ElmoError, match="exists"):
            elmo.save(model, tmp_path / "out")
        elmo.save(model, tmp_path / "out", format="bilm-tf", overwrite=True)
        assert elmo.load(tmp_path / "out").source == "bilm-tf"
        assert not (tmp_path / "out" / "config.json").exists()

    def test_a_folder_of_other_things_is_never_replaced(self, model_folder: Path, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.jpg").touch()
        with pytest.raises(ElmoError, match="holds something else than a model"):
            elmo.save(elmo.load(model_folder), tmp_path / "photos", overwrite=True)

    def test_a_model_folder_with_other_files_in_it_is_not_replaced_either(
        self, model_folder: Path, tmp_path: Path
    ) -> None:
        elmo.save(elmo.load(model_folder), tmp_path / "out")
        (tmp_path / "out" / "thesis.tex").touch()
        with pytest.raises(ElmoError, match=r"holds something else than a model \(thesis\.tex\)"):
            elmo.save(elmo.load(model_folder), tmp_path / "out", overwrite=True)

    def test_a_link_stays_a_link(self, model_folder: Path, tmp_path: Path) -> None:
        elmo.save(elmo.load(model_folder), tmp_path / "real")
        (tmp_path / "link").symlink_to(tmp_path / "real")
        elmo.save(elmo.load(model_folder), tmp_path / "link", format="bilm-tf", overwrite=True)
        assert (tmp_path / "link").is_symlink()
        assert elmo.load(tmp_path / "real").source == "bilm-tf"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model", "real"]

    def test_what_bilm_tf_has_no_place_for_is_said(self, model_folder: Path, tmp_path: Path) -> None:
        plain = elmo.load(model_folder)
        vocab = Vocabulary(["<S>", "</S>", "<UNK>", "cat"])
        full = replace(
            plain.warmed(["the cat sat"]),
            mix=ScalarMix(3),
            head=SoftmaxHead(len(vocab), plain.config.lstm.projection_dim),
            vocab=vocab,
        )
        elmo.save(full, tmp_path / "native")  # has a place for all of it, and a warning is an error in tests
        with pytest.warns(UserWarning, match="bilm-tf has no place for the") as warned:
            elmo.save(full, tmp_path / "out", format="bilm-tf")
        names = [str(one.message).split("the ")[1].split(";")[0] for one in warned]
        assert names == ["warm start state", "learned mix", "language model head"]
        assert {one.filename for one in warned} == {__file__}  # the line that saves, not one of ours
        assert same_vectors(plain, elmo.load(tmp_path / "out"))
        elmo.save(replace(full, warm=None, mix=None, head=None), tmp_path / "bare", format="bilm-tf")

    def test_an_unknown_format_is_refused(self, model_folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ElmoError, match="format is 'pickle': give one of native, bilm-tf"):
            elmo.save(elmo.load(model_folder), tmp_path / "out", format="pickle")  # type: ignore[arg-type]

    def test_a_failed_write_leaves_nothing_and_the_old_model(
        self, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = elmo.load(model_folder)
        elmo.save(model, tmp_path / "out")

        def full(*_: object) -> None:
            raise SafetensorError("No space left on device")

        monkeypatch.setattr("elmo.formats.native.save_file", full)
        with pytest.raises(ElmoError, match=r"cannot write .*out: No space left on device"):
            elmo.save(model, tmp_path / "out", overwrite=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]
        assert same_vectors(elmo.load(tmp_path / "out"), model)

    def test_saving_over_the_folder_it_was_loaded_from(self, model_folder: Path, tmp_path: Path) -> None:
        elmo.save(elmo.load(model_folder), tmp_path / "out")
        elmo.save(elmo.load(tmp_path / "out").warmed(["a b"]), tmp_path / "out", overwrite=True)
        assert elmo.load(tmp_path / "out").warm is not None


def test_a_vocabulary_must_fit_the_word_table(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"lstm": small_options()["lstm"], "n_tokens_vocab": 4})
    model = elmo.load(tmp_path / "m")
    with pytest.raises(ElmoError, match="give its vocabulary"):
        model.embed(["cat"])
    (tmp_path / "v").write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(ElmoError, match="the vocabulary has 3 words, the model's word table 4"):
        elmo.load(tmp_path / "m", vocab=tmp_path / "v")
    (tmp_path / "v").write_text("cat\n<S>\n</S>\n<UNK>\n")
    with pytest.raises(ElmoError, match="must begin with <S> and </S>"):
        elmo.load(tmp_path / "m", vocab=tmp_path / "v")


def test_a_word_model_whose_options_do_not_say_its_size_is_read_from_its_table(tmp_path: Path) -> None:
    options = {"lstm": small_options()["lstm"], "n_tokens_vocab": 4}
    write_model(tmp_path / "m", options)
    del options["n_tokens_vocab"]
    (tmp_path / "m" / "options.json").write_text(json.dumps(options))
    assert elmo.load(tmp_path / "m").config.n_words == 4


def test_the_drawn_models_of_these_tests_have_every_documented_name() -> None:
    names = weight_shapes(small_options())
    assert "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0" in names
    assert "RNN_0/RNN/LSTMCell/B" in weight_shapes(small_options(n_layers=1))


def test_weights_are_read_where_a_system_cannot_read_from_a_place(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""
    elmo.save(elmo.load(model_folder), tmp_path / "m")
    expected = elmo.load(tmp_path / "m").embed(["the cat"])[0]
    monkeypatch.delattr(os, "preadv")
    model = elmo.load(tmp_path / "m")
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(model.network.read, ["forwards.0.kernel", "backwards.1.projection"] * 8))
    for name, weight in zip(["forwards.0.kernel", "backwards.1.projection"] * 8, read, strict=True):
        assert torch.equal(weight, model.bilm.get_parameter(name))
    assert np.array_equal(model.embed(["the cat"])[0], expected)
