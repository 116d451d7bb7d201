"""Published formats of ELMo models: one file each, found out by what a path holds."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Literal, get_args

from elmo.errors import ElmoError
from elmo.files import new_folder
from elmo.formats import allennlp, bilm_tf, manylangs, native, nlpl, tf_checkpoint, tf_hub, token_cache
from elmo.formats.archives import Folder, read_zip
from elmo.formats.bundle import Bundle
from elmo.formats.native import Dtype

Format = Literal["native", "bilm-tf", "nlpl", "token-cache"]
"""What can be written; more can be read."""

_KNOWN = (
    "known are a native folder (config.json, model.safetensors), a folder with options.json and one .hdf5 or the .hdf5 "
    "itself with options=..., a TensorFlow checkpoint, a TF Hub module, an ELMoForManyLangs folder, a zip of NLPL, and "
    "AllenNLP's model.tar.gz or .th"
)
_GZIP, _ZIP, _PICKLE = b"\x1f\x8b", b"PK\x03\x04", b"\x80"


def read_model(path: Path, *, options: Path | None = None, vocab: Path | None = None) -> Bundle:
    """Read a model in any known format.

    Args:
        path: a folder or a file of a model, or the prefix of a TensorFlow checkpoint.
        options: the options, where they are not with the weights.
        vocab: the vocabulary of a model that reads words, where it is not in the folder.
    """
    prefix = tf_checkpoint.find_prefix(path)
    if not path.exists() and prefix is None:
        raise ElmoError(f"there is no model at {path}")
    folder = path if path.is_dir() else path.parent
    if native.is_native(folder) and (path.is_dir() or native.is_ours(path.name)):
        if options is not None or vocab is not None:
            raise ElmoError(f"{folder} is a native folder, which has its own options and vocabulary: give none")
        return native.read(folder)
    if prefix is not None and not (path.is_dir() and _hdf5_files(path)):  # of both, HDF5 is what was made for use
        return tf_checkpoint.read(prefix, options or _options_in(folder), vocab)
    return _read_folder(path, options, vocab) if path.is_dir() else _read_file(path, options, vocab)


def _read_folder(folder: Path, options: Path | None, vocab: Path | None) -> Bundle:
    names = [path.name for path in folder.iterdir()]
    if manylangs.is_manylangs(names):
        _refuse_vocab(vocab, folder)
        size = sum((folder / name).stat().st_size for name in names if name.endswith(manylangs.MEMBERS))
        return manylangs.read(Folder(folder), size, options)
    if (variables := tf_hub.prefix_in(folder)) is not None:
        _refuse_vocab(vocab, folder)
        return tf_hub.read(variables, options)
    found = _hdf5_files(folder)
    caches = [path for path in found if len(found) == 2 and token_cache.is_cache(path)]
    if len(caches) == 1:
        (weights,) = [path for path in found if path not in caches]
        return token_cache.read(caches[0], weights, options or _options_in(folder), vocab)
    weights = _only(folder, found, "HDF5 file")
    return bilm_tf.read(weights, options or _options_in(folder), vocab)


def _read_file(path: Path, options: Path | None, vocab: Path | None) -> Bundle:
    """Read a model of one file, or with its options beside it, by the bytes that it begins with."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error.strerror}") from error
    if not (magic == _ZIP or magic.startswith((_GZIP, _PICKLE))):
        return bilm_tf.read(path, options or _options_in(path.parent), vocab)
    _refuse_vocab(vocab, path)
    if magic.startswith(_GZIP):
        return allennlp.read_archive(path, options)
    if magic.startswith(_PICKLE) or _is_pytorch(path):
        return allennlp.read_state_dict(path, options)
    return _read_zip(path, options)


def _read_zip(path: Path, options: Path | None) -> Bundle:
    members, size = read_zip(path, (*nlpl.MEMBERS, *manylangs.MEMBERS)), path.stat().st_size
    if manylangs.is_manylangs(members.names()):
        return manylangs.read(members, size, options)
    if nlpl.WEIGHTS in members.names():
        if options is not None:
            raise ElmoError(f"{path} has its own options: give none")
        return nlpl.read(members, size)
    raise ElmoError(f"{path} is a zip without {nlpl.WEIGHTS} or {manylangs.ENCODER}: {_KNOWN}")


def _is_pytorch(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except Exception:  # whoever reads it says what is wrong with it
        return False


def _refuse_vocab(vocab: Path | None, path: Path) -> None:
    if vocab is not None:
        raise ElmoError(f"{path} has its own vocabulary, or needs none: give no vocab")


def write_model(
    bundle: Bundle,
    path: Path,
    *,
    format: Format = "native",
    dtype: Dtype = "float32",
    max_file_mb: float | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model in the given format, a zip for "nlpl", else a folder; it appears whole or not at all."""
    if format not in get_args(Format):
        raise ElmoError(f"format is {format!r}: give one of {', '.join(get_args(Format))}")
    if dtype not in get_args(Dtype):
        raise ElmoError(f"dtype is {dtype!r}: give one of {', '.join(get_args(Dtype))}")
    if format != "native" and (dtype != "float32" or max_file_mb is not None):
        raise ElmoError(f"{format} is one file of float32: leave dtype and max_file_mb out, or give format 'native'")
    if max_file_mb is not None and not max_file_mb > 0:
        raise ElmoError(f"max_file_mb is {max_file_mb}: give a number above 0")
    check_target(path, format=format, overwrite=overwrite)
    if format == "nlpl":
        nlpl.write(bundle, path)
        return
    with new_folder(path) as folder:
        if format == "native":
            native.write(bundle, folder, dtype=dtype, max_file_mb=max_file_mb)
        elif format == "bilm-tf":
            bilm_tf.write(bundle, folder)
        else:
            token_cache.write(bundle, folder)


def left_out(bundle: Bundle, format: Format) -> list[str]:
    """What a format has no place for, of what a model holds: a sentence for each part."""
    if format == "native":
        return []
    parts = {"warm start state": bundle.warm, "learned mix": bundle.mix, "language model head": bundle.head}
    return [
        f"{format} has no place for the {name}; it was left out" for name, part in parts.items() if part is not None
    ]


def check_target(path: Path, *, format: str = "native", overwrite: bool) -> None:
    """Refuse a place to write a model to where something is that must not be replaced."""
    if not path.exists():
        return
    if path.is_dir() == (format == "nlpl"):
        raise ElmoError(
            f"{path} is a folder: a zip is to be written there"
            if path.is_dir()
            else f"{path} is a file: a folder is to be written there"
        )
    if not overwrite:
        raise ElmoError(f"{path} exists: give another path, or say to overwrite it")
    if not path.is_dir():
        if not zipfile.is_zipfile(path):
            raise ElmoError(f"{path} is something else than a zip: it is not overwritten")
        return
    others = sorted(
        file.name for file in path.iterdir() if not (native.is_ours(file.name) or bilm_tf.is_ours(file.name))
    )
    if others:
        raise ElmoError(f"{path} holds something else than a model ({others[0]}): it is not overwritten")


def _hdf5_files(folder: Path) -> list[Path]:
    return sorted(path for pattern in ("*.hdf5", "*.h5") for path in folder.glob(pattern))


def _options_in(folder: Path) -> Path:
    named = folder / bilm_tf.OPTIONS
    return _only(folder, [named] if named.exists() else sorted(folder.glob("*options.json")), "options.json")


def _only(folder: Path, found: list[Path], what: str) -> Path:
    if not found:
        raise ElmoError(f"{folder} has no {what}: {_KNOWN}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ElmoError(f"{folder} has more than one {what} ({names}): name the one that is meant")
    return found[0]
