"""Training speed on this machine's CPU beside simple_elmo's trainer on TensorFlow: `make bench-train`.

The same text, vocabulary, model (configs/demo.toml), rows, window and number of samples; each trainer in a process of
its own, one after the other, with its own way of reading. Tokens are positions of one direction; both directions are
trained at each. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import elmo
from elmo.lm.settings import TrainConfig

HERE = Path(__file__).parent
TEXT = HERE.parents[1] / "shared" / "data" / "corpus" / "train-00.txt.xz"
CONFIG = HERE.parent / "configs" / "demo.toml"


def write_text(path: Path, source: Path, sentences: int) -> None:
    """Real sentences, tokenised, one a line, a blank line between documents."""
    tokenizer, count = elmo.Tokenizer("en"), 0
    with lzma.open(source, "rt", encoding="utf-8") as raw, path.open("w", encoding="utf-8") as out:
        for paragraph in raw:
            lines = [" ".join(sentence.tokens) for sentence in tokenizer(paragraph)]
            out.write("\n".join(lines) + "\n")
            count += len(lines)
            if count >= sentences:
                return


def without_blank_lines(source: Path, path: Path) -> None:
    """The peer knows no documents."""
    path.write_text("".join(f"{line}\n" for line in source.read_text().splitlines() if line), encoding="utf-8")


def peer_options(config: TrainConfig, rows: int, n_words: int) -> dict[str, Any]:
    """The same run in the peer's words."""
    options = config.model.to_options()
    options["char_cnn"]["n_characters"] = 261
    return options | {
        "bidirectional": True,
        "dropout": config.train.dropout,
        "all_clip_norm_val": config.optimizer.clip,
        "n_epochs": 1,
        "batch_size": rows,
        "n_tokens_vocab": n_words,
        "unroll_steps": config.data.unroll_steps,
        "n_negative_samples_batch": config.softmax.samples,
    }


def run(python: str, worker: str, threads: int | None, *arguments: object) -> dict[str, Any]:
    """Run a worker and read the JSON of its last line."""
    limits = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "TF_NUM_INTRAOP_THREADS": str(threads)}
    done = subprocess.run(
        [python, str(HERE / "peers" / worker), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | limits | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode != 0:
        sys.exit(f"{worker} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default=str(HERE.parent / ".peers" / "simple_elmo" / "bin" / "python"))
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--sentences", type=int, default=40_000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, nargs="+", default=[64])
    parser.add_argument("--set", action="append", default=[], help="replace a setting of the demo's, for both")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    config = TrainConfig.read(CONFIG, given.set)
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, PyTorch {torch.__version__}\n")
    print(
        "| rows | | tokens/s | ratio | median step, ms | of processor time, ms | peak MB |\n"
        "|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_text(folder / "text.txt", given.text, given.sentences)
        without_blank_lines(folder / "text.txt", folder / "lines.txt")
        prepare = [sys.executable, "-m", "elmo", "prepare", folder / "text.txt", "--max-words", 10_000, "-q"]
        subprocess.run([*map(str, prepare), "-o", str(folder / "corpus")], check=True)
        vocab = folder / "corpus" / "vocab.txt"
        n_words = len(vocab.read_text().splitlines())
        for rows in given.rows:
            (folder / "options.json").write_text(json.dumps(peer_options(config, rows, n_words)))
            peer = (folder / "options.json", vocab, folder / "lines.txt", given.steps)
            ours = (CONFIG, folder / "corpus", given.steps, *given.set, f"data.rows={rows}")
            results = [
                run(given.peer, "simple_elmo_trainer.py", given.threads, *peer),
                run(sys.executable, "ours_trainer.py", given.threads, *ours, "train.precision=fp32"),
                run(sys.executable, "ours_trainer.py", given.threads, *ours, "train.precision=bf16"),
            ]
            speeds = [rows * config.data.unroll_steps / statistics.mean(r["seconds"][5:]) for r in results]
            for result, speed in zip(results, speeds, strict=True):
                median = 1000 * statistics.median(result["seconds"][5:])
                busy = 1000 * statistics.median(result["processor_seconds"][5:])
                print(
                    f"| {rows} | {result['name']} | {speed:,.0f} | {speed / speeds[0]:.1f} | "
                    f"{median:.0f} | {busy:.0f} | {result['memory_mb']:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
