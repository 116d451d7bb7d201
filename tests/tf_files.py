"""Writes TensorFlow's checkpoint files, for what the stored one (tests/data/tensorflow) does not show."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elmo.formats.tensor_bundle import _masked_crc

TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def entry(array: Any, shard: int, offset: int) -> bytes:
    """A BundleEntryProto."""
    dims = b"".join(message(2, number(1, length)) for length in array.shape)
    where = number(3, shard) + number(4, offset) + number(5, array.nbytes)
    return number(1, TYPES[str(array.dtype)]) + message(2, dims) + where + b"\x35" + struct.pack("<I", 0)


def block(entries: Mapping[bytes, bytes]) -> bytes:
    found = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value for key, value in sorted(entries.items())
    )
    return found + struct.pack("<II", 0, 1)


def write_index(path: Path, entries: Mapping[bytes, bytes]) -> None:
    content = b""

    def add(one: bytes) -> bytes:
        nonlocal content
        handle = varint(len(content)) + varint(len(one))
        content += one + b"\0" + struct.pack("<I", _masked_crc(one + b"\0"))
        return handle

    data, meta = add(block(entries)), add(block({}))
    index = add(block({max(entries): data}))
    path.write_bytes(content + (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))


def write_checkpoint(prefix: Path, tensors: Mapping[str, Any], shards: int = 1) -> None:
    """Write tensors, dealt to data files in turn."""
    data = [b""] * shards
    entries = {b"": number(1, shards) + message(3, number(1, 1))}
    for place, (name, value) in enumerate(tensors.items()):
        array, shard = np.ascontiguousarray(value), place % shards
        entries[name.encode()] = entry(array, shard, len(data[shard]))
        data[shard] += array.tobytes()
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}").write_bytes(content)
    write_index(prefix.with_name(f"{prefix.name}.index"), entries)
