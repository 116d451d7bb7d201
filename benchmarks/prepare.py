"""How fast `elmo prepare` is on one core, and how much memory it takes.

    python benchmarks/prepare.py TEXT... [--megabytes 30] [--workers 1]
    python benchmarks/prepare.py TEXT... --large 2 [--cut 100]

TEXT is raw text, plain or .xz, one paragraph a line (../shared/data/corpus has some). Its first megabytes are prepared
with `--tokenize`; then the sentences that come out, one a line, are prepared as text that is already tokenised. The
rate is tokens for each minute of processor time, of all processes together, so it is the rate of one core.

`--large` prepares so many gigabytes of tokenised text instead: copies of the sentences, the letters of each copy
shifted, so that each brings its own words. `--cut` kills the run after so many seconds and resumes it, with half as
much time again, until it is done. Memory is the largest sum of what the command and its workers held at a time; pages
that they share count twice.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elmo.text import Tokenizer


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    seconds: float
    processor_seconds: float
    peak_mb: float
    returncode: int


def main() -> None:
    """Prepare text and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT")
    parser.add_argument("--megabytes", type=int, default=30)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--large", type=float, metavar="GB")
    parser.add_argument("--cut", type=float, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw, tokenised = folder / "raw.txt", folder / "tokenised.txt"
        with raw.open("w", encoding="utf-8") as file:
            file.writelines(first_lines(options.texts, options.megabytes * 10**6))
        tokenise(raw, tokenised)
        if options.large is not None:
            large = folder / "large.txt"
            write_copies(tokenised, large, int(options.large * 2**30))
            report("tokenised", large, folder / "out", ["--workers", str(options.workers)], options.cut)
            return
        workers = ["--workers", str(options.workers)]
        report("raw", raw, folder / "out-raw", ["--tokenize", *workers], options.cut)
        report("tokenised", tokenised, folder / "out", workers, options.cut)


def first_lines(paths: Sequence[Path], size: int) -> Iterator[str]:
    """Lines of texts until they have `size` bytes."""
    for path in paths:
        with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as file:
            for line in file:
                if size <= 0:
                    return
                size -= len(line)
                yield line.decode()


def tokenise(raw: Path, out: Path) -> None:
    """Write raw text as one sentence a line."""
    tokenizer = Tokenizer("en")
    with raw.open(encoding="utf-8") as lines, out.open("w", encoding="utf-8") as file:
        for line in lines:
            file.writelines(" ".join(sentence.tokens) + "\n" for sentence in tokenizer(line))
            if not line.strip():
                file.write("\n")


def write_copies(path: Path, out: Path, size: int) -> None:
    """Write a text again and again, its letters shifted each time, until there are `size` bytes."""
    text = path.read_bytes()
    letters = string.ascii_lowercase.encode()
    with out.open("wb") as file:
        for shift in range(len(letters)):
            file.write(text.translate(bytes.maketrans(letters, letters[shift:] + letters[:shift])) + b"\n")
            file.flush()
            if out.stat().st_size >= size:
                return
    raise SystemExit("the text is too short for so many copies: give more --megabytes")


def report(what: str, text: Path, out: Path, options: Sequence[str], cut: float | None) -> None:
    """Prepare a text and print a line."""
    command = [sys.executable, "-m", "elmo", "prepare", str(text), "-o", str(out), "--resume", "-q", *options]
    costs = [measure(command, cut)]
    while costs[-1].returncode == -signal.SIGKILL:
        cut = None if cut is None else 1.5 * cut  # the last step is repeated from its start
        costs.append(measure(command, cut))
    if costs[-1].returncode:
        raise SystemExit(f"exit code {costs[-1].returncode}")
    manifest = json.loads((out / "manifest.json").read_text())
    tokens = sum(split["n_tokens"] for split in manifest["splits"].values())
    processor = sum(cost.processor_seconds for cost in costs)
    print(
        f"{what}: {text.stat().st_size / 2**20:,.0f} MiB, {tokens:,} tokens, {manifest['n_types']:,} different words, "
        f"{' '.join(options)}{f', killed {len(costs) - 1} times' if cut else ''}: "
        f"{sum(cost.seconds for cost in costs):.0f} s, {tokens / processor * 60 / 1e6:.1f} M tokens a minute a core, "
        f"peak {max(cost.peak_mb for cost in costs):,.0f} MB",
        flush=True,
    )


def measure(command: Sequence[str], cut: float | None) -> Cost:
    """Run a command, or kill it after `cut` seconds."""
    start = time.monotonic()
    process = subprocess.Popen(command)
    peak, used = 0.0, 0.0
    while process.poll() is None:
        tree = [process.pid, *children_of(process.pid)]
        peak = max(peak, sum(map(memory_mb, tree)))
        used = max(used, sum(map(processor_seconds, tree)))
        if cut is not None and time.monotonic() - start > cut:
            process.kill()
        time.sleep(0.05)
    return Cost(time.monotonic() - start, used, peak, process.returncode)


def children_of(pid: int) -> list[int]:
    """Processes that a process has started."""
    return [int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()]


def memory_mb(pid: int) -> float:
    """What a process holds in memory."""
    pages = read(f"/proc/{pid}/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGESIZE") / 1e6 if pages else 0.0


def processor_seconds(pid: int) -> float:
    """Processor time of a process and of its children that have ended."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def read(path: str) -> str:
    """A file of /proc; nothing where the process has gone."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
