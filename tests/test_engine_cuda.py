"""The GPU's kernels and the engine around them. Without a GPU, Triton plays one on the CPU (see conftest.py)."""

from __future__ import annotations

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

from elmo.config import ModelConfig
from elmo.engine import resident
from elmo.model import BiLM, State

pytest.importorskip("triton", reason="Triton is not installed")

from elmo.engine import triton_lstm
from elmo.engine.cuda import _SPARE, _STEPS, CudaEngine
from elmo.lm.gpu_recurrence import GpuRecurrence
from elmo.lm.recurrence import Clips, Recurrence

# Tiles reach beyond the last row, over memory that no one has written: on a CPU, numpy warns of what is then masked.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def make_bilm(*, n_layers: int = 2, skip: bool = True, clip: float | None = 3.0, width: int = 64) -> BiLM:
    options: dict[str, Any] = {
        "lstm": {
            "dim": 128 if width == 64 else 256 if width == 192 else 8 * width,
            "projection_dim": width,
            "n_layers": n_layers,
            "use_skip_connections": skip,
            "cell_clip": clip,
            "proj_clip": clip,
        },
        "char_cnn": {
            "n_characters": 262,
            "max_characters_per_token": 12,
            "embedding": {"dim": 4},
            "filters": [[1, 8], [3, 8]],
            "n_highway": 1,
            "activation": "relu",
        },
    }
    torch.manual_seed(0)
    bilm = BiLM(ModelConfig.from_options(options)).requires_grad_(False)
    for lstm in [*bilm.forwards, *bilm.backwards]:
        lstm.kernel.mul_(3)  # so that gates open and clips are met
    return bilm.to(DEVICE)


def make_engine(bilm: BiLM, precision: Any = "fp32") -> CudaEngine:
    weights = bilm.state_dict()
    return CudaEngine(bilm.config, lambda name, rows: weights[name][rows], precision, DEVICE)


def make_batch(lengths: list[int], n_words: int = 9, width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(1)
    places = np.full((len(lengths), max(lengths, default=0)), -1)
    for row, length in zip(places, lengths, strict=True):
        row[:length] = rng.integers(0, n_words, length)
    words = torch.from_numpy(rng.standard_normal((n_words, width))).float().to(DEVICE)
    return words, torch.from_numpy(places)


def reference(bilm: BiLM, words: torch.Tensor, places: torch.Tensor, state: State | None, **more: Any) -> Any:
    vectors = words[places.clamp_min(0).to(DEVICE)]
    return bilm.contextualise(vectors, (places >= 0).to(DEVICE), state, **more)


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max()) if a.numel() else 0.0


@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize(("skip", "clip"), [(True, 0.5), (False, None)])
def test_a_batch_gets_the_references_vectors_and_state(n_layers: int, skip: bool, clip: float | None) -> None:
    bilm = make_bilm(n_layers=n_layers, skip=skip, clip=clip)
    words, places = make_batch([3, 0, 5, 1, 5])
    state = State(torch.rand(n_layers, 2, 5, 64), torch.rand(n_layers, 2, 5, 128)).to(words)
    ours = make_engine(bilm).contextualise(words, places, state)
    theirs = reference(bilm, words, places, state)
    assert largest(ours.layers, theirs.layers) <= 1e-5
    assert largest(ours.state.m, theirs.state.m) <= 1e-5
    assert largest(ours.state.c, theirs.state.c) <= 1e-5
    assert torch.equal(ours.mask, theirs.mask)


def test_sizes_need_not_be_powers_of_two() -> None:
    bilm = make_bilm(width=192)
    words, places = make_batch([3, 5, 1], width=192)
    ours, theirs = make_engine(bilm).contextualise(words, places), reference(bilm, words, places, None)
    assert largest(ours.layers, theirs.layers) <= 1e-5
    assert largest(ours.state.c, theirs.state.c) <= 1e-5


@settings(max_examples=4)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    layers=st.lists(st.integers(0, 2), min_size=1, max_size=3),
)
def test_any_lengths_and_any_layers_give_what_the_reference_gives(lengths: list[int], layers: list[int]) -> None:
    bilm = make_bilm()
    words, places = make_batch(lengths)
    ours = make_engine(bilm).contextualise(words, places, layers=layers)
    theirs = reference(bilm, words, places, None, layers=layers)
    assert largest(ours.layers, theirs.layers) <= 1e-5
    assert largest(ours.state.c, theirs.state.c) <= 1e-5


def test_a_batch_larger_than_any_before_gets_more_room_and_a_smaller_one_the_same_vectors() -> None:
    bilm = make_bilm()
    engine = make_engine(bilm)
    small = make_batch([2, 3])
    before = engine.contextualise(*small).layers
    large = make_batch([1] * 70)
    assert largest(engine.contextualise(*large).layers, reference(bilm, *large, None).layers) <= 1e-5
    assert largest(engine.contextualise(*small).layers, before) <= 1e-6


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no GPU here, and Triton on a CPU does not know products of bfloat16")
def test_bfloat16_stays_within_a_hundredth() -> None:
    bilm = make_bilm()
    words, places = make_batch([3, 5])
    ours = make_engine(bilm, "bf16").contextualise(words, places).layers
    theirs = reference(bilm, words, places, None).layers
    for layer in range(3):
        assert (ours[layer] - theirs[layer]).norm() <= 1e-2 * theirs[layer].norm()


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no GPU here")
@pytest.mark.parametrize("rows", [1, 8, 9, 17, 32, 40])
@pytest.mark.parametrize("longest", [6, 300])
def test_weights_on_the_chip_give_what_the_reference_gives(rows: int, longest: int) -> None:
    bilm = make_bilm(width=128, clip=0.5)
    engine = make_engine(bilm, "bf16")
    if engine._resident is None:
        pytest.skip("this GPU does not hold a layer's weights")
    words, places = make_batch([longest - row % longest for row in range(rows)], width=128)
    ours, theirs = engine.contextualise(words, places), reference(bilm, words, places, None)
    for a, b in zip([*ours.layers, ours.state.c], [*theirs.layers, theirs.state.c], strict=True):
        assert (a - b).norm() <= 1e-2 * b.norm()


def test_behind_a_row_as_long_as_the_room_there_is_where_a_capture_runs_over_nothing() -> None:
    engine = make_engine(make_bilm())
    room = engine._room
    engine._take_places(np.ones(room.tokens, dtype=np.int64), np.arange(room.tokens + 1))
    rows = room.table[2, 1:]
    assert rows[room.tokens - 1] == 1
    assert not rows[room.tokens :].any()
    assert len(rows) > room.tokens + _SPARE + max(_STEPS)


def test_there_are_counters_for_every_tile_that_splits_a_sum() -> None:
    for rows in (1, 100, 2048, 5000):
        for tile in (triton_lstm.project_tile(rows, torch.float32), triton_lstm.project_tile(rows, torch.bfloat16)):
            tiles = -(-rows // tile.rows) * (512 // min(tile.columns, 512))
            assert 4 * tiles <= triton_lstm.n_counters(rows, 512, 2)


def test_words_are_encoded_as_the_reference_encodes_them() -> None:
    bilm = make_bilm()
    ids = torch.randint(1, 262, (7, 12))
    assert largest(make_engine(bilm).encode(ids), bilm.encoder(ids.to(DEVICE))) <= 1e-5
    assert make_engine(bilm).encode(ids[:0]).shape == (0, 64)


def test_the_order_of_the_gates_can_be_undone() -> None:
    gates = torch.arange(2 * 4 * 32).view(2, -1)
    assert torch.equal(triton_lstm.unpack(triton_lstm.pack(gates)), gates)
    i, j, f, o = gates[0].chunk(4)
    packed = triton_lstm.pack(gates)[0, :64]
    assert torch.equal(packed[:4], torch.stack([i[0], j[0], i[1], j[1]]))
    assert torch.equal(packed[32:36], torch.stack([f[0], o[0], f[1], o[1]]))


@pytest.mark.parametrize(("clip", "P"), [(None, 64), (0.5, 64), (0.5, 192)])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_the_gradients_of_a_layer_are_those_of_the_readable_one(clip: float | None, P: int, rows: int) -> None:
    torch.manual_seed(0)
    D, T = 128 if P == 64 else 256, 3
    shapes = ((2, 2 * P, 4 * D), (2, 4 * D), (2, D, P), (2, T, rows, P))
    kernel, bias, projection, x = ((0.2 * torch.randn(shape, device=DEVICE)).requires_grad_() for shape in shapes)
    m, c, slope = (torch.randn(shape, device=DEVICE) for shape in ((2, rows, P), (2, rows, D), (2, T, rows, P)))
    results = []
    for function in (Recurrence, GpuRecurrence):
        y, last = function.apply(x, kernel, bias, projection, m, c, Clips(clip, clip, torch.float32))  # type: ignore[no-untyped-call]
        results.append((y, last, *torch.autograd.grad(y, (x, kernel, bias, projection), slope)))
    for ours, theirs in zip(*results, strict=True):
        assert largest(ours, theirs) <= 1e-5 * max(1.0, float(theirs.detach().abs().max()))


def test_resident_weights_are_where_the_tensor_cores_look_for_them() -> None:
    """The fragments of `mma.m16n8k16` for one block, put together as the PTX manual has them."""
    P, D, block, warp = 128, 1024, 3, 5
    rng = np.random.default_rng(0)
    kernel, m = rng.standard_normal((P, 4 * D)), rng.standard_normal((8, P))
    fragments = kernel[resident.gate_places(P, D)][block, :, warp]
    product = np.zeros((16, 8))
    for tile, fragment in enumerate(fragments):
        a, b = np.zeros((16, 16)), np.zeros((16, 8))
        for lane in range(32):
            g, q = divmod(lane, 4)
            mine = m[g, 32 * (tile // 2) + 8 * q :][:8].reshape(4, 2)[2 * (tile % 2) :][:2]
            for half in range(2):
                b[2 * q + 8 * half :][:2, g] = mine[half]
                for low in range(2):
                    a[g + 8 * low, 2 * q + 8 * half :][:2] = fragment[lane, 2 * half + low]
        product += a @ b
    for row in range(16):
        cell, gate = 64 * block + 4 * warp + row % 8 // 2, 2 * (row // 8) + row % 2
        np.testing.assert_allclose(product[row], m @ kernel[:, gate * D + cell])


def test_resident_projections_are_where_the_tensor_cores_look_for_them() -> None:
    P, D, block = 128, 1024, 3
    rng = np.random.default_rng(0)
    projection, h = rng.standard_normal((D, P)), rng.standard_normal((8, D))
    fragments = projection[resident.projection_places(P, D)][block]
    product = np.zeros((8, 8))
    for warp, of_warp in enumerate(fragments):
        for tile, fragment in enumerate(of_warp):
            a, b = np.zeros((8, 16)), np.zeros((16, 8))
            for lane in range(32):
                g, q = divmod(lane, 4)
                mine = h[g, warp * (D // 16) + 32 * (tile // 2) + 8 * q :][:8].reshape(4, 2)[2 * (tile % 2) :][:2]
                for half in range(2):
                    a[g, 2 * q + 8 * half :][:2] = mine[half]
                    b[2 * q + 8 * half :][:2, g] = fragment[lane, half]
            product += a @ b
    np.testing.assert_allclose(product, (h @ projection)[:, 8 * block : 8 * block + 8])


@pytest.mark.parametrize(("rows", "eights"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 4), (32, 4)])
def test_rows_go_into_the_least_kernel_that_has_room_for_them(rows: int, eights: int) -> None:
    assert resident.eights(rows) == eights


COMPILE = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from elmo.engine import triton_lstm as k

TABLES = {"starts": "*i32", "rows": "*i32", "time": "*i32", "step": "i32"}
SIZES = {"tokens": "i32", "capacity": "i32", "n_tiles": "i32", "clip": "fp32"}
BACK = {"t": "i32", "T": "i32", "B": "i32", "n_tiles": "i32", "clip": "fp32"}

def compiled(kernel, tile, tensors, **constants):
    constants = dict(P=512, D=4096, BM=tile.rows, BK=tile.depth, CLIP=True, PDL=True) | constants
    source = ASTSource(
        fn=kernel,
        signature=tensors | dict.fromkeys(constants, "constexpr"),
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared

for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
    def block(rows, columns):
        return f"tensordesc<{name}[{rows}, {columns}]>"

    fast = name == "bf16"
    for rows in (16, 128, 1024):
        tile = k.gates_tile(rows, dtype)
        tensors = {"a": block(tile.rows, tile.depth), "w": block(tile.depth, 4 * tile.columns), "bias": "*fp32"}
        tensors |= {"z": f"*{name}", "c_in": "*fp32", "c_out": "*fp32", "h": f"*{name}"}
        shared = [compiled(k.gates_kernel, tile, tensors | TABLES | SIZES, BC=tile.columns, SAVE=True, FAST=fast)]
        tile = k.project_tile(rows, dtype)
        tensors = {"h": block(tile.rows, tile.depth), "w": block(tile.depth, tile.columns), "partial": "*fp32"}
        tensors |= {"counters": "*i32", "m": f"*{name}", "y": "*fp32", "a": f"*{name}"} | TABLES | SIZES
        shared += [compiled(k.project_kernel, tile, tensors, BN=tile.columns, SPLIT=tile.split, SKIP=True)]
        tile = k.gates_backward_tile(rows, dtype)
        tensors = {"dm": block(tile.rows, tile.depth), "w": block(tile.columns, tile.depth), "z": f"*{name}"}
        tensors |= {"c": "*fp32", "dc": "*fp32"} | BACK
        shared += [compiled(k.gates_backward_kernel, tile, tensors, BC=tile.columns, FAST=fast)]
        tile = k.project_backward_tile(rows, dtype)
        tensors = {"dz": block(tile.rows, tile.depth), "w": block(tile.columns, tile.depth), "partial": "*fp32"}
        tensors |= {"counters": "*i32", "dy": "*fp32", "y": "*fp32", "dm": f"*{name}"} | BACK
        shared += [compiled(k.project_backward_kernel, tile, tensors, BN=tile.columns, SPLIT=tile.split)]
        assert max(shared) <= 227 * 1024, (name, rows, shared)
"""


def test_every_kernel_compiles_for_a_hopper_and_fits_into_its_shared_memory(tmp_path: Path) -> None:
    """Without a GPU: Triton brings its own compiler."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
