"""TensorFlow's checkpoints as files: `PREFIX.index` and `PREFIX.data-00000-of-00001`, read without TensorFlow.

The index is a sorted table of LevelDB's kind: blocks of keys and values, a block of where these are, and a footer. A
value is a protocol buffer that says the type, the shape and the place of a tensor in a data file, where it lies as it
is. Every block has a checksum, which is looked at; those of the tensors, of which there are gigabytes, are not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from elmo.errors import ElmoError
from elmo.formats.stored import Place

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # behind a block: how it is compressed, and its checksum
_MOST_INDEX = 2**24  # bytes; a model has some hundred variables
_LONGEST_NAME = 2**10  # bytes
_DTYPES = {1: torch.float32, 2: torch.float64, 19: torch.float16, 14: torch.bfloat16}
_CRC_POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed


@dataclass(frozen=True)
class Entry:
    """A tensor of a checkpoint."""

    shard: int
    """Which of the data files it is in."""
    place: Place | None
    """Where it is there; None for types that are no floating-point numbers."""


def read_index(prefix: Path) -> tuple[dict[str, Entry], list[Path]]:
    """The tensors of a checkpoint by name, and its data files."""
    path = prefix.with_name(f"{prefix.name}.index")
    try:
        if path.stat().st_size > _MOST_INDEX:
            raise ElmoError(f"{path} is too large for the index of a checkpoint")
        content = path.read_bytes()
    except OSError as error:
        raise ElmoError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _parse(content, prefix)
    except ElmoError as error:
        raise ElmoError(f"{path} is no whole index of a TensorFlow checkpoint: {error}") from error
    except (IndexError, KeyError, OverflowError, UnicodeDecodeError, struct.error) as error:
        raise ElmoError(f"{path} is no whole index of a TensorFlow checkpoint: it is damaged") from error


def _parse(content: bytes, prefix: Path) -> tuple[dict[str, Entry], list[Path]]:
    values = dict(_table(content))
    if b"" not in values:
        raise ElmoError("it has no header")
    header = _fields(values.pop(b""))
    count = _number(header, 1)
    if not 1 <= count <= 10_000 or _number(header, 2) != 0:
        raise ElmoError("its header says no number of data files, or that numbers are big-endian")
    files = [prefix.with_name(f"{prefix.name}.data-{i:05}-of-{count:05}") for i in range(count)]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in files]
    return {key.decode(): _entry(key.decode(), value, sizes) for key, value in values.items()}, files


def _entry(name: str, value: bytes, sizes: list[int]) -> Entry:
    fields = _fields(value)
    if 7 in fields:
        raise ElmoError(f"{name!r:.80} is stored in slices, which is not known here")
    shape = tuple(_number(_fields(_bytes(dim)), 1) for dim in _fields(_bytes_of(fields, 2)).get(2, []))
    shard, offset, size, dtype = (_number(fields, field) for field in (3, 4, 5, 1))
    if not 0 <= shard < len(sizes) or offset < 0 or any(not 0 <= length < 2**40 for length in shape):
        raise ElmoError(f"{name!r:.80} is nowhere")
    if dtype not in _DTYPES:
        return Entry(shard, None)
    if math.prod(shape) * _DTYPES[dtype].itemsize != size or offset + size > sizes[shard]:
        raise ElmoError(f"{name!r:.80} is not in its data file: that is missing, cut off, or of another checkpoint")
    return Entry(shard, Place(offset, shape, _DTYPES[dtype]))


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a sorted table."""
    if len(content) < _FOOTER or int.from_bytes(content[-8:], "little") != _MAGIC:
        raise ElmoError("it does not end as one")
    _, at = _handle(content, len(content) - _FOOTER)  # of the block about blocks
    index, _ = _handle(content, at)
    left = len(content)
    for _, where in _entries(_block(content, index)):
        handle, _ = _handle(where, 0)
        left -= handle[1]
        if left < 0:
            raise ElmoError("its blocks overlap")
        yield from _entries(_block(content, handle))


def _block(content: bytes, handle: tuple[int, int]) -> bytes:
    offset, size = handle
    end = offset + size
    if end + _TRAILER > len(content):
        raise ElmoError("a block lies behind its end")
    if content[end] != 0:
        raise ElmoError("its blocks are compressed, as TensorFlow does not write them: save the checkpoint again")
    (stored,) = struct.unpack_from("<I", content, end + 1)
    if stored != _masked_crc(content[offset : end + 1]):
        raise ElmoError("a checksum is wrong")
    return content[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; a key shares its beginning with the one before."""
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end, at, key = len(block) - 4 - 4 * restarts, 0, b""
    while at < end:
        shared, at = _varint(block, at)
        more, at = _varint(block, at)
        size, at = _varint(block, at)
        if at + more + size > end or shared > len(key):
            raise ElmoError("an entry lies behind its block's end")
        key = key[:shared] + block[at : at + more]
        if len(key) > _LONGEST_NAME:
            raise ElmoError("a name is too long")
        yield key, block[at + more : at + more + size]
        at += more + size


def _handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where the handle ends."""
    offset, at = _varint(content, at)
    size, at = _varint(content, at)
    return (offset, size), at


Fields = Mapping[int, list[int | bytes]]


def _fields(message: bytes) -> Fields:
    """The fields of a protocol buffer by their numbers: whole numbers, or bytes."""
    fields: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, value = tag & 7, 0
        if kind == 0:
            value, at = _varint(message, at)
            fields.setdefault(tag >> 3, []).append(value)
            continue
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            size, at = _varint(message, at)
        if (not size and kind != 2) or at + size > len(message):
            raise ElmoError("a value is no protocol buffer")
        fields.setdefault(tag >> 3, []).append(message[at : at + size])
        at += size
    return fields


def _number(fields: Fields, field: int) -> int:
    """The last value of a field; 0, as in all protocol buffers, where it is not there."""
    value = fields.get(field, [0])[-1]
    if not isinstance(value, int):
        raise ElmoError("a value is no protocol buffer")
    return value


def _bytes_of(fields: Fields, field: int) -> bytes:
    return _bytes(fields.get(field, [b""])[-1])


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ElmoError("a value is no protocol buffer")
    return value


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number, seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ElmoError("a number is too long")


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_CRC_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


def _masked_crc(content: bytes) -> int:
    """CRC-32C, turned and shifted as LevelDB stores it."""
    crc, table = 0xFFFFFFFF, _crc_table()
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
