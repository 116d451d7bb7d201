"""Each engine against the reference network."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import elmo
from conftest import small_options
from elmo.chars import words_to_ids
from elmo.config import ModelConfig
from elmo.engine import ReferenceEngine, gates, make_engine
from elmo.engine import cpu as cpu_engine
from elmo.engine.cpu import CpuEngine, supported
from elmo.errors import ElmoError
from elmo.model import BiLM, State
from test_reference import options

WORDS = ["a", "the", "<S>", "</S>", "", "日本", "x" * 47, "y" * 48, "z" * 60, "Straße", "'s"]
PRECISIONS = [p for p in ("fp32", "bf16", "int8") if supported(p)]


def random_bilm(options: dict[str, Any], seed: int, scale: float = 0.5) -> BiLM:
    torch.manual_seed(seed)
    bilm = BiLM(ModelConfig.from_options(options)).eval().requires_grad_(False)
    for weight in bilm.parameters():
        weight.normal_(0, scale)
    return bilm


def random_batch(bilm: BiLM, lengths: list[int], longest: int) -> tuple[Tensor, Tensor, State]:
    config = bilm.config.lstm
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    shape = (config.n_layers, 2, len(lengths))
    state = State(torch.randn(*shape, config.projection_dim), torch.randn(*shape, config.dim))
    return torch.randn(len(lengths), longest, config.projection_dim), mask, state


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@settings(max_examples=60)
@given(
    options(),
    st.lists(st.integers(0, 7), min_size=1, max_size=12),
    st.integers(0, 2**32 - 1),
    st.data(),
)
def test_the_fast_lstms_are_the_references_in_float32(
    options: dict[str, Any], lengths: list[int], seed: int, data: st.DataObject
) -> None:
    bilm = random_bilm(options, seed)
    layers = data.draw(st.none() | st.lists(st.integers(0, bilm.config.n_layers - 1), min_size=1, max_size=4))
    x, mask, state = random_batch(bilm, lengths, longest=max(lengths) + data.draw(st.integers(0, 2)))
    engine = CpuEngine(bilm, "fp32")
    for start in (None, state):
        ours, theirs = (who.contextualise(x, mask, start, layers=layers) for who in (engine, bilm))
        torch.testing.assert_close(ours.layers, theirs.layers, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.state.m, theirs.state.m, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.state.c, theirs.state.c, atol=1e-5, rtol=0)
        assert torch.equal(ours.mask, theirs.mask)


@settings(max_examples=40)
@given(options(), st.lists(st.text(max_size=60) | st.sampled_from(WORDS), max_size=20), st.integers(0, 2**32 - 1))
def test_the_fast_encoder_is_the_references_in_float32(options: dict[str, Any], words: list[str], seed: int) -> None:
    bilm = random_bilm(options, seed)
    if bilm.config.char_cnn is None:
        ids = torch.arange(0, bilm.config.n_words or 0)
    else:
        ids = torch.from_numpy(words_to_ids(words, bilm.config.char_cnn.max_characters_per_token))
    torch.testing.assert_close(CpuEngine(bilm, "fp32").encode(ids), bilm.encoder(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_is_close_with_one_thread_and_with_two(precision: Any, threads: int) -> None:
    options = small_options(dim=256, projection_dim=64)
    options["char_cnn"] |= {"embedding": {"dim": 16}, "filters": [[1, 32], [2, 32], [3, 64]]}
    bilm = random_bilm(options, 0, scale=0.08)
    engine = CpuEngine(bilm, precision)
    x, mask, state = random_batch(bilm, [9, 3, 7, 7, 0, 1, 9, 5, 2, 4], longest=9)
    ours, theirs = (who.contextualise(x, mask, state).layers[:, mask] for who in (engine, bilm))
    cosines = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1)
    mean, least = {"fp32": (0.999999, 0.999999), "bf16": (0.9999, 0.999), "int8": (0.998, 0.98)}[precision]
    assert (cosines.mean(dim=1) >= mean).all()
    assert cosines.min() >= least
    assert torch.get_num_threads() == threads


def test_gates_computed_ahead_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bilm = random_bilm(small_options(), 1)
    x, mask, state = random_batch(bilm, [9, 3, 7, 1], longest=9)
    engine = CpuEngine(bilm, "fp32")
    whole = engine.contextualise(x, mask, state).layers
    for buffer in (1, 200, 500):
        monkeypatch.setattr(cpu_engine, "_GATE_BUFFER", buffer)
        torch.testing.assert_close(engine.contextualise(x, mask, state).layers, whole, atol=1e-6, rtol=0)
    monkeypatch.setattr(cpu_engine, "_CONV_BUFFER", 1)
    ids = torch.from_numpy(words_to_ids(WORDS))
    torch.testing.assert_close(engine.encode(ids), bilm.encoder(ids), atol=1e-5, rtol=1e-5)


class TestGates:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("clip", [None, 0.5])
    @pytest.mark.parametrize("scale", [1.0, 100.0])
    def test_the_compiled_pass_is_its_plain_twin(self, dtype: torch.dtype, clip: float | None, scale: float) -> None:
        if gates.compiled() is None:
            pytest.skip("this package was built without a compiler")
        torch.manual_seed(0)
        for rows, cells in ((1, 1), (3, 7), (5, 64), (2, 100)):
            z, x = ((torch.randn(rows, 4 * cells) * scale).to(dtype) for _ in range(2))
            cell = torch.randn(rows, cells)
            ours, theirs = cell.clone(), cell.clone()
            h_ours = gates.gates_compiled(z, x, ours, clip)
            h_theirs = gates.gates_in_torch(z, x, theirs, clip)
            assert h_ours.dtype == h_theirs.dtype == dtype
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
            torch.testing.assert_close(h_ours, h_theirs, atol=2e-6 if dtype == torch.float32 else 8e-3, rtol=0)

    def test_without_the_compiled_pass_the_engine_gives_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bilm = random_bilm(small_options(), 1)
        x, mask, state = random_batch(bilm, [9, 3, 7, 1], longest=9)
        engine = CpuEngine(bilm, "fp32")
        before = engine.contextualise(x, mask, state).layers
        monkeypatch.setattr(gates, "compiled", lambda: None)
        torch.testing.assert_close(engine.contextualise(x, mask, state).layers, before, atol=1e-5, rtol=0)

    @pytest.mark.skipif("ELMO_TEST_INSTALLED" not in os.environ, reason="the kernel is built with the wheel")
    @pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler here")
    def test_the_wheel_has_it_where_there_is_a_compiler(self) -> None:
        assert gates.compiled() is not None


class TestChoosing:
    @pytest.fixture
    def model(self) -> elmo.Model:
        return elmo.Model(bilm=random_bilm(small_options(), 0))

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_a_precision_is_taken_as_asked(self, model: elmo.Model, precision: Any) -> None:
        assert model.embedder(precision=precision).precision == precision

    def test_auto_takes_bfloat16_for_large_models_where_the_cpu_has_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        large = BiLM(ModelConfig.from_options(small_options(dim=256, projection_dim=256)))
        monkeypatch.setattr("elmo.engine.supported", lambda precision: True)
        monkeypatch.setattr("elmo.engine.CpuEngine", lambda bilm, precision: precision)
        assert make_engine(large, "auto", "auto")[1] == "bf16"
        assert make_engine(random_bilm(small_options(), 0), "auto", "auto")[1] == "fp32"
        monkeypatch.setattr("elmo.engine.supported", lambda precision: False)
        assert make_engine(large, "auto", "auto")[1] == "fp32"

    def test_without_onednn_the_reference_does_it(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("elmo.engine._SMALL", 0)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert not supported("fp32")
        assert not supported("bf16")
        assert isinstance(model.embedder()._engine, ReferenceEngine)

    def test_layers_and_states_that_do_not_fit_are_refused_as_by_the_reference(self, model: elmo.Model) -> None:
        x, mask, state = random_batch(model.bilm, [2, 1], longest=2)
        engine = CpuEngine(model.bilm, "fp32")
        with pytest.raises(ElmoError, match="give some of 0 to 2"):
            engine.contextualise(x, mask, state, layers=[3])
        with pytest.raises(ElmoError, match="a state of 1 rows is given for a batch of 2"):
            engine.contextualise(x, mask, state.take(1))

    def test_what_the_cpu_lacks_is_refused(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpu_engine, "supported", lambda precision: False)
        with pytest.raises(ElmoError, match="precision 'bf16' needs a CPU that has it"):
            model.embedder(precision="bf16")

    def test_the_reference_is_always_there(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(model.embedder(layers="all")._engine, ReferenceEngine)  # a small model gains nothing
        monkeypatch.setattr("elmo.engine._SMALL", 0)
        fast, slow = (model.embed(["the cat sat"], layers="all", engine=e)[0] for e in ("auto", "reference"))
        np.testing.assert_allclose(fast, slow, atol=1e-5)
        assert isinstance(model.embedder(engine="reference")._engine, ReferenceEngine)
        with pytest.raises(ElmoError, match="precision 'int8' is not to be had with the reference engine"):
            model.embedder(engine="reference", precision="int8")

    def test_double_weights_keep_their_precision(self, model: elmo.Model) -> None:
        double = elmo.Model(bilm=copy.deepcopy(model.bilm).double())
        with pytest.raises(ElmoError, match=r"with torch\.float64 weights on cpu"):
            double.embedder(precision="bf16")
        np.testing.assert_allclose(double.embed(["the cat"])[0], model.embed(["the cat"])[0], atol=1e-5)
