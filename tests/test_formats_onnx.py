"""The exported graph, run by onnxruntime, against the network it was made from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import elmo
import manylangs64
from conftest import run_elmo, small_options
from elmo.config import ModelConfig
from elmo.errors import ElmoError
from elmo.formats import onnx as onnx_format
from elmo.formats.bundle import Bundle
from elmo.formats.onnx import CONFIG, export
from elmo.model import BiLM, BiLMOutput, State
from test_engine import random_bilm
from test_reference import options

onnx = pytest.importorskip("onnx", reason="needs the extra: pip install 'elmo[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

ROOT = Path(__file__).parents[1]
WORDS = ["a", "the", "", "日本", "x" * 47, "y" * 48, "z" * 60, "Straße", "'s"]


class Session:
    """A file, run by onnxruntime."""

    def __init__(self, path: Path, **settings: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        for name, value in settings.items():
            options.add_session_config_entry(f"session.{name}", value)
        self._session = onnxruntime.InferenceSession(path, options)

    def __call__(self, ids: Tensor, state: State) -> BiLMOutput:
        inputs = {"char_ids": ids.long().numpy(), "m": state.m.numpy(), "c": state.c.numpy()}
        outputs = self._session.run(["layers", "mask", "next_m", "next_c"], inputs)
        layers, mask, m, c = map(torch.from_numpy, outputs)
        return BiLMOutput(layers, mask, State(m, c))


def assert_same(ours: BiLMOutput, theirs: BiLMOutput, rtol: float = 0.0) -> None:
    torch.testing.assert_close(ours.layers, theirs.layers, atol=1e-5, rtol=rtol)
    torch.testing.assert_close(ours.state.m, theirs.state.m, atol=1e-5, rtol=rtol)
    # Cells add up over a whole sentence, unlike what comes out; they are as large as the clip.
    torch.testing.assert_close(ours.state.c, theirs.state.c, atol=5e-5, rtol=1e-5)
    assert torch.equal(ours.mask, theirs.mask)


def cosines(ours: BiLMOutput, theirs: BiLMOutput) -> Tensor:
    """Of each layer and token: `(L, N)`."""
    return torch.cosine_similarity(ours.layers[:, ours.mask], theirs.layers[:, theirs.mask], dim=-1)


def random_ids(bilm: BiLM, lengths: list[int], seed: int) -> Tensor:
    """Sentences of some of the words above, padded."""
    rng = np.random.default_rng(seed)
    config = bilm.config
    if config.char_cnn is None:
        assert config.n_words is not None
        rows = [torch.from_numpy(rng.integers(1, config.n_words + 1, n)) for n in lengths]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    model = elmo.Model.of(bilm)
    return model.batch_to_ids([[WORDS[i] for i in rng.integers(len(WORDS), size=n)] for n in lengths])


def random_state(config: ModelConfig, rows: int) -> State:
    shape = (config.lstm.n_layers, 2, rows)
    return State(torch.randn(*shape, config.lstm.projection_dim), torch.randn(*shape, config.lstm.dim))


@settings(max_examples=40)
@given(options(), st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), st.integers(0, 2**32 - 1))
def test_any_model_gives_the_networks_numbers(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], lengths: list[int], seed: int
) -> None:
    bilm = random_bilm(options, seed, scale=0.3)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export(Bundle.of(bilm), path)
    session, ids = Session(path), random_ids(bilm, lengths, seed)
    for state in (random_state(bilm.config, len(lengths)), random_state(bilm.config, 1), bilm.zero_state(1)):
        assert_same(session(ids, state), bilm(ids, state))


@pytest.mark.parametrize(
    ("change", "lstm"),
    [
        ({"n_characters": 261}, {}),
        ({"n_highway": 0}, {"n_layers": 1}),
        ({"activation": "tanh", "max_characters_per_token": 20}, {"use_skip_connections": False}),
        ({"n_highway": 2}, {"cell_clip": None, "proj_clip": None}),
        ({"filters": [[1, 2], [2, 3]]}, {"n_layers": 3, "cell_clip": 0.2, "proj_clip": 0.1}),
        ({}, {"dim": 5}),  # no projection
    ],
)
def test_so_does_each_kind_by_itself(tmp_path: Path, change: dict[str, Any], lstm: dict[str, Any]) -> None:
    options = small_options(**lstm)
    options["char_cnn"] |= change
    bilm = random_bilm(options, seed=1)
    export(Bundle.of(bilm), tmp_path / "m.onnx")
    ids, state = random_ids(bilm, [4, 0, 7], seed=2), random_state(bilm.config, 3)
    assert_same(Session(tmp_path / "m.onnx")(ids, state), bilm(ids, state))


@pytest.mark.parametrize("int8", [False, True])
def test_so_do_models_with_words_and_alphabets(tmp_path: Path, int8: bool) -> None:
    manylangs64.write(tmp_path / "manylangs")
    words = random_bilm({"lstm": small_options()["lstm"], "n_tokens_vocab": 7}, seed=3)
    for bilm in (elmo.load(tmp_path / "manylangs").bilm, words):
        export(Bundle.of(bilm), tmp_path / "m.onnx", int8=int8, overwrite=True)
        ids = torch.tensor([[3, 2, 7, 1], [5, 0, 0, 0]])
        if bilm.config.char_cnn is not None:
            ids = elmo.load(tmp_path / "manylangs").batch_to_ids(["cat tab 猫 unknown", "CAT"])
        ours, theirs = Session(tmp_path / "m.onnx")(ids, bilm.zero_state(1)), bilm(ids)
        if int8:
            assert cosines(ours, theirs).min() > 0.98
        else:
            assert_same(ours, theirs)


@pytest.fixture(scope="module")
def sentences() -> list[list[str]]:
    lines = (ROOT / "examples" / "held_out.tsv").read_text(encoding="utf-8").splitlines()
    found = [line.split("\t")[1].split() for line in lines]
    return [sentence for sentence in found if len(sentence) <= 40][:200]


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> tuple[elmo.Model, Path]:
    path = tmp_path_factory.mktemp("onnx") / "default.onnx"
    model = elmo.load()
    export(model, path)
    return model, path


def test_two_hundred_sentences_in_padded_batches(default: tuple[elmo.Model, Path], sentences: list[list[str]]) -> None:
    model, path = default
    assert len(sentences) == 200
    assert len(set(map(len, sentences))) > 30
    session = Session(path)
    carried, theirs = model.bilm.zero_state(40), model.bilm.zero_state(40)
    for start in range(0, 200, 40):
        batch = sentences[start : start + 40]
        ids = model.bilm.with_boundaries(model.batch_to_ids(batch))
        expected = model.bilm(ids, theirs)
        found = session(ids, carried)
        # Each side goes on from its own state, and some numbers are above 1: what differs grows with both.
        assert_same(found, expected, rtol=1e-5)
        carried, theirs = found.state, expected.state
        alone = session(ids, model.bilm.zero_state(1)).layers
        for row, vectors in enumerate(model.embed(batch, layers="all")):
            np.testing.assert_allclose(alone[:, row, 1 : 1 + len(batch[row])], vectors, atol=1e-5, rtol=0)


def test_int8_is_close_and_a_quarter_of_the_size(
    default: tuple[elmo.Model, Path], sentences: list[list[str]], tmp_path: Path
) -> None:
    model, path = default
    export(model, tmp_path / "int8.onnx", int8=True)
    assert (tmp_path / "int8.onnx").stat().st_size < 0.26 * path.stat().st_size
    ids = model.bilm.with_boundaries(model.batch_to_ids(sorted(sentences, key=len)[100:116]))
    session, start = Session(tmp_path / "int8.onnx"), model.bilm.zero_state(1)
    found, expected = session(ids, start), model.bilm(ids)
    assert cosines(found, expected).min() > 0.99
    assert (cosines(found, expected).mean(dim=1) > torch.tensor([0.9995, 0.999, 0.999])).all()
    # A scale a row: what a sentence gives does not depend on the others.
    torch.testing.assert_close(session(ids[:1], start).layers, found.layers[:, :1], atol=1e-5, rtol=0)
    unsigned = Session(tmp_path / "int8.onnx", x64quantprecision="1")
    torch.testing.assert_close(unsigned(ids, start).layers, found.layers, atol=1e-5, rtol=0)


def test_a_loop_has_its_weights_where_onnxruntime_makes_them_unsigned(tmp_path: Path) -> None:
    export(Bundle.of(random_bilm(small_options(), seed=0)), tmp_path / "m.onnx", int8=True)
    loops = [node.attribute for node in onnx.load(tmp_path / "m.onnx").graph.node if node.op_type == "Scan"]
    bodies = [attribute.g for attributes in loops for attribute in attributes if attribute.name == "body"]
    products = [(body, node) for body in bodies for node in body.node if node.op_type == "MatMulInteger"]
    assert len(products) == 2 * len(bodies) == 8
    assert all(node.input[1] in {weight.name for weight in body.initializer} for body, node in products)


def test_the_graph_is_valid_says_what_it_is_and_does_not_grow_with_the_text(default: tuple[elmo.Model, Path]) -> None:
    model, path = default
    graph = onnx.load(path)
    onnx.checker.check_model(graph, full_check=True)
    assert [node.op_type for node in graph.graph.node].count("Scan") == 2 * model.config.lstm.n_layers
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.graph.input, *graph.graph.output)
    }
    assert shapes["char_ids"] == ["B", "T", 50]
    assert shapes["layers"] == [3, "B", "T", 768]
    (config,) = [json.loads(pair.value) for pair in graph.metadata_props if pair.key == CONFIG]
    assert ModelConfig.from_options(config) == model.config


def test_the_example_prints_the_models_vectors_without_it(default: tuple[elmo.Model, Path]) -> None:
    model, path = default
    check = "import runpy, sys; runpy.run_path(sys.argv.pop(1)); assert not {'torch', 'elmo'} & sys.modules.keys()"
    script = ROOT / "examples" / "onnx_without_elmo.py"
    done = subprocess.run([sys.executable, "-c", check, script, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert " ".join(word for word, _ in printed) == "We sat on the bank of the river ."
    numbers = [[float(number) for number in rest.strip(" []").split()] for _, rest in printed]
    (vectors,) = model.embed(["We sat on the bank of the river ."])
    np.testing.assert_allclose(numbers, vectors[:, :4], atol=6e-5)
    assert len(script.read_text(encoding="utf-8").split('"""', 2)[2].strip().splitlines()) <= 22


class TestCommand:
    def test_writes_a_file_and_says_how_large(self, model_folder: Path, tmp_path: Path) -> None:
        for flags in ([], ["--int8", "--overwrite"]):
            done = run_elmo("export", model_folder, tmp_path / "m.onnx", *flags)
            assert done.returncode == 0, done.stderr
            assert done.stdout.decode().startswith(f"{tmp_path / 'm.onnx'}: ")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "model"]

    def test_what_is_there_stays(self, model_folder: Path, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_text("mine")
        for target, message in (("m.onnx", b"--overwrite"), ("model", b"is a folder"), ("no/m.onnx", b"cannot write")):
            done = run_elmo("export", model_folder, tmp_path / target)
            assert done.returncode == 2
            assert message in done.stderr
        assert (tmp_path / "m.onnx").read_text() == "mine"


def test_more_than_two_gigabytes_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_format, "_MOST_BYTES", 10_000)
    bundle = Bundle.of(random_bilm(small_options(), seed=0))
    with pytest.raises(ElmoError, match=r"ends at 2 GiB; int8 \(--int8\) takes a quarter"):
        export(bundle, tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []


def test_a_missing_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnx", "onnx.helper"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ElmoError, match=r"pip install 'elmo\[onnx\]'"):
        export(Bundle.of(random_bilm(small_options(), seed=0)), tmp_path / "m.onnx")
