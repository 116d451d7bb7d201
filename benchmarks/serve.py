"""The server under load: what batching gains, how even the answers are, what hostile clients do to others, its end.

`make bench-serve`, about 7 minutes on 2 cores that clients and server share; `--seconds` shortens it. Each client sends
one sentence of `--text` (open English text, .xz) a request, over a connection that it keeps, and asks for one packed
vector: what is measured is the server, not the writing of digits.
"""

from __future__ import annotations

import argparse
import asyncio
import lzma
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import elmo
from elmo.bench import machine

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from serve_clients import Load, Server, embed, hostile, press  # noqa: E402 - where the path has been made

TEXT = ROOT.parent / "shared" / "data" / "corpus" / "test.wikipedia_simple.txt.xz"
CLIENTS = 64
KEY = "the key of a benchmark"
ONE_BY_ONE = ("--batch-tokens", "1", "--wait-ms", "0")


def sentences_of(path: Path, longest: int) -> list[list[str]]:
    """Sentences of raw text of 3 words to `longest`, each once."""
    tokenizer = elmo.Tokenizer("en")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        found = {tuple(sentence.tokens) for line in file for sentence in tokenizer(line)}
    return [list(tokens) for tokens in sorted(found) if 3 <= len(tokens) <= longest]


def requests_for(sentences: list[list[str]], *headers: str) -> list[bytes]:
    """A request for each sentence, in an order that is the same in every run."""
    order = np.random.default_rng(0).permutation(len(sentences)).tolist()
    return [embed(" ".join(sentences[i]), *headers) for i in order]


def show(name: str, load: Load) -> None:
    """A line of the table."""
    median, p99 = load.percentiles
    print(
        f"{name:<34}{load.rate:>8.1f} requests/s, median {median:>6.1f} ms, 99th percentile {p99:>6.1f} ms "
        f"({p99 / median:.1f}x), {load.errors} errors of {load.statuses.total():,}",
        flush=True,
    )


def throughput(requests: list[bytes], seconds: float, *, part: float) -> None:
    """64 clients at once, against the same server asked by one, and against one that takes requests one by one."""
    with Server() as server:
        asyncio.run(press(server.port, requests, CLIENTS, 0.2 * seconds))
        memory = server.memory()
        together = asyncio.run(press(server.port, requests, CLIENTS, seconds))
        show(f"{CLIENTS} clients", together)
        after = server.memory()
        print(f"memory {memory:.0f} MB, then {after:.0f} MB: {100 * (after / memory - 1):+.1f} %")
        batches = server.metric("elmo_batch_requests_sum") / server.metric("elmo_batch_requests_count")
        print(f"{batches:.1f} requests a batch")
        alone = asyncio.run(press(server.port, requests, 1, part * seconds))
        show("one client, the same server", alone)
    with Server(*ONE_BY_ONE) as server:
        asyncio.run(press(server.port, requests, CLIENTS, 0.05 * seconds))
        unbatched = asyncio.run(press(server.port, requests, CLIENTS, part * seconds))
        show(f"{CLIENTS} clients, no batches", unbatched)
        single = asyncio.run(press(server.port, requests, 1, part * seconds))
        show("one client, no batches, no waiting", single)
    ratios = [together.rate / other.rate for other in (alone, unbatched, single)]
    print("64 clients against these three: " + ", ".join(f"{ratio:.1f}x" for ratio in ratios))


async def beside(server: Server, requests: list[bytes]) -> tuple[dict[str, str], Load]:
    """Hostile clients, three times over, and 8 good ones."""
    over = asyncio.Event()
    good = asyncio.create_task(press(server.port, requests, 8, 600, over))
    found = [await hostile(server.port, KEY) for _ in range(3)]
    over.set()
    assert all(one == found[0] for one in found), found
    return found[0], await good


async def ended(server: Server, requests: list[bytes]) -> tuple[int, str, Load]:
    """SIGTERM while all clients ask."""
    good = asyncio.create_task(press(server.port, requests, CLIENTS, 600))
    await asyncio.sleep(5)
    code, errors = await asyncio.to_thread(server.stop)
    return code, errors, await good


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--text", type=Path, default=TEXT)
    args = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, load before {os.getloadavg()[0]:.1f}")
    for longest, seconds in ((10, args.seconds), (40, args.seconds / 4)):
        sentences = sentences_of(args.text, longest)
        mean = np.mean([len(sentence) for sentence in sentences])
        print(f"\n{len(sentences):,} sentences of 3 to {longest} words, {mean:.1f} in the mean, for {seconds:g} s")
        throughput(requests_for(sentences), seconds, part=0.25)
    locked = requests_for(sentences_of(args.text, 10), f"X-API-Key: {KEY}")
    with Server("--body-timeout", 2, key=KEY) as server:
        memory = server.memory()
        found, load = asyncio.run(beside(server, locked))
        print("\n" + "\n".join(f"{kind:<34}{status}" for kind, status in found.items()))
        show("8 good clients beside them", load)
        print(f"memory {memory:.0f} MB, then {server.memory():.0f} MB")
    with Server() as server:
        code, errors, load = asyncio.run(ended(server, locked))
        print(f"\nSIGTERM under load: exit code {code}, standard error {errors!r}, answers {dict(load.statuses)}")


if __name__ == "__main__":
    main()
