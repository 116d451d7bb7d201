"""How fast `elmo prepare` is on one core, and how much memory it takes.

    python benchmarks/prepare.py TEXT... [--megabytes 30] [--workers 1]
    python benchmarks/prepare.py TEXT... --large 2 [--same] [--cut 100] [--train 300]

TEXT is raw text, plain or .xz, one paragraph a line (../shared/data/corpus has some). Its first megabytes are prepared
with `--tokenize`; then the sentences that come out, one a line, are prepared as text that is already tokenised. The
rate is tokens for each minute of processor time, of all processes together, so it is the rate of one core.

`--large` prepares so many gigabytes of tokenised text instead: copies of the sentences, the letters of each copy
shifted, so that each brings its own words, or with `--same` as they are. `--cut` kills the run after so many seconds
and resumes it, with half as much time again, until it is done. `--train` then trains the model of `configs/demo.toml`
on what was prepared for so many steps, with four validations and checkpoints; that run is killed after its first
checkpoint and resumed.

Memory is the largest sum of what the command and all its processes held at a time: resident pages, which include those
of mapped files that the kernel may take back at any time, and of them those that are nobody's file ("anonymous"). Pages
that processes share count twice.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import re
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elmo.lm.folder import LAST, METRICS
from elmo.text import Tokenizer

DEMO = Path(__file__).parents[1] / "configs" / "demo.toml"


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    seconds: float
    processor_seconds: float
    peak_mb: float
    peak_anonymous_mb: float
    largest_mb: float
    """Of one process."""
    returncode: int


def main() -> None:
    """Prepare text and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path, metavar="TEXT")
    parser.add_argument("--megabytes", type=int, default=30)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--large", type=float, metavar="GB")
    parser.add_argument("--same", action="store_true")
    parser.add_argument("--cut", type=float, metavar="SECONDS")
    parser.add_argument("--train", type=int, metavar="STEPS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw, tokenised = folder / "raw.txt", folder / "tokenised.txt"
        with raw.open("w", encoding="utf-8") as file:
            file.writelines(first_lines(options.texts, options.megabytes * 10**6))
        tokenise(raw, tokenised)
        if options.large is not None:
            large = folder / "large.txt"
            write_copies(tokenised, large, int(options.large * 2**30), shifted=not options.same)
            tokenised.unlink()
            words = ["--max-words", "10000"] if options.train else []
            report("tokenised", large, folder / "out", ["--workers", str(options.workers), *words], options.cut)
            if options.train:
                train(folder / "out", folder / "run", options.train)
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


def write_copies(path: Path, out: Path, size: int, *, shifted: bool) -> None:
    """Write a text again and again, its letters shifted each time or not, until there are `size` bytes."""
    text = path.read_bytes()
    letters = string.ascii_lowercase.encode()
    with out.open("wb") as file:
        for shift in range(len(letters)):
            now = letters[shift:] + letters[:shift] if shifted else letters
            file.write(text.translate(bytes.maketrans(letters, now)) + b"\n")
            file.flush()
            if out.stat().st_size >= size:
                return
    raise SystemExit("the text is too short for so many copies: give more --megabytes")


def report(what: str, text: Path, out: Path, options: Sequence[str], cut: float | None) -> None:
    """Prepare a text and print a line."""
    command = [sys.executable, "-m", "elmo", "prepare", str(text), "-o", str(out), "--resume", "-q", *options]
    costs = [measure(command, after(cut))]
    while costs[-1].returncode == -signal.SIGKILL:
        cut = None if cut is None else 1.5 * cut  # the last step is repeated from its start
        costs.append(measure(command, after(cut)))
    if costs[-1].returncode:
        raise SystemExit(f"exit code {costs[-1].returncode}")
    manifest = json.loads((out / "manifest.json").read_text())
    tokens = sum(split["n_tokens"] for split in manifest["splits"].values())
    processor = sum(cost.processor_seconds for cost in costs)
    print(
        f"{what}: {text.stat().st_size / 2**20:,.0f} MiB, {tokens:,} tokens, {manifest['n_types']:,} different words, "
        f"{' '.join(options)}{f', killed {len(costs) - 1} times' if cut else ''}: "
        f"{sum(cost.seconds for cost in costs):.0f} s, {tokens / processor * 60 / 1e6:.1f} M tokens a minute a core, "
        f"{memory(costs)}",
        flush=True,
    )


def train(corpus: Path, run: Path, steps: int) -> None:
    """Train the demo's model, kill it after its first checkpoint, go on, and print a line for each part."""
    sets = [f"--set={name}={steps // 4}" for name in ("train.validate_every", "train.checkpoint_every")]
    command = [sys.executable, "-m", "elmo", "pretrain", str(DEMO), "--corpus", str(corpus), "-o", str(run), "--resume"]
    command += ["-q", f"--set=train.steps={steps}", *sets]
    for what, stop in (("killed after its first checkpoint", (run / LAST).exists), ("resumed", never)):
        cost = measure(command, stop)
        if cost.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"exit code {cost.returncode}")
        print(f"training, {what}: {cost.seconds:.0f} s, {memory([cost])}", flush=True)
    print((run / METRICS).read_text().splitlines()[-1])


def memory(costs: Sequence[Cost]) -> str:
    """The most that any of some runs held."""
    peak, anonymous, largest = (
        max(getattr(cost, name) for cost in costs) for name in ("peak_mb", "peak_anonymous_mb", "largest_mb")
    )
    return f"peak {peak:,.0f} MB, {anonymous:,.0f} MB anonymous, {largest:,.0f} MB in one process"


def never() -> bool:
    """When a command is stopped that is not."""
    return False


def after(seconds: float | None) -> Callable[[], bool]:
    """Whether so many seconds have passed."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    return lambda: time.monotonic() > end


def measure(command: Sequence[str], stop: Callable[[], bool]) -> Cost:
    """Run a command, or kill it when it is time to stop."""
    start = time.monotonic()
    process = subprocess.Popen(command)
    peak, anonymous, largest, used = 0.0, 0.0, 0.0, 0.0
    while process.poll() is None:
        tree = [process.pid, *children_of(process.pid)]
        held = [memory_mb(pid) for pid in tree]
        peak = max(peak, sum(resident for resident, _ in held))
        anonymous = max(anonymous, sum(part for _, part in held))
        largest = max(largest, *(resident for resident, _ in held))
        used = max(used, sum(map(processor_seconds, tree)))
        if stop():
            process.kill()
        time.sleep(0.05)
    return Cost(time.monotonic() - start, used, peak, anonymous, largest, process.returncode)


def children_of(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    threads = [path.name for path in Path(f"/proc/{pid}/task").glob("*")]
    children = [int(child) for thread in threads for child in read(f"/proc/{pid}/task/{thread}/children").split()]
    return children + [below for child in children for below in children_of(child)]


def memory_mb(pid: int) -> tuple[float, float]:
    """What a process holds in memory, and how much of that is no file's."""
    kilobytes = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB", read(f"/proc/{pid}/status"), re.MULTILINE))
    return int(kilobytes.get("VmRSS", 0)) * 1.024e-3, int(kilobytes.get("RssAnon", 0)) * 1.024e-3


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
