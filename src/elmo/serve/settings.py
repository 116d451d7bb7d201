"""What a server allows, and how it batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from elmo.engine import Precision
from elmo.errors import ElmoError
from elmo.tasks.saved import Learned


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits of a server. What is beyond them is answered with 413 (one request) or 429 (all together)."""

    name: str = "default"
    """What the model is called in answers."""
    precision: Precision = "fp32"
    """Of the arithmetic, as in `EmbedSettings`."""
    batch_tokens: int = 2048
    """Tokens computed together, from any number of requests; a sentence is never cut."""
    wait_ms: float = 2.0
    """How long the first request of a batch waits for others to join it."""
    max_body_bytes: int = 2**20
    """Of a request."""
    max_sentences: int = 256
    """Of a request."""
    max_tokens: int = 4096
    """Of a request, all its sentences together."""
    max_length: int = 512
    """Tokens of one sentence: all of its batch wait for the longest."""
    max_requests: int = 256
    """Requests in the house: being read, waiting, computed or answered."""
    max_house_tokens: int = 2**15
    """Tokens of all requests in the house, which is what bounds the memory."""
    timeout: float = 30.0
    """Seconds that a request may wait and be computed."""
    body_timeout: float = 10.0
    """Seconds in which a request must have come in."""
    api_key: str | None = field(default=None, repr=False)
    """What a client must show, if anything."""
    hosts: tuple[str, ...] = ()
    """Names by which clients may call the server; any if there are none."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may ask."""
    tasks: tuple[Learned, ...] = ()
    """Layer weights of task models, for the explorer to show."""

    def __post_init__(self) -> None:
        """Refuse what no request could pass."""
        for one in fields(self):
            value = getattr(self, one.name)
            if type(value) in (int, float) and not (0 < value < math.inf or (one.name == "wait_ms" and value == 0)):
                raise ElmoError(f"{one.name} is {value!r}: give a number over 0")
        if self.max_house_tokens < self.max_tokens:
            raise ElmoError(
                f"max_house_tokens is {self.max_house_tokens:,} and max_tokens, of one request, {self.max_tokens:,}: "
                "the first must be at least the second"
            )
        if self.api_key is not None and len(self.api_key) < 8:
            raise ElmoError("the API key is shorter than 8 characters: give a longer one")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ElmoError(
                "the API key has other than printable ASCII characters, which no header can carry unchanged"
            )
        if self.api_key is not None and self.api_key != self.api_key.strip():
            raise ElmoError("the API key begins or ends with a space, which a header loses: give it without")
