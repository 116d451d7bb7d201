"""Published formats of ELMo models: one file each, found out by what a path holds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from elmo.errors import ElmoError
from elmo.files import new_folder
from elmo.formats import bilm_tf, native
from elmo.formats.bundle import Bundle

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
    if path.is_dir() and options is None and native.is_native(path):
        return native.read(path)
    folder = path if path.is_dir() else path.parent
    weights = _only(folder, ("*.hdf5", "*.h5"), "HDF5 file") if path.is_dir() else path
    if vocab is None and (folder / bilm_tf.VOCAB).is_file():
        vocab = folder / bilm_tf.VOCAB
    return bilm_tf.read(weights, options or _options_in(folder), vocab)


def write_model(bundle: Bundle, path: Path, *, format: Format = "native", overwrite: bool = False) -> None:
    """Write a model as a folder in the given format; the folder appears whole or not at all."""
    if format not in get_args(Format):
        raise ElmoError(f"format is {format!r}: give one of {', '.join(get_args(Format))}")
    if overwrite and path.is_dir() and any(path.iterdir()) and not _is_model(path):
        raise ElmoError(f"{path} holds something else than a model: it is not overwritten")
    with new_folder(path, overwrite=overwrite) as folder:
        (native if format == "native" else bilm_tf).write(bundle, folder)


def _is_model(folder: Path) -> bool:
    return native.is_native(folder) or (folder / bilm_tf.OPTIONS).is_file()


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
