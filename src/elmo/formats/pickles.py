"""PyTorch's own files (`.th`, `.pkl`): tensors by name, with nothing else let in.

They are pickles, which can say to run anything. PyTorch's restricted reader (`weights_only`) makes tensors and plain
containers alone; whatever else a file asks for is refused before it runs.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from typing import IO

import torch
from torch import Tensor

from elmo.errors import ElmoError


def read_tensors(file: IO[bytes], name: str) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU; `name` is what an error calls the file."""
    try:
        _refuse_compressed(file, name)
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except ElmoError:
        raise
    except pickle.UnpicklingError as error:
        raise ElmoError(
            f"{name} holds something else than tensors, or is damaged; none of it was run: {_first_line(error)}"
        ) from error
    except Exception as error:  # a damaged file is met with errors of a dozen types
        raise ElmoError(f"{name} is not a whole PyTorch file: {_first_line(error)}") from error
    if not isinstance(loaded, Mapping):
        raise ElmoError(f"{name} holds a {type(loaded).__name__}; tensors by name, a state dict, are expected")
    tensors = {key: value for key, value in loaded.items() if isinstance(key, str) and _plain(value)}
    for key, value in tensors.items():
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ElmoError(f"{name}: {key!r:.200} has more numbers than the file stores of it: it is not read")
    return tensors


def _plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.dtype.is_floating_point


def _refuse_compressed(file: IO[bytes], name: str) -> None:
    """PyTorch stores its zips uncompressed; it would unpack a compressed one, of any size, into memory."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ElmoError(f"{name} is a compressed zip, which PyTorch never writes: it is not opened")
    file.seek(0)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
