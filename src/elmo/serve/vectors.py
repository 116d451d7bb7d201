"""What a request gets of a sentence's layers, and how it is written.

Shapes: L layers, T tokens, D width of a layer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence

import numpy as np
import orjson
import torch
from safetensors.numpy import save
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from elmo.embed import EmbedSettings, Vectors
from elmo.model import ScalarMix

_PIECE = 2**16  # bytes handed to a connection at a time; it takes more when its client has read these


def reduced(layers_LTD: Vectors, settings: EmbedSettings, mix: ScalarMix) -> Vectors:
    """What `Embedder` with these settings gives, of all layers: `(T, D)`, `(L, T, D)`; `(D,)`, `(L, D)` if pooled."""
    numbers = settings.layer_numbers(len(layers_LTD))
    if settings.layers == "mix":
        with torch.inference_mode():
            vectors: Vectors = mix(torch.from_numpy(layers_LTD)[:, None])[0].numpy()
    elif settings.layers == "average":
        vectors = layers_LTD.mean(axis=0)
    elif settings.layers == "all":
        vectors = layers_LTD
    else:
        several = not isinstance(settings.layers, int | str)
        vectors = layers_LTD[list(numbers)] if several else layers_LTD[numbers[0]]
    if settings.pool is not None:
        if vectors.shape[-2] == 0:
            vectors = np.zeros(vectors.shape[:-2] + vectors.shape[-1:], np.float32)
        else:
            vectors = vectors.max(axis=-2) if settings.pool == "max" else vectors.mean(axis=-2)
    return np.ascontiguousarray(vectors, dtype=settings.dtype)


def packed(arrays: Sequence[Vectors], about: dict[str, object]) -> Iterator[bytes]:
    """Arrays in the safetensors format, named "0", "1" and so on; `about` is JSON in its metadata, under "elmo".

    It is made at once, so that the arrays can go, and handed out in pieces, so that it is not copied as a whole.
    """
    whole = save({str(i): array for i, array in enumerate(arrays)}, {"elmo": json.dumps(about)})
    return (whole[start : start + _PIECE] for start in range(0, len(whole), _PIECE))


def json_pieces(head: dict[str, object], name: str, items: Iterator[dict[str, object]]) -> Iterator[bytes]:
    """A JSON object, whose last member is a list, one item at a time: arrays are large as text."""
    yield orjson.dumps(head)[:-1] + b"," + orjson.dumps(name) + b":["
    for number, item in enumerate(items):
        yield (b"," if number else b"") + orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)
    yield b"]}"


class Pieces(Response):
    """An answer that is made while it is sent, so that a large one is never in memory as a whole."""

    def __init__(self, pieces: Iterator[bytes], media_type: str) -> None:
        """Send pieces, joined into larger ones, or cut."""
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them; a connection that is not read from makes this wait."""
        held = bytearray()
        begun = False
        for piece in self._pieces:
            held += piece
            while len(held) > _PIECE:
                if not begun:
                    await self._begin(send)
                    begun = True
                await send({"type": "http.response.body", "body": bytes(held[:_PIECE]), "more_body": True})
                del held[:_PIECE]
                await asyncio.sleep(0)  # others have their turn, even if this client reads as fast as we write
        if not begun:
            self.headers["content-length"] = str(len(held))
            await self._begin(send)
        await send({"type": "http.response.body", "body": bytes(held), "more_body": False})

    async def _begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
