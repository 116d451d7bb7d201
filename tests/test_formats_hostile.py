"""Files from outside that mean harm or are damaged: refused with a reason, nothing run, nothing written.

`ELMO_FUZZ=300` changes the number of damaged files for each reader (`make fuzz`).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import elmo
import manylangs64
from conftest import small_options, write_model
from elmo.errors import ElmoError
from elmo.formats import archives, tensor_bundle
from test_formats_allennlp import state_dict, write_archive

TENSORFLOW = Path(__file__).parent / "data" / "tensorflow"
COUNT = int(os.environ.get("ELMO_FUZZ", "25"))
OPTIONS = small_options(dim=5, projection_dim=2)


class Bomb:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "it ran")


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run in a folder beside that of the files, and see that nothing comes into being there or above."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cwd", "in"]
    assert not list((tmp_path / "cwd").iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "in"


def zipped(path: Path, members: Mapping[str, bytes | str], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def nlpl(folder: Path) -> dict[str, bytes | str]:
    """Members of a zip of NLPL."""
    write_model(folder, OPTIONS)
    return {
        "model.hdf5": (folder / "weights.hdf5").read_bytes(),
        "options.json": (folder / "options.json").read_text(),
        "vocab.txt": "<S>\n</S>\n<UNK>\ncat\n",
    }


class TestZip:
    @pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "..\\evil", "C:\\evil"])
    def test_a_member_that_leads_out(self, place: Path, name: str) -> None:
        with pytest.raises(ElmoError, match="leads out of the archive: it is not opened"):
            elmo.load(zipped(place / "m.zip", nlpl(place / "m") | {name: b"x"}))

    def test_a_link(self, place: Path) -> None:
        path = zipped(place / "m.zip", nlpl(place / "m"))
        with zipfile.ZipFile(path, "a") as archive:
            link = zipfile.ZipInfo("vocab.txt.gz")
            link.external_attr = 0o120777 << 16
            archive.writestr(link, "/etc/passwd")
        with pytest.raises(ElmoError, match=r"holds a link \('vocab\.txt\.gz'\)"):
            elmo.load(path)

    def test_a_bomb_costs_no_memory(self, place: Path) -> None:
        path = zipped(place / "m.zip", nlpl(place / "m") | {"model.hdf5": bytes(2**27)})
        tracemalloc.start()
        with pytest.raises(ElmoError, match="unpacks to more than 100 times its size"):
            elmo.load(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2**24

    def test_a_bomb_that_lies_about_its_size(self, place: Path) -> None:
        path = zipped(place / "m.zip", nlpl(place / "m") | {"vocab.txt": bytes(2**24)})
        content = path.read_bytes().replace(struct.pack("<I", 2**24), struct.pack("<I", 1000))
        path.write_bytes(content)
        with pytest.raises(ElmoError, match=r"damaged|not of the size"):
            elmo.load(path)

    def test_a_gzipped_vocabulary_that_is_a_bomb(self, place: Path) -> None:
        members = nlpl(place / "m")
        del members["vocab.txt"]
        packed = gzip.compress(b"word\n" * 2**22)
        path = zipped(place / "m.zip", members | {"vocab.txt.gz": packed}, zipfile.ZIP_STORED)
        with pytest.raises(ElmoError, match=r"vocab\.txt\.gz unpacks to more than 100 times its size"):
            elmo.load(path)

    def test_a_gzipped_vocabulary_of_a_size_that_none_has(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archives, "_MOST_TEXT", 5000)
        members = nlpl(place / "m")
        del members["vocab.txt"]
        path = zipped(place / "m.zip", members | {"vocab.txt.gz": gzip.compress(b"word\n" * 2000)})
        with pytest.raises(ElmoError, match=r"vocab\.txt\.gz holds more than 5,000 bytes"):
            elmo.load(path)

    def test_a_zip_without_a_model(self, place: Path) -> None:
        with pytest.raises(ElmoError, match=r"a zip without model\.hdf5 or encoder\.pkl: known are"):
            elmo.load(zipped(place / "m.zip", {"README": "x"}))


class TestTar:
    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
    def test_links_and_devices(self, place: Path, kind: bytes) -> None:
        with tarfile.open(place / "m.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo("weights.th")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        with pytest.raises(ElmoError, match=r"holds a link, a device or a file with holes \('weights\.th'\)"):
            elmo.load(place / "m.tar.gz")

    @pytest.mark.parametrize("name", ["../weights.th", "/weights.th"])
    def test_a_member_that_leads_out(self, place: Path, name: str) -> None:
        with pytest.raises(ElmoError, match="leads out of the archive"):
            elmo.load(write_archive(place / "m.tar.gz", {}, **{name.replace("/", "__"): "x"}))

    def test_a_bomb(self, place: Path) -> None:
        with pytest.raises(ElmoError, match="unpacks to more than 100 times its size"):
            elmo.load(write_archive(place / "m.tar.gz", {}, **{"config.json": "0" * 2**26 + "1" * 2**24}))

    @pytest.mark.parametrize("how", ["gnu", "pax"])
    def test_a_file_with_holes(self, place: Path, how: str) -> None:
        """A few hundred bytes that say that they are 8 GiB of zeros."""
        size = 8**11 - 1
        with tarfile.open(place / "m.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
            info = tarfile.TarInfo("weights.th")
            if how == "pax":
                name = {"GNU.sparse.name": "weights.th", "GNU.sparse.map": f"{size},0"}
                info.pax_headers = {"GNU.sparse.size": str(size), "GNU.sparse.numblocks": "1", **name}
                archive.addfile(info)
            else:
                header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
                header[156:157] = tarfile.GNUTYPE_SPARSE
                header[386:410] = b"%011o\0" % size + b"%011o\0" % 0
                header[483:495] = b"%011o\0" % size
                header[148:156] = b" " * 8
                header[148:156] = b"%06o\0 " % sum(header)
                assert archive.fileobj is not None
                archive.fileobj.write(bytes(header))
        with pytest.raises(ElmoError, match="file with holes"):
            elmo.load(place / "m.tar.gz")


class TestPickle:
    def test_a_tensor_of_more_numbers_than_are_stored(self, place: Path) -> None:
        tensors = state_dict(write_model(place / "m", OPTIONS), OPTIONS)
        name = max(tensors, key=lambda name: tensors[name].numel())
        torch.save(tensors | {name: torch.zeros(1).expand(tensors[name].shape)}, place / "best.th")
        with pytest.raises(ElmoError, match=f"{name}' has more numbers than the file stores"):
            elmo.load(place / "best.th")

    @pytest.mark.parametrize("legacy", [False, True])
    def test_code_is_not_run(self, place: Path, legacy: bool) -> None:
        torch.save({"a": Bomb(place / "ran")}, place / "best.th", _use_new_zipfile_serialization=not legacy)
        with pytest.raises(ElmoError, match="something else than tensors, or is damaged; none of it was run"):
            elmo.load(place / "best.th")
        assert not (place / "ran").exists()

    def test_nor_is_that_of_a_bare_pickle(self, place: Path) -> None:
        (place / "best.th").write_bytes(pickle.dumps(Bomb(place / "ran")))
        with pytest.raises(ElmoError, match=r"none of it was run|not a whole PyTorch file"):
            elmo.load(place / "best.th")
        assert not (place / "ran").exists()

    def test_nor_that_of_an_archive_or_a_folder(self, place: Path) -> None:
        evil: Any = {"a": Bomb(place / "ran")}
        manylangs64.write(place / "m")
        torch.save(evil, place / "m" / "encoder.pkl")
        for path in (write_archive(place / "m.tar.gz", evil), place / "m"):
            with pytest.raises(ElmoError, match="none of it was run"):
                elmo.load(path)
        assert not (place / "ran").exists()

    def test_a_compressed_one_is_not_unpacked(self, place: Path) -> None:
        torch.save({"a": torch.zeros(2**20)}, place / "plain.th")
        with zipfile.ZipFile(place / "plain.th") as archive:
            zipped(place / "best.th", {name: archive.read(name) for name in archive.namelist()})
        with pytest.raises(ElmoError, match="a compressed zip, which PyTorch never writes"):
            elmo.load(place / "best.th")


class TestHdf5:
    def test_links_out_of_a_zipped_file(self, place: Path) -> None:
        members = nlpl(place / "m")
        with h5py.File(place / "m" / "weights.hdf5", "a") as file:
            del file["CNN/b_cnn_0"]
            file["CNN/b_cnn_0"] = h5py.ExternalLink("/etc/secret.hdf5", "b")
        members["model.hdf5"] = (place / "m" / "weights.hdf5").read_bytes()
        with pytest.raises(ElmoError, match="CNN/b_cnn_0 is a link to another file: it is not followed"):
            elmo.load(zipped(place / "m.zip", members))

    @pytest.mark.parametrize("chunks", [None, True])
    def test_weights_of_which_nothing_is_stored(self, place: Path, chunks: bool | None) -> None:
        write_model(place / "m", small_options(dim=700, projection_dim=300))
        with h5py.File(place / "m" / "weights.hdf5", "a") as file:
            name = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"
            shape = file[name].shape
            del file[name]
            file.create_dataset(name, shape, dtype="<f4", chunks=chunks)
        with pytest.raises(ElmoError, match="W_0 has far more numbers than the file stores: it is not read"):
            elmo.load(place / "m")

    def test_data_that_lies_in_another_file(self, place: Path) -> None:
        write_model(place / "m", OPTIONS)
        (place / "secret").write_bytes(bytes(16))
        with h5py.File(place / "m" / "weights.hdf5", "a") as file:
            del file["CNN/b_cnn_0"]
            file.create_dataset("CNN/b_cnn_0", (4,), dtype="<f4", external=[(str(place / "secret"), 0, 16)])
        with pytest.raises(ElmoError, match="CNN/b_cnn_0 is not a plain table"):
            elmo.load(place / "m")


Damage = Callable[[bytes, np.random.Generator], bytes]


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, cut out, or put in."""
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(0, max(1, len(changed))))
        size = int(rng.integers(1, 9))
        kind = int(rng.integers(0, 8))
        if kind < 4:
            changed[at : at + 1] = bytes([int(rng.integers(0, 256))])
        elif kind == 4:
            changed[at : at + size] = b"\xff" * size
        elif kind == 5:
            del changed[at : at + size]
        elif kind == 6:
            changed[at:at] = rng.bytes(size)
        else:
            del changed[at + int(rng.integers(0, max(1, len(changed) - at))) :]
    return bytes(changed)


def in_gzip(content: bytes, rng: np.random.Generator) -> bytes:
    """What is in a gzip damaged, and put into one again."""
    return gzip.compress(damaged(gzip.decompress(content), rng), 1)


def in_zip(content: bytes, rng: np.random.Generator) -> bytes:
    """A member of a zip damaged, with the right checksum."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
        kind = archive.infolist()[0].compress_type
    name = sorted(members)[int(rng.integers(0, len(members)))]
    members[name] = damaged(members[name], rng)
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", kind) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return whole.getvalue()


def in_block(content: bytes, rng: np.random.Generator) -> bytes:
    """The first block of a checkpoint's index damaged, with the right checksum and of the same size."""
    _, at = tensor_bundle._handle(content, len(content) - 48)
    (end, _), _ = tensor_bundle._handle(content, at)
    (meta, _), _ = tensor_bundle._handle(content, len(content) - 48)
    size = min(end, meta) - 5
    block = damaged(content[:size], rng)[:size].ljust(size, b"\0") + b"\0"
    return block + struct.pack("<I", tensor_bundle._masked_crc(block)) + content[size + 5 :]


def tensorflow_sample(folder: Path) -> Path:
    shutil.copytree(TENSORFLOW, folder)
    return folder


def hub_sample(folder: Path) -> Path:
    shutil.copytree(TENSORFLOW / "hub", folder)
    return folder


def hdf5_sample(folder: Path) -> Path:
    write_model(folder, OPTIONS)
    return folder


def cache_sample(folder: Path) -> Path:
    write_model(folder, OPTIONS)
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ncat\n")
    with h5py.File(folder / "cache.hdf5", "w") as file:
        file["embedding"] = np.zeros((4, 2), dtype=np.float32)
    return folder


def native_sample(folder: Path) -> Path:
    elmo.save(elmo.load(hdf5_sample(folder.with_name("source"))), folder, dtype="int8")
    return folder


def nlpl_sample(folder: Path) -> Path:
    folder.mkdir()
    return zipped(folder / "m.zip", nlpl(folder.with_name("source")))


def allennlp_sample(folder: Path) -> Path:
    folder.mkdir()
    tensors = state_dict(write_model(folder.with_name("source"), OPTIONS), OPTIONS)
    held = {"config.json": "{}", "fta__options_file": json.dumps(OPTIONS)}
    return write_archive(folder / "model.tar.gz", tensors, **held)


def torch_sample(folder: Path, *, legacy: bool = False) -> Path:
    folder.mkdir()
    tensors = state_dict(write_model(folder.with_name("source"), OPTIONS), OPTIONS)
    torch.save(tensors, folder / "best.th", _use_new_zipfile_serialization=not legacy)
    return folder / "best.th"


def legacy_sample(folder: Path) -> Path:
    return torch_sample(folder, legacy=True)


def manylangs_sample(folder: Path) -> Path:
    manylangs64.write(folder)
    return folder


# What is loaded, which of its files is damaged, and how.
READERS: list[tuple[Callable[[Path], Path], str, Damage]] = [
    (tensorflow_sample, "model.ckpt-3.index", damaged),
    (tensorflow_sample, "model.ckpt-3.index", in_block),
    (tensorflow_sample, "options.json", damaged),
    (tensorflow_sample, "checkpoint", damaged),
    (hub_sample, "variables/variables.index", in_block),
    (hub_sample, "variables/variables.data-00000-of-00001", damaged),
    (hdf5_sample, "weights.hdf5", damaged),
    (cache_sample, "cache.hdf5", damaged),
    (native_sample, "model.safetensors", damaged),
    (native_sample, "config.json", damaged),
    (nlpl_sample, "m.zip", damaged),
    (nlpl_sample, "m.zip", in_zip),
    (allennlp_sample, "model.tar.gz", damaged),
    (allennlp_sample, "model.tar.gz", in_gzip),
    (torch_sample, "best.th", damaged),
    (torch_sample, "best.th", in_zip),
    (legacy_sample, "best.th", damaged),
    (manylangs_sample, "encoder.pkl", in_zip),
    (manylangs_sample, "char.dic", damaged),
    (manylangs_sample, "word.dic", damaged),
    (manylangs_sample, "settings.json", damaged),
]


@pytest.mark.parametrize(("sample", "name", "damage"), READERS)
def test_a_damaged_file_loads_or_is_refused(
    place: Path, sample: Callable[[Path], Path], name: str, damage: Damage
) -> None:
    path = sample(place / "model")
    (place / "o.json").write_text(json.dumps(OPTIONS))
    options = place / "o.json" if path.name == "best.th" else None
    assert elmo.load(path, options=options)
    target = path / name if path.is_dir() else path
    whole = target.read_bytes()
    refused = 0
    for number in range(COUNT):
        target.write_bytes(damage(whole, np.random.default_rng([READERS.index((sample, name, damage)), number])))
        try:
            elmo.load(path, options=options)
        except ElmoError:
            refused += 1
    assert refused > 0 or name == "checkpoint"  # without it the folder's only checkpoint is found
