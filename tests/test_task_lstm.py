"""The LSTMs of task models on a GPU, beside PyTorch's. Without a GPU, Triton plays one on the CPU (conftest.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

pytest.importorskip("triton", reason="Triton is not installed")

from triton.runtime import interpreter

from elmo.engine.available import has_row_kernels
from elmo.tasks import triton_rows
from elmo.tasks.layers import BiLSTM, start_lstms
from elmo.tasks.roles import AlternatingLSTM
from elmo.tasks.triton_rows import lstm_rows

# Rows beyond the last are masked, but numpy warns of what it computes for them.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True, scope="module")
def loops_in_the_interpreter() -> Iterator[None]:
    """Triton 3.6 plays a loop by `int` of an array, which NumPy 2.4 refuses where that is not of no dimensions."""
    plays = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        plays(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", patched)
        yield


def make_lstm(inputs: int, hidden: int, *, both: bool = True) -> nn.LSTM:
    lstm = nn.LSTM(inputs, hidden, batch_first=True, bidirectional=both).to(DEVICE)
    start_lstms(lstm)
    return lstm


def pytorchs(lstm: nn.LSTM, x_BTI: Tensor, lengths_B: Tensor) -> Tensor:
    packed = pack_padded_sequence(x_BTI, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x_BTI.shape[1])[0]


BOTH = (lstm_rows, pytorchs)
SIZES = [7, 40, 150]  # of which the last goes through its weights in tiles


def far(ours: Tensor, theirs: Tensor) -> float:
    """How far a tensor is from another, relative to its size."""
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=20), st.sampled_from(SIZES), st.booleans(), st.integers(0, 1000)
)
def test_it_makes_of_rows_of_any_length_what_pytorch_makes(
    lengths: list[int], hidden: int, both: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    lstm, x = make_lstm(5, hidden, both=both), torch.randn(len(lengths), max(lengths), 5, device=DEVICE)
    sizes = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    ours, theirs = (layer(lstm, x, sizes) for layer in BOTH)
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
    beyond = torch.arange(x.shape[1], device=DEVICE) >= sizes[:, None]
    assert not ours[beyond].any()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("size", [1.0, 1e-9, 1e6])
def test_gradients_of_any_size_are_those_of_pytorch(size: float, hidden: int, both: bool) -> None:
    torch.manual_seed(0)
    lstm = make_lstm(6, hidden, both=both)
    x = torch.randn(17, 5, 6, device=DEVICE, requires_grad=True)
    sizes = torch.tensor([5, 1, 3, 2] * 4 + [4], dtype=torch.int32, device=DEVICE)
    seen = torch.randn(17, 5, hidden * (1 + both), device=DEVICE) * size
    learned = [x, *lstm.parameters()]
    ours, theirs = (torch.autograd.grad((layer(lstm, x, sizes) * seen).sum(), learned) for layer in BOTH)
    for one, other in zip(ours, theirs, strict=True):
        assert far(one, other) < 2e-3


@pytest.mark.parametrize("hidden", SIZES)
def test_no_gradient_is_not_a_number_where_nothing_comes_back(hidden: int) -> None:
    lstm, x = make_lstm(3, hidden), torch.randn(2, 3, 3, device=DEVICE, requires_grad=True)
    made = lstm_rows(lstm, x, torch.tensor([3, 2], dtype=torch.int32, device=DEVICE))
    (found,) = torch.autograd.grad((made * 0).sum(), [x])
    assert not found.any()


def test_rows_of_one_token_teach_the_recurrence_nothing() -> None:
    lstm, x = make_lstm(3, 8), torch.randn(4, 1, 3, device=DEVICE)
    made = lstm_rows(lstm, x, torch.ones(4, dtype=torch.int32, device=DEVICE))
    weights = [weight for name, weight in lstm.named_parameters() if "weight_hh" in name]
    for found in torch.autograd.grad(made.sum(), weights):
        assert not found.any()


@pytest.mark.parametrize("hidden", SIZES)
def test_gates_that_are_all_but_open_learn_as_with_pytorch(hidden: int) -> None:
    torch.manual_seed(0)
    lstm, x = make_lstm(6, hidden), torch.randn(3, 5, 6, device=DEVICE)
    for name, weight in lstm.named_parameters():
        if "bias_ih" in name:
            i, f, _, o = weight.data.chunk(4)
            for gate in (i, f, o):
                gate.fill_(8.0)
    sizes = torch.tensor([5, 3, 4], dtype=torch.int32, device=DEVICE)
    seen = torch.randn(3, 5, 2 * hidden, device=DEVICE)
    ours, theirs = (
        torch.autograd.grad((layer(lstm, x, sizes) * seen).sum(), list(lstm.parameters())) for layer in BOTH
    )
    for one, other in zip(ours, theirs, strict=True):
        for gate, its in zip(one.chunk(4), other.chunk(4), strict=True):
            assert far(gate, its) < 1e-2


@pytest.mark.parametrize("hidden", SIZES)
def test_a_row_is_no_longer_than_there_are_steps(hidden: int) -> None:
    lstm, x = make_lstm(3, hidden), torch.randn(2, 4, 3, device=DEVICE, requires_grad=True)
    lengths = torch.tensor([[7, 2], [4, 2]], dtype=torch.int32, device=DEVICE)
    beyond, within = (lstm_rows(lstm, x, sizes) for sizes in lengths)
    assert torch.equal(beyond, within)
    assert torch.equal(*(torch.autograd.grad(made.sum(), [x])[0] for made in (beyond, within)))


@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3)])
def test_nothing_is_made_of_no_rows_and_of_no_steps(shape: tuple[int, ...], hidden: int) -> None:
    lstm, x = make_lstm(3, hidden), torch.randn(shape, device=DEVICE)
    made = lstm_rows(lstm, x, torch.zeros(shape[0], dtype=torch.int32, device=DEVICE))
    assert made.shape == (*shape[:2], 2 * hidden)
    assert not any(found.any() for found in torch.autograd.grad(made.sum(), list(lstm.parameters())))


@pytest.mark.parametrize("hidden", SIZES)
def test_a_row_without_tokens_is_zero_and_teaches_nothing(hidden: int) -> None:
    lstm, x = make_lstm(3, hidden), torch.randn(2, 4, 3, device=DEVICE, requires_grad=True)
    made = lstm_rows(lstm, x, torch.tensor([0, 3], dtype=torch.int32, device=DEVICE))
    (found,) = torch.autograd.grad(made.sum(), [x])
    assert not made[0].any()
    assert not found[0].any()
    assert found[1, :3].all()


@pytest.mark.parametrize("hidden", SIZES)
def test_it_learns_in_bfloat16_what_it_learns_in_float32(hidden: int) -> None:
    torch.manual_seed(0)
    lstm, x = make_lstm(6, hidden), torch.randn(17, 5, 6, device=DEVICE, requires_grad=True)
    sizes = torch.tensor([5, 1, 3, 2] * 4 + [4], dtype=torch.int32, device=DEVICE)
    seen, learned = torch.randn(17, 5, 2 * hidden, device=DEVICE), [x, *lstm.parameters()]
    with torch.autocast(DEVICE.type, torch.bfloat16):
        made = lstm_rows(lstm, x, sizes)
    assert made.dtype == torch.float32
    ours = torch.autograd.grad((made * seen).sum(), learned)
    theirs = torch.autograd.grad((pytorchs(lstm, x, sizes) * seen).sum(), learned)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        assert far(one, other) < 2e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_layers_of_other_precisions_can_stand_on_each_other(dtype: torch.dtype) -> None:
    lower, upper = make_lstm(3, 8).to(dtype), make_lstm(16, 8).to(dtype)
    sizes = torch.tensor([4, 2], dtype=torch.int32, device=DEVICE)
    made = lstm_rows(upper, lstm_rows(lower, torch.randn(2, 4, 3, dtype=dtype, device=DEVICE), sizes), sizes)
    assert made.dtype == dtype
    assert all(found.dtype == dtype for found in torch.autograd.grad(made.sum(), list(lower.parameters())))


def test_what_is_made_without_gradients_is_the_same() -> None:
    lstm, x = make_lstm(3, 8), torch.randn(2, 4, 3, device=DEVICE)
    sizes = torch.tensor([4, 2], dtype=torch.int32, device=DEVICE)
    with torch.no_grad():
        read = lstm_rows(lstm, x, sizes)
    assert not read.requires_grad
    assert torch.equal(read, lstm_rows(lstm, x, sizes))


def test_a_layer_that_is_used_twice_learns_from_both() -> None:
    lstm, x = make_lstm(6, 3), torch.randn(2, 4, 6, device=DEVICE)
    sizes, weights = torch.tensor([4, 2], dtype=torch.int32, device=DEVICE), list(lstm.parameters())
    ours, theirs = (
        torch.autograd.grad(layer(lstm, layer(lstm, x, sizes), sizes).square().sum(), weights) for layer in BOTH
    )
    for one, other in zip(ours, theirs, strict=True):
        assert far(one, other) < 5e-3


def test_a_change_in_place_that_would_spoil_gradients_is_refused() -> None:
    lstm, x = make_lstm(3, 8), torch.randn(2, 4, 3, device=DEVICE)
    made = lstm_rows(lstm, x, torch.tensor([4, 2], dtype=torch.int32, device=DEVICE))
    made.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(made.sum(), list(lstm.parameters()))


@pytest.mark.parametrize(("kilobytes", "cells"), [(227, 128), (163, 128), (99, 64)])
def test_weights_stay_on_a_multiprocessor_that_has_room(
    kilobytes: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = SimpleNamespace(shared_memory_per_block_optin=kilobytes * 1024)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: about)
    assert triton_rows._fitting.__wrapped__(torch.device("cuda:0")) == cells


def test_weights_that_do_not_fit_there_are_read_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "_fitting", lambda device: 64)
    torch.manual_seed(0)
    lstm, x = make_lstm(6, 90), torch.randn(5, 4, 6, device=DEVICE)
    sizes, weights = torch.tensor([4, 1, 2, 3, 4], dtype=torch.int32, device=DEVICE), list(lstm.parameters())
    ours, theirs = (torch.autograd.grad(layer(lstm, x, sizes).square().sum(), weights) for layer in BOTH)
    for one, other in zip(ours, theirs, strict=True):
        assert far(one, other) < 2e-3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two GPUs here")
def test_rows_may_be_on_another_gpu_than_the_current_one() -> None:
    lstm, x = make_lstm(3, 8).to("cuda:1"), torch.randn(2, 4, 3, device="cuda:1")
    sizes = torch.tensor([4, 2], dtype=torch.int32, device="cuda:1")
    torch.testing.assert_close(lstm_rows(lstm, x, sizes), pytorchs(lstm, x, sizes), atol=1e-3, rtol=1e-3)


def test_only_lstms_that_are_not_too_large_go_that_way() -> None:
    assert not has_row_kernels(torch.device("cpu"), 90)
    if DEVICE.type == "cuda":
        assert has_row_kernels(DEVICE, 256)
        assert not has_row_kernels(DEVICE, 257)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="no GPU here")
@pytest.mark.parametrize("kind", [BiLSTM, AlternatingLSTM])
@pytest.mark.parametrize("hidden", [16, 90, 128, 200, 256])
def test_models_of_several_layers_learn_as_with_pytorch(
    hidden: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    lengths = torch.randint(1, 301, (128,)).tolist()
    model, x = kind(100, hidden, layers=2, dropout=0.0).to(DEVICE), torch.randn(128, max(lengths), 100, device=DEVICE)
    mask = torch.arange(max(lengths), device=DEVICE) < torch.tensor(lengths, device=DEVICE)[:, None]
    known = lengths if kind is BiLSTM else mask

    def gradients() -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        made = model(x, known) * mask[:, :, None]
        return torch.autograd.grad((made * torch.randn_like(made)).sum(), list(model.parameters()))

    ours = gradients()
    for module in ("layers", "roles"):
        monkeypatch.setattr(f"elmo.tasks.{module}.has_row_kernels", lambda device, cells: False)
    for one, other in zip(ours, gradients(), strict=True):
        assert far(one, other) < 1e-2


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from elmo.tasks import triton_rows as k

ROOM = {"lengths": "*i32", "gates": "*fp32", "cells": "*fp32", "B": "i32", "T": "i32", "w": "*fp16"}
FORWARD = {"z": "*fp32", "y": "*fp32"}
BACKWARD = {"dy": "*fp32", "scale": "*fp32", "dz": "*fp32"}

HOPPER, ADA = (90, 227, 128), (89, 99, 64)  # architecture, KB of shared memory, cells whose weights fit
PLANS = [(HOPPER, cells) for cells in (16, 90, 128, 300, 512)] + [(ADA, cells) for cells in (64, 90, 300)]

for (number, room, fitting), hidden in PLANS:
    kernels = [(k.small_forward, FORWARD), (k.small_backward, BACKWARD)]
    if hidden > fitting:
        kernels = [(k.tiled_forward, FORWARD), (k.tiled_backward, BACKWARD | {"dh": "*fp32", "dc": "*fp32"})]
    for kernel, tensors in kernels:
        sizes = k._sizes(hidden, fitting) | {"S": 2}
        options = {name: sizes.pop(name) for name in ("num_warps", "num_stages")}
        sizes |= {"SAVE": True} if tensors is FORWARD else {}
        source = ASTSource(
            fn=kernel,
            signature=ROOM | tensors | dict.fromkeys(sizes, "constexpr"),
            constexprs={(kernel.arg_names.index(name),): value for name, value in sizes.items()},
        )
        made = triton.compile(source, target=GPUTarget("cuda", number, 32), options=options)
        print(hidden, kernel, made.metadata.shared)
        assert made.metadata.shared <= room * 1024, (number, hidden, kernel, made.metadata.shared)
"""


def test_the_kernels_compile_for_large_and_small_gpus_and_fit_into_their_shared_memory(tmp_path: Path) -> None:
    """Without a GPU: Triton brings its own compiler."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
