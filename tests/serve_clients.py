"""A server in a process of its own, and clients of many kinds, good and bad: for tests and for `make bench-serve`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np

HOST = "127.0.0.1"


class Server:
    """`elmo serve` as a user would run it, at a free port; ends with the block."""

    def __init__(self, *options: object, key: str | None = None, threads: int | None = None) -> None:
        command = [sys.executable, "-m", "elmo", "serve", *map(str, options), "--port", "0"]
        self._key = key
        environment = os.environ | ({"ELMO_API_KEY": key} if key else {})
        environment |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r":(\d+)$", said.strip())
        if found is None:
            raise RuntimeError(f"the server did not start: {said} {self.process.communicate()[1]}")
        self.port = int(found.group(1))

    def memory(self) -> float:
        """Resident, in MB."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found.group(1)) / 1024

    def metric(self, name: str) -> float:
        """One sample of `/metrics`, by the beginning of its line."""
        asked = urllib.request.Request(f"http://{HOST}:{self.port}/metrics", headers={"X-API-Key": self._key or ""})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return float(next((line.split()[-1] for line in lines if line.startswith(name)), 0))

    def stop(self) -> tuple[int, str]:
        """Ask it to end: its exit code, and what it wrote to standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@dataclass
class Load:
    """What good clients met."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    """How many answers had each status; "cut" is a request without an answer."""
    seconds: float = 0.0

    @property
    def errors(self) -> int:
        """What was not answered with 200."""
        return self.statuses.total() - self.statuses["200"]

    @property
    def rate(self) -> float:
        """Good answers a second."""
        return self.statuses["200"] / self.seconds

    @property
    def percentiles(self) -> tuple[float, float]:
        """Half of the answers, and 99 of 100, took at most so many ms."""
        median, p99 = np.percentile(np.array(self.latencies) * 1000, [50, 99])
        return float(median), float(p99)


def post(body: bytes, *headers: str, path: str = "/v1/embed", length: int | None = None) -> bytes:
    """A request as it goes over the line; `length` announces another length than it has."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {HOST}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body) if length is None else length}", "", ""]).encode() + body


def embed(sentence: str, *headers: str) -> bytes:
    """A request for one packed vector."""
    body = json.dumps({"sentences": [sentence], "pool": "mean"}).encode()
    return post(body, "Accept: application/octet-stream", *headers)


async def answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """Read an answer: its status, and whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None, head
    await reader.readexactly(int(found.group(1)))
    return head.split(b" ", 2)[1].decode(), b"connection: close" not in head


async def press(
    port: int, requests: Sequence[bytes], clients: int, seconds: float, until: asyncio.Event | None = None
) -> Load:
    """Let clients ask, each over a connection that it keeps and one request after the other, for some time."""
    load = Load()
    started = time.monotonic()
    wanted = cycle(requests)
    over = until or asyncio.Event()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        stays = True
        while stays and not over.is_set() and time.monotonic() < started + seconds:
            begun = time.monotonic()
            try:
                writer.write(next(wanted))
                status, stays = await answer(reader)
            except (OSError, asyncio.IncompleteReadError):
                status, stays = "cut", False
            load.latencies.append(time.monotonic() - begun)
            load.statuses[status] += 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.monotonic() - started
    return load


async def once(port: int, data: bytes, *, chunks: Iterable[bytes] = ()) -> str:
    """Send something, and more of it as long as it is taken: the status of the answer, or "cut"."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(data)
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            if reader.at_eof() or reader._buffer:  # type: ignore[attr-defined]  # an answer that did not wait
                break
        return (await answer(reader))[0]
    except (OSError, asyncio.IncompleteReadError):
        return "cut"
    finally:
        writer.close()


async def trickle(port: int, data: bytes, pause: float) -> str:
    """Send a request byte by byte: the status of the answer, or "cut"."""
    reader, writer = await asyncio.open_connection(HOST, port)
    reply = asyncio.create_task(answer(reader))
    try:
        for byte in data:
            if reply.done():
                break
            writer.write(bytes([byte]))
            await asyncio.wait([reply], timeout=pause)
        return (await reply)[0]
    except (OSError, asyncio.IncompleteReadError):
        return "cut"
    finally:
        reply.cancel()
        writer.close()


async def gone(port: int, data: bytes) -> None:
    """Send a request and hang up, with a reset, before it is answered."""
    _, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    await writer.drain()
    await asyncio.sleep(0.01)
    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def hostile(port: int, key: str) -> dict[str, str]:
    """One client of each bad kind, all at once, at a server that wants a key: what each of them got."""
    shown = f"X-API-Key: {key}"
    megabyte = b"x" * 2**20
    million = json.dumps({"sentences": [["a"] * 10**6]}).encode()
    sentence = embed("one of many", shown)
    kinds = {
        "slow head": trickle(port, sentence, 0.3),
        "slow body": trickle_body(port, sentence),
        "1 GB body": once(port, post(b"", shown, length=2**30), chunks=(megabyte for _ in range(2**10))),
        "1 GB body in chunks": once(
            port, chunked(shown), chunks=(b"100000\r\n%b\r\n" % megabyte for _ in range(2**10))
        ),
        "endless head": once(
            port, b"GET / HTTP/1.1\r\n", chunks=(b"x: %b\r\n" % megabyte[:1000] for _ in range(2**20))
        ),
        "endless trailer": once(
            port, chunked(shown) + b"0\r\n", chunks=(b"x: %b\r\n" % megabyte[:1000] for _ in range(2**20))
        ),
        "requests without end": once(port, b"", chunks=(b"GET / HTTP/1.1\r\n\r\n" * 1000 for _ in range(2**10))),
        "invalid JSON": once(port, post(b'{"sentences": [', shown)),
        "10^6 mistakes": once(port, post(b'{"sentences": [%b]}' % b",".join([b"1"] * 500_000), shown)),
        "10^6 tokens": once(port, post(million, shown)),
        "wrong key": once(port, embed("one of many", "X-API-Key: another")),
        "no HTTP": once(port, b"\x16\x03\x01 hello\r\n\r\n"),
    }
    found = await asyncio.gather(*kinds.values(), *(gone(port, sentence) for _ in range(20)))
    return dict(zip(kinds, map(str, found), strict=False))


def chunked(*headers: str) -> bytes:
    """The head of a request that does not say how long its body is."""
    return post(b"", "Transfer-Encoding: chunked", *headers).replace(b"Content-Length: 0\r\n", b"")


async def trickle_body(port: int, data: bytes) -> str:
    """Send the head of a request at once, and nothing of its body."""
    head, _, _ = data.partition(b"\r\n\r\n")
    return await once(port, head + b"\r\n\r\n")
