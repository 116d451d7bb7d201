"""What several test files share: model files of drawn shapes, and the reference vectors in ../shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

SHARED = Path(__file__).parents[2] / "shared"
GOLDEN = SHARED / "golden" / "allennlp"

settings.register_profile("elmo", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("elmo")
if not torch.cuda.is_available():
    # Triton's kernels run on the CPU then. It looks when it is imported, which PyTorch does at times.
    os.environ["TRITON_INTERPRET"] = "1"
torch.set_num_threads(1)  # the models here are tiny, and the tests run side by side

Options = dict[str, Any]


def small_options(**lstm: Any) -> Options:
    """The smallest interesting model: two layers, projection, clips, skip connection, one highway."""
    return {
        "lstm": {
            "dim": 12,
            "projection_dim": 5,
            "n_layers": 2,
            "cell_clip": 3,
            "proj_clip": 3,
            "use_skip_connections": True,
        }
        | lstm,
        "char_cnn": {
            "embedding": {"dim": 4},
            "filters": [[1, 4], [2, 4], [3, 8]],
            "n_highway": 1,
            "n_characters": 262,
            "max_characters_per_token": 50,
            "activation": "relu",
        },
    }


def weight_shapes(options: Options) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a bilm-tf weight file, written down from SEMANTICS section 6."""
    lstm, cnn = options["lstm"], options.get("char_cnn")
    width, dim = lstm["projection_dim"], lstm["dim"]
    shapes: dict[str, tuple[int, ...]] = {}
    if cnn is None:
        shapes["embedding"] = (options["n_tokens_vocab"], width)
    else:
        chars, n = cnn["embedding"]["dim"], sum(number for _, number in cnn["filters"])
        shapes["char_embed"] = (261, chars)
        for i, (size, number) in enumerate(cnn["filters"]):
            shapes[f"CNN/W_cnn_{i}"], shapes[f"CNN/b_cnn_{i}"] = (1, size, chars, number), (number,)
        for k in range(cnn.get("n_highway") or 0):
            for gate in ("carry", "transform"):
                shapes[f"CNN_high_{k}/W_{gate}"], shapes[f"CNN_high_{k}/b_{gate}"] = (n, n), (n,)
        if n != width:
            shapes["CNN_proj/W_proj"], shapes["CNN_proj/b_proj"] = (n, width), (width,)
    for direction in range(2):
        for k in range(lstm["n_layers"]):
            cell = f"MultiRNNCell/Cell{k}/" if lstm["n_layers"] > 1 else ""
            prefix = f"RNN_{direction}/RNN/{cell}LSTMCell/"
            shapes[prefix + "W_0"], shapes[prefix + "B"] = (2 * width, 4 * dim), (4 * dim,)
            if width < dim:
                shapes[prefix + "W_P_0"] = (dim, width)
    return shapes


def write_model(folder: Path, options: Options, seed: int = 0, scale: float = 0.5) -> dict[str, Any]:
    """Draw weights, write them as bilm-tf would, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, scale, shape).astype(np.float32) for name, shape in weight_shapes(options).items()}
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, value in weights.items():
            file[name] = value
    (folder / "options.json").write_text(json.dumps(options))
    return weights


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    write_model(folder, small_options())
    return folder


@pytest.fixture(scope="session")
def golden() -> Path:
    if not GOLDEN.exists():
        pytest.skip("the reference vectors of ../shared are not here")
    return GOLDEN


def heed_interrupts() -> None:
    """Before a command starts: a shell lets what it runs in the background ignore Ctrl-C, and so its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_elmo(
    *arguments: object, stdin: bytes = b"", environment: dict[str, str] | None = None, **kwargs: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run the `elmo` command as a user would."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
    command = [sys.executable, "-m", "elmo", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=300, **kwargs)


def run_example(name: str) -> str:
    """What an example prints; it has no network."""
    script = Path(__file__).parents[1] / "examples" / name
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout
