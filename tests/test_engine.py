"""Each engine against the reference network."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import elmo
from conftest import small_options, write_model
from elmo.chars import words_to_ids
from elmo.config import ModelConfig
from elmo.engine import ReferenceEngine, available, compiled, make_engine, plain, precision
from elmo.engine import cpu as cpu_engine
from elmo.engine.cpu import CpuEngine, supported
from elmo.engine.precision import Precision, Tokens
from elmo.errors import ElmoError
from elmo.model import BiLM, State
from test_reference import options

WORDS = ["a", "the", "<S>", "</S>", "", "日本", "x" * 47, "y" * 48, "z" * 60, "Straße", "'s"]
NEEDS_KERNELS = pytest.mark.skipif(not compiled.compiled("fp32"), reason="no kernels here")
PRECISIONS: list[Precision] = [p for p in precision.PRECISIONS if supported(p)]
HALVES = [pytest.param(False, id="compiled", marks=NEEDS_KERNELS), pytest.param(True, id="plain")]


def random_bilm(options: dict[str, Any], seed: int, scale: float = 0.5) -> BiLM:
    torch.manual_seed(seed)
    bilm = BiLM(ModelConfig.from_options(options)).eval().requires_grad_(False)
    for weight in bilm.parameters():
        weight.normal_(0, scale)
    return bilm


def fast(bilm: BiLM, precision: Precision = "fp32", *, plainly: bool = False) -> CpuEngine:
    return CpuEngine(bilm.config, lambda name, rows: bilm.state_dict()[name][rows], precision, plainly=plainly)


def random_batch(bilm: BiLM, lengths: list[int], longest: int, n_words: int = 9) -> tuple[Tensor, Tensor, State]:
    """Vectors of distinct words, where they stand, and a state."""
    config = bilm.config.lstm
    behind = torch.arange(longest) >= torch.tensor(lengths)[:, None]
    places = torch.randint(n_words, behind.shape).masked_fill(behind, -1)
    shape = (config.n_layers, 2, len(lengths))
    state = State(torch.randn(*shape, config.projection_dim), torch.randn(*shape, config.dim))
    return torch.randn(n_words, config.projection_dim), places, state


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@settings(max_examples=60)
@given(
    options(),
    st.lists(st.integers(0, 7), min_size=1, max_size=20),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.data(),
)
def test_the_fast_lstms_are_the_references_in_float32(
    options: dict[str, Any], lengths: list[int], plainly: bool, seed: int, data: st.DataObject
) -> None:
    bilm = random_bilm(options, seed)
    layers = data.draw(st.none() | st.lists(st.integers(0, bilm.config.n_layers - 1), min_size=1, max_size=4))
    words, places, state = random_batch(bilm, lengths, longest=max(lengths) + data.draw(st.integers(0, 2)))
    for start in (None, state, state.rows_at([0])):
        ours, theirs = (
            who.contextualise(words, places, start, layers=layers)
            for who in (fast(bilm, plainly=plainly), ReferenceEngine(bilm))
        )
        torch.testing.assert_close(ours.layers, theirs.layers, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.state.m, theirs.state.m, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.state.c, theirs.state.c, atol=1e-5, rtol=0)
        assert torch.equal(ours.mask, theirs.mask)


@settings(max_examples=40)
@given(
    options(),
    st.lists(st.text(max_size=60) | st.sampled_from(WORDS), max_size=20),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_the_fast_encoder_is_the_references_in_float32(
    options: dict[str, Any], words: list[str], plainly: bool, seed: int
) -> None:
    bilm = random_bilm(options, seed)
    if bilm.config.char_cnn is None:
        ids = torch.arange(0, bilm.config.n_words or 0)
    else:
        ids = torch.from_numpy(words_to_ids(words, bilm.config.char_cnn.max_characters_per_token))
    encoded = fast(bilm, plainly=plainly).encode(ids)
    torch.testing.assert_close(encoded, bilm.encoder(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("plainly", HALVES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_is_close_with_one_thread_and_with_two(
    precision: Precision, plainly: bool, threads: int
) -> None:
    options = small_options(dim=256, projection_dim=64)
    options["char_cnn"] |= {"embedding": {"dim": 16}, "filters": [[1, 32], [2, 32], [3, 64]]}
    bilm = random_bilm(options, 0, scale=0.08)
    engine = fast(bilm, precision, plainly=plainly)
    words, places, state = random_batch(bilm, [9, 3, 7, 7, 0, 1, 9, 5, 2, 4], longest=9)
    ours, theirs = (
        who.contextualise(words, places, state).layers[:, places >= 0] for who in (engine, ReferenceEngine(bilm))
    )
    cosines = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1)
    mean, least = {"fp32": (0.999999, 0.999999), "bf16": (0.9999, 0.999), "int8": (0.998, 0.98)}[precision]
    assert (cosines.mean(dim=1) >= mean).all()
    assert cosines.min() >= least
    ids = torch.from_numpy(words_to_ids(WORDS))
    cosines = torch.nn.functional.cosine_similarity(engine.encode(ids), bilm.encoder(ids), dim=-1)
    assert cosines.min() >= least
    assert torch.get_num_threads() == threads


def int8_here(plainly: bool) -> None:
    if not (plain.supported("int8") if plainly else compiled.compiled("int8")):
        pytest.skip("this CPU, or PyTorch's build for it, lacks what int8 needs")


class TestInt8OfTrainedWeights:
    """What trained cells give is heavy-tailed, as random ones' is not."""

    @pytest.fixture
    def sentences(self) -> list[list[str]]:
        lines = (Path(__file__).parents[1] / "examples" / "held_out.tsv").read_text(encoding="utf-8").splitlines()
        return [line.split("\t")[1].split() for line in lines[:40]]

    @staticmethod
    def cosines(ours: Any, theirs: Any) -> Tensor:
        return torch.cosine_similarity(torch.from_numpy(ours), torch.from_numpy(theirs), dim=-1)

    @pytest.mark.parametrize("plainly", HALVES)
    def test_the_embedded_model_on_real_sentences(
        self, plainly: bool, sentences: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        int8_here(plainly)
        if plainly:
            monkeypatch.setattr(compiled, "compiled", lambda precision: False)
        model = elmo.load()
        exact, ours = (model.embed(sentences, layers="all", precision=p) for p in ("fp32", "int8"))
        cosines = self.cosines(np.concatenate(exact, axis=1), np.concatenate(ours, axis=1))
        assert cosines.mean(dim=1).min() >= 0.999
        assert cosines.min() >= 0.99
        for sentence, together in list(zip(sentences, ours, strict=True))[:6]:
            (alone,) = model.embed([sentence], layers="all", precision="int8")
            if plainly:  # its float32 product is summed in another order
                assert self.cosines(alone, together).min() >= 0.999
            else:
                np.testing.assert_array_equal(alone, together)

    @pytest.mark.parametrize("plainly", HALVES)
    def test_one_large_cell_leaves_those_of_other_spans_their_steps(self, plainly: bool) -> None:
        int8_here(plainly)
        cells = 300
        bilm = random_bilm(small_options(dim=cells, projection_dim=16), 0, scale=0.05)
        for lstm in (*bilm.forwards, *bilm.backwards):
            lstm.kernel[:, ::cells] = 0  # the gates of the first cell, which are open
            lstm.bias[3 * cells :] = -4
            lstm.bias[::cells] = 20
            lstm.projection[:128] = 0
        words, places, start = random_batch(bilm, [6, 3, 5], longest=6)
        engines = (fast(bilm, "int8", plainly=plainly), ReferenceEngine(bilm))
        ours, exact = (engine.contextualise(words, places, start).layers[1:, places >= 0] for engine in engines)
        assert torch.nn.functional.cosine_similarity(ours, exact, dim=-1).min() >= 0.999


@pytest.mark.parametrize("plainly", HALVES)
@pytest.mark.parametrize("cells", [12, 128, 130, 300])
def test_cells_need_not_fill_the_spans_of_int8(plainly: bool, cells: int) -> None:
    int8_here(plainly)
    bilm = random_bilm(small_options(dim=cells, projection_dim=10), 0, scale=0.2)
    words, places, start = random_batch(bilm, [6, 3, 5], longest=6)
    engines = (fast(bilm, "int8", plainly=plainly), ReferenceEngine(bilm))
    ours, exact = (engine.contextualise(words, places, start).layers[1:, places >= 0] for engine in engines)
    assert torch.nn.functional.cosine_similarity(ours, exact, dim=-1).min() >= 0.999


@pytest.mark.parametrize("plainly", HALVES)
@pytest.mark.parametrize("inputs", [12, 128, 131, 300, 1024])
def test_rows_of_an_int8_product_do_not_depend_on_their_company(plainly: bool, inputs: int) -> None:
    int8_here(plainly)
    torch.manual_seed(0)
    x = torch.randn(70, inputs) * torch.logspace(-3, 3, 70)[:, None]
    product = (plain if plainly else compiled).Linear(torch.randn(inputs, 70), torch.randn(70), "int8")
    together = product(x)
    for row in range(len(x)):
        assert torch.equal(product(x[row : row + 1])[0], together[row])


@NEEDS_KERNELS
class TestCompiled:
    @pytest.mark.parametrize("precision", [p for p in PRECISIONS if compiled.compiled(p)])
    def test_a_sentence_has_the_same_bits_in_any_company_and_with_any_number_of_threads(
        self, precision: Precision
    ) -> None:
        bilm = random_bilm(small_options(dim=80, projection_dim=48), 0)
        engine = fast(bilm, precision)
        words, places, state = random_batch(bilm, [9, 3, 7, 7, 0, 1, 9, 5, 2, 4], longest=9)
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            together = engine.contextualise(words, places, state).layers
            torch.set_num_threads(1)
            for row in range(len(places)):
                alone = engine.contextualise(words, places[row : row + 1], state.rows_at([row])).layers
                assert torch.equal(alone[:, 0], together[:, row])
        finally:
            torch.set_num_threads(before)

    @pytest.mark.parametrize("precision", [p for p in PRECISIONS if compiled.compiled(p)])
    @pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 65), (13, 4100, 70), (64, 129, 128)])
    def test_a_product_is_its_plain_twins(self, precision: Precision, shape: tuple[int, int, int]) -> None:
        torch.manual_seed(0)
        rows, inputs, outputs = shape
        x, weight, bias = torch.randn(rows, inputs), torch.randn(inputs, outputs), torch.randn(outputs)
        ours, theirs = (half.Linear(weight, bias, precision)(x).float() for half in (compiled, plain))
        error = {"fp32": 1e-4, "bf16": 0.05, "int8": 0.1}[precision]
        torch.testing.assert_close(ours, theirs, atol=error * inputs**0.5, rtol=0)

    def test_rows_of_zeros_are_a_product_of_zero_in_int8(self) -> None:
        if not compiled.compiled("int8"):
            pytest.skip("this CPU lacks VNNI")
        assert not compiled.Linear(torch.randn(8, 8), None, "int8")(torch.zeros(3, 8)).any()

    @pytest.mark.parametrize("inputs", [129, 300, 1024])
    def test_a_huge_value_costs_its_own_span_alone_in_int8(self, inputs: int) -> None:
        int8_here(plainly=False)
        torch.manual_seed(0)
        x, weight = torch.randn(5, inputs) * 0.01, torch.randn(inputs, 70)
        x[:, 3] = 1000
        weight[:128] = 0  # the span where it stands
        ours, exact = compiled.Linear(weight, None, "int8")(x), x @ weight
        assert torch.nn.functional.cosine_similarity(ours, exact, dim=-1).min() >= 0.999

    def test_extreme_gates_saturate(self) -> None:
        bilm = random_bilm(small_options(), 0, scale=200.0)
        words, places, state = random_batch(bilm, [4, 2], longest=4)
        ours, theirs = (who.contextualise(words, places, state).layers for who in (fast(bilm), ReferenceEngine(bilm)))
        torch.testing.assert_close(ours[1], theirs[1], atol=1e-3, rtol=1e-4)

    def test_threads_of_a_program_may_embed_at_the_same_time(self) -> None:
        bilm = random_bilm(small_options(), 0)
        engine = fast(bilm)
        batches = [random_batch(bilm, [5, 3], longest=5) for _ in range(8)]
        expected = [engine.contextualise(*batch).layers for batch in batches]
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            with ThreadPoolExecutor(4) as pool:
                together = list(pool.map(lambda batch: engine.contextualise(*batch).layers, batches * 4))
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(a, b) for a, b in zip(together, expected * 4, strict=True))

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_a_forked_process_has_threads_of_its_own(self) -> None:
        script = """
import os, sys, torch
from elmo.engine.compiled import Linear
torch.set_num_threads(2)
product = Linear(torch.eye(4), None, "fp32")
product(torch.ones(2, 4))
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(product(torch.ones(2, 4)), torch.ones(2, 4)) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_memory_of_its_own(tmp_path: Path) -> None:
    """What it computes, and what it makes of the weights, is not seen by the process that it comes from."""
    write_model(tmp_path / "model", small_options())
    script = """
import os, sys, torch, elmo
from elmo.engine.precision import SCRATCH
model = elmo.load(sys.argv[1])
room, kernel = SCRATCH.room("x", (4,), torch.float32), model.bilm.forwards[0].kernel
room.fill_(1)
before = kernel.clone()
child = os.fork()
if child == 0:
    with torch.no_grad():
        room.fill_(7), kernel.fill_(7)
    os._exit(0)
os.waitpid(child, 0)
sys.exit(0 if room.eq(1).all() and kernel.equal(before) else 1)
"""
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "model")], timeout=60).returncode == 0


class TestInterrupted:
    def test_a_part_that_waits_for_the_caller_is_told_to_stop(self) -> None:
        team, abandoned, ended = compiled._Team(), threading.Event(), threading.Event()

        def function(part: int, parts: int) -> None:
            if part == 0:
                raise KeyboardInterrupt
            assert abandoned.wait(30)
            ended.set()

        with pytest.raises(KeyboardInterrupt):
            team.run(function, 2, abandoned.set)
        assert ended.is_set()
        parts: list[int] = []
        team.run(lambda part, _: parts.append(part), 2, lambda: None)
        assert sorted(parts) == [0, 1]

    @NEEDS_KERNELS
    def test_kernels_stop_waiting_for_a_part_that_never_comes(self) -> None:
        script = """
import torch
from elmo.engine import compiled
torch.set_num_threads(2)
product, part_of = compiled.Linear(torch.eye(4), None, "fp32"), compiled._part

def interrupted(function, call, part, parts):
    if part == 0:
        raise KeyboardInterrupt
    part_of(function, call, part, parts)

compiled._part = interrupted
try:
    product(torch.ones(2, 4))
except KeyboardInterrupt:
    compiled._part = part_of
    assert torch.equal(product(torch.ones(2, 4)), torch.ones(2, 4))
    print("went on")
"""
        result = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
        assert result.stdout == "went on\n", result.stderr

    def test_no_thread_is_left_at_work_that_was_interrupted_as_it_started(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        team, begun = compiled._Team(), threading.Event()
        start = threading.Thread.start

        def interrupted(thread: threading.Thread) -> None:
            start(thread)
            raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            team.run(lambda part, parts: begun.set(), 2, lambda: None)
        monkeypatch.undo()
        assert not begun.wait(0.2)


@NEEDS_KERNELS
@pytest.mark.parametrize("wrong", [-1, 300])
def test_ids_that_are_no_characters_are_refused(wrong: int) -> None:
    bilm = random_bilm(small_options(), 0)
    ids = torch.from_numpy(words_to_ids(["cat"], 50)).clone()
    ids[0, 2] = wrong
    with pytest.raises(IndexError, match=str(wrong)):
        fast(bilm).encode(ids)


class TestWhatTritonNeeds:
    def test_is_a_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(shutil, "which", lambda _: None)
        assert available._missing_compiler() == "C compiler"

    def test_is_pythons_header(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", "cc")
        monkeypatch.setattr("sysconfig.get_paths", lambda **_: {"include": str(tmp_path)})
        assert "Python.h" in str(available._missing_compiler())
        (tmp_path / "Python.h").touch()
        assert available._missing_compiler() is None

    def test_is_said_once_and_done_without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(available, "_triton", lambda: (9, 9))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        monkeypatch.setattr(available, "_missing_compiler", lambda: "C compiler")
        available.has_triton.cache_clear()
        try:
            with pytest.warns(UserWarning, match="no C compiler is here, without which Triton makes no kernels"):
                assert not available.has_triton(torch.device("cuda:7"))
            assert not available.has_triton(torch.device("cuda:7"))
        finally:
            available.has_triton.cache_clear()


def test_large_scratch_is_held_while_it_is_used_and_given_up_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_LARGEST_KEPT", 64)
    scratch = precision._Scratch()
    pointer = scratch.room("x", (100,), torch.uint8).data_ptr()  # nobody holds the tensor
    assert scratch.room("x", (100,), torch.uint8).data_ptr() == pointer
    scratch.room("x", (10,), torch.uint8)
    assert scratch._rooms["x"].numel() == 10
    scratch.room("x", (5,), torch.uint8)
    assert scratch._rooms["x"].numel() == 10


class TestPlan:
    @given(
        st.lists(st.integers(0, 6), min_size=1, max_size=12),
        st.integers(1, 9),
        st.integers(0, 5),
        st.integers(1, 9),
        st.integers(0, 2**32 - 1),
    )
    def test_every_token_finds_its_inputs_gates_when_it_is_due(
        self, lengths: list[int], n_inputs: int, kept: int, ahead: int, seed: int
    ) -> None:
        rows = np.array([sum(length > t for length in lengths) for t in range(max(lengths))], dtype=np.int64)
        inputs = np.random.default_rng(seed).integers(n_inputs, size=int(rows.sum()))
        plan = Tokens(inputs, rows).plan(kept, ahead)
        slots = np.full(plan.n_slots, -1)
        step = token = 0
        for first, end, until in plan.pieces:
            slots[plan.slots[first:end]] = plan.sources[first:end]
            for n in rows[step:until]:
                assert np.array_equal(slots[plan.tokens[token : token + n]], inputs[token : token + n])
                token += n
            step = until
        assert token == len(inputs)
        assert plan.n_slots <= kept + max(ahead, int(rows.max(initial=1)))


def test_the_plain_half_computes_in_pieces_what_it_computes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bilm = random_bilm(small_options(), 1)
    words, places, state = random_batch(bilm, [9, 3, 7, 1], longest=9)
    engine = fast(bilm, plainly=True)
    whole = engine.contextualise(words, places, state).layers
    for buffer in (1, 200, 500):
        monkeypatch.setattr(plain, "_GATE_BUFFER", buffer)
        torch.testing.assert_close(engine.contextualise(words, places, state).layers, whole, atol=1e-6, rtol=0)
    monkeypatch.setattr(plain, "_CONV_BUFFER", 1)
    ids = torch.from_numpy(words_to_ids(WORDS))
    torch.testing.assert_close(engine.encode(ids), bilm.encoder(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif("ELMO_TEST_INSTALLED" not in os.environ, reason="the kernels are built with the wheel")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler here")
def test_the_wheel_has_the_kernels_where_there_is_a_compiler() -> None:
    assert compiled.LIBRARY.is_file()


class TestChoosing:
    @pytest.fixture
    def model(self) -> elmo.Model:
        return elmo.Model.of(random_bilm(small_options(), 0))

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_a_precision_is_taken_as_asked(self, model: elmo.Model, precision: Any) -> None:
        assert model.embedder(precision=precision).precision == precision

    def test_auto_takes_bfloat16_for_large_models_where_the_cpu_has_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = ModelConfig.from_options(small_options(dim=256, projection_dim=256))
        large = elmo.Model.of(BiLM(config)).network
        monkeypatch.setattr("elmo.engine.supported", lambda precision: True)
        monkeypatch.setattr("elmo.engine.CpuEngine", lambda config, read, precision: precision)
        small = elmo.Model.of(random_bilm(small_options(), 0)).network
        assert make_engine(large, "auto", "auto")[1] == "bf16"
        assert make_engine(small, "auto", "auto")[1] == "fp32"
        monkeypatch.setattr("elmo.engine.supported", lambda precision: False)
        assert make_engine(large, "auto", "auto")[1] == "fp32"

    def test_without_kernels_and_onednn_the_reference_does_it(
        self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("elmo.engine._SMALL", 0)
        monkeypatch.setattr(compiled, "compiled", lambda precision: False)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert not supported("fp32")
        assert not supported("bf16")
        assert isinstance(model.embedder()._engine, ReferenceEngine)

    def test_layers_and_states_that_do_not_fit_are_refused_as_by_the_reference(self, model: elmo.Model) -> None:
        words, places, state = random_batch(model.bilm, [2, 1], longest=2)
        engine = fast(model.bilm)
        with pytest.raises(ElmoError, match="give some of 0 to 2"):
            engine.contextualise(words, places, state, layers=[3])
        with pytest.raises(ElmoError, match="a state of 3 rows is given for a batch of 2"):
            engine.contextualise(words, places, state.take(3))

    def test_what_the_cpu_lacks_is_refused(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpu_engine, "supported", lambda precision: False)
        with pytest.raises(ElmoError, match="precision 'bf16' needs a CPU that has it"):
            model.embedder(precision="bf16")

    def test_the_reference_is_always_there(self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "compiled", lambda precision: False)
            # PyTorch's products gain nothing for a small model.
            assert isinstance(model.embedder(layers="all")._engine, ReferenceEngine)
        quick, slow = (model.embed(["the cat sat"], layers="all", engine=e)[0] for e in ("auto", "reference"))
        np.testing.assert_allclose(quick, slow, atol=1e-5)
        assert isinstance(model.embedder(engine="reference")._engine, ReferenceEngine)
        with pytest.raises(ElmoError, match="precision 'int8' is not to be had with the reference engine"):
            model.embedder(engine="reference", precision="int8")

    def test_double_weights_keep_their_precision(self, model: elmo.Model) -> None:
        double = elmo.Model.of(copy.deepcopy(model.bilm).double())
        with pytest.raises(ElmoError, match=r"with torch\.float64 weights on cpu"):
            double.embedder(precision="bf16")
        np.testing.assert_allclose(double.embed(["the cat"])[0], model.embed(["the cat"])[0], atol=1e-5)
