"""Whether Triton's kernels can be had: what else needs them imports them only then."""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

_OLDEST_TRITON = (3, 6)  # which PyTorch 2.10 and later bring; older ones were not tried
_OLDEST_GPU = (8, 0)  # compute capability
_MOST_CELLS = 256  # of an LSTM whose steps take one multiprocessor less time than their launches take the host
_SIZE = 64  # of which cells and projections that the LSTM's kernels know are multiples


@cache
def has_triton(device: torch.device) -> bool:
    """Whether there is what compiles kernels, and a device for them: a GPU of NVIDIA's, or a CPU that plays one."""
    if _triton() < _OLDEST_TRITON:
        return False
    if device.type != "cuda":
        return device.type == "cpu"
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < _OLDEST_GPU:
        return False
    missing = _missing_compiler()
    if missing is not None:
        warnings.warn(
            f"no {missing} is here, without which Triton makes no kernels: slower ones are used", stacklevel=2
        )
    return missing is None


def _missing_compiler() -> str | None:
    """What Triton lacks to make a kernel's launcher, in C, when it is first called."""
    if "CC" not in os.environ and not any(map(shutil.which, ("gcc", "clang"))):
        return "C compiler"
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # Debian's, as Triton takes it
    headers = Path(sysconfig.get_paths(scheme=scheme)["include"])
    return None if (headers / "Python.h").exists() else "header of Python (Python.h; python3-dev on Debian)"


def _triton() -> tuple[int, ...]:
    """Its version, without the second that importing it takes; nothing where it is not installed."""
    for name in ("triton", "pytorch-triton"):
        try:
            return tuple(int(part) for part in metadata.version(name).split(".")[:2])
        except (metadata.PackageNotFoundError, ValueError):
            continue
    return ()


def has_lstm_kernels(device: torch.device, cells: int, projection: int) -> bool:
    """Whether `triton_lstm.py` runs on a device and knows an LSTM of this size."""
    return device.type == "cuda" and cells % _SIZE == projection % _SIZE == 0 and has_triton(device)


def has_row_kernels(device: torch.device, cells: int) -> bool:
    """Whether `tasks/triton_rows.py` runs on a device and is good for an LSTM of this size."""
    return device.type == "cuda" and cells <= _MOST_CELLS and has_triton(device)
