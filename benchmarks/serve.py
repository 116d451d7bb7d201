"""The server under load: what batching gains, how even the answers are, what hostile clients do to others, its end.

`make bench-serve`, about 8 minutes on 2 cores, clients and server together; `--seconds` shortens it. Sentences come from
`--text` (open English text, .xz). Each client sends one short sentence a request, over a connection that it keeps, and
asks for one packed vector: what is measured is the server, not the reading of digits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import lzma
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

import elmo
from elmo.bench import machine

TEXT = Path(__file__).parents[2] / "shared" / "data" / "corpus" / "test.wikipedia_simple.txt.xz"
HOST = "127.0.0.1"
CLIENTS = 64


@dataclass
class Load:
    """What clients met."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Good answers a second."""
        return self.statuses["200"] / self.seconds

    def __str__(self) -> str:
        median, p99 = np.percentile(np.array(self.latencies) * 1000, [50, 99])
        errors = sum(self.statuses.values()) - self.statuses["200"]
        return (
            f"{self.rate:7.1f} requests/s, median {median:6.1f} ms, 99th percentile {p99:6.1f} ms "
            f"({p99 / median:.1f}x), {errors} errors of {sum(self.statuses.values()):,}"
        )


class Server:
    """A server in a process of its own."""

    def __init__(self, *options: str, key: str | None = None) -> None:
        command = [sys.executable, "-m", "elmo", "serve", "--port", "0", *options]
        environment = os.environ | ({"ELMO_API_KEY": key} if key else {})
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self._out: IO[str] = self.process.stdout
        found = re.search(r":(\d+)$", self._out.readline().strip())
        if found is None:
            sys.exit("the server did not start")
        self.port = int(found.group(1))

    def memory(self) -> float:
        """Resident, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found.group(1)) / 1024

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=120)
        self._out.close()


def request(body: bytes, *, key: str | None = None, accept: str = "application/octet-stream") -> bytes:
    """A request to embed, as it is sent."""
    shown = f"X-API-Key: {key}\r\n" if key else ""
    head = f"POST /v1/embed HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nAccept: {accept}\r\n{shown}"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """Read an answer: its status, and whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None, head
    await reader.readexactly(int(found.group(1)))
    return head.split(b" ", 2)[1].decode(), b"connection: close" not in head


async def client(port: int, requests: Iterator[bytes], until: float, load: Load) -> None:
    """Ask, wait for the answer, ask again."""
    reader, writer = await asyncio.open_connection(HOST, port)
    open_ = True
    while open_ and time.monotonic() < until:
        started = time.monotonic()
        writer.write(next(requests))
        status, open_ = await answer(reader)
        load.latencies.append(time.monotonic() - started)
        load.statuses[status] += 1
    writer.close()


def drawn(sentences: Sequence[str], seed: int, key: str | None = None) -> Iterator[bytes]:
    """Requests without end."""
    draw = random.Random(seed)
    made = [request(json.dumps({"sentences": [sentence], "pool": "mean"}).encode(), key=key) for sentence in sentences]
    while True:
        yield draw.choice(made)


async def press(port: int, sentences: Sequence[str], clients: int, seconds: float, key: str | None = None) -> Load:
    """Let clients ask for some time."""
    load = Load()
    started = time.monotonic()
    requests = drawn(sentences, clients, key)
    await asyncio.gather(*(client(port, requests, started + seconds, load) for _ in range(clients)))
    load.seconds = time.monotonic() - started
    return load


def short_sentences(path: Path, longest: int, count: int) -> list[str]:
    """Sentences of a text that have at most so many words, tokens joined by spaces."""
    tokenizer = elmo.Tokenizer("en")
    found: list[str] = []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            found += [" ".join(s.tokens) for s in tokenizer(line) if 3 <= len(s.tokens) <= longest]
            if len(found) >= count:
                break
    return found[:count]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--longest", type=int, default=10)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    sentences = short_sentences(args.text, args.longest, 4000)
    mean = np.mean([len(s.split()) for s in sentences])
    print(machine(), f"{len(sentences)} sentences of {mean:.1f} words")
    with Server(*args.options) as server:
        print("warm", asyncio.run(press(server.port, sentences, CLIENTS, 5)))
        print("64  ", asyncio.run(press(server.port, sentences, CLIENTS, args.seconds)))
        print("1   ", asyncio.run(press(server.port, sentences, 1, args.seconds)))
    with Server("--wait-ms", "0", "--batch-tokens", "1", *args.options) as server:
        asyncio.run(press(server.port, sentences, CLIENTS, 5))
        print("no batching: 64", asyncio.run(press(server.port, sentences, CLIENTS, args.seconds)))
        print("no batching: 1 ", asyncio.run(press(server.port, sentences, 1, args.seconds)))


if __name__ == "__main__":
    main()
