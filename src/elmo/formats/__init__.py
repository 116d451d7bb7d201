"""Published formats of ELMo models: one file each, found out by what a path holds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from elmo.errors import ElmoError
from elmo.files import new_folder
from elmo.formats import bilm_tf, native
from elmo.formats.bundle import Bundle
from elmo.formats.native import Dtype

Format = Literal["native", "bilm-tf"]

_KNOWN = (
    "known are a native folder (config.json, model.safetensors), a folder with options.json and one .hdf5, "
    "or the .hdf5 itself with options=..."
)


def read_model(path: Path, *, options: Path | None = None, vocab: Path | None = None) -> Bundle:
    """Read a model in any known format.

    Args:
        path: a native folder, a folder with `options.json` and one HDF5 file, or an HDF5 file.
        options: the options of the HDF5 file, where they are not in its folder.
        vocab: the vocabulary of a model that reads words, where it is not in the folder.
    """
    if not path.exists():
        raise ElmoError(f"there is no model at {path}")
    folder = path if path.is_dir() else path.parent
    if native.is_native(folder) and (path.is_dir() or native.is_ours(path.name)):
        if options is not None or vocab is not None:
            raise ElmoError(f"{folder} is a native folder, which has its own options and vocabulary: give none")
        return native.read(folder)
    weights = _only(folder, ("*.hdf5", "*.h5"), "HDF5 file") if path.is_dir() else path
    return bilm_tf.read(weights, options or _options_in(folder), vocab)


def write_model(
    bundle: Bundle,
    path: Path,
    *,
    format: Format = "native",
    dtype: Dtype = "float32",
    max_file_mb: float | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model as a folder in the given format; the folder appears whole or not at all."""
    if format not in get_args(Format):
        raise ElmoError(f"format is {format!r}: give one of {', '.join(get_args(Format))}")
    if dtype not in get_args(Dtype):
        raise ElmoError(f"dtype is {dtype!r}: give one of {', '.join(get_args(Dtype))}")
    if format != "native" and (dtype != "float32" or max_file_mb is not None):
        raise ElmoError(f"{format} is one file of float32: leave dtype and max_file_mb out, or give format 'native'")
    if max_file_mb is not None and not max_file_mb > 0:
        raise ElmoError(f"max_file_mb is {max_file_mb}: give a number above 0")
    check_target(path, overwrite=overwrite)
    with new_folder(path) as folder:
        if format == "native":
            native.write(bundle, folder, dtype=dtype, max_file_mb=max_file_mb)
        else:
            bilm_tf.write(bundle, folder)


def left_out(bundle: Bundle, format: Format) -> list[str]:
    """What a format has no place for, of what a model holds: a sentence for each part."""
    if format == "native":
        return []
    parts = {"warm start state": bundle.warm, "learned mix": bundle.mix, "language model head": bundle.head}
    return [
        f"{format} has no place for the {name}; it was left out" for name, part in parts.items() if part is not None
    ]


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a place to write a model to where something is that must not be replaced."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ElmoError(f"{path} is a file: a folder is to be written there")
    if not overwrite:
        raise ElmoError(f"{path} exists: give another path, or say to overwrite it")
    others = sorted(
        file.name for file in path.iterdir() if not (native.is_ours(file.name) or bilm_tf.is_ours(file.name))
    )
    if others:
        raise ElmoError(f"{path} holds something else than a model ({others[0]}): it is not overwritten")


def _options_in(folder: Path) -> Path:
    return _only(
        folder, (bilm_tf.OPTIONS,) if (folder / bilm_tf.OPTIONS).exists() else ("*options.json",), "options.json"
    )


def _only(folder: Path, patterns: tuple[str, ...], what: str) -> Path:
    found = sorted(path for pattern in patterns for path in folder.glob(pattern))
    if not found:
        raise ElmoError(f"{folder} has no {what}: {_KNOWN}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ElmoError(f"{folder} has more than one {what} ({names}): name the one that is meant")
    return found[0]
