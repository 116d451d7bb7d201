"""What the package costs: seconds to start and to load, memory to embed. Prints a table; `make bench-footprint`.

Each figure is taken in a process of its own, so that nothing is warm but the file cache. The original-size model has
random weights and is made anew; the text is made of drawn words, so nothing else is needed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEAK = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024"

MAKE_ORIGINAL = """
import elmo, sys
filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
config = elmo.ModelConfig(
    lstm=elmo.LSTMConfig(dim=4096, projection_dim=512, cell_clip=3.0, proj_clip=3.0, use_skip_connections=True),
    char_cnn=elmo.CharCNNConfig(filters=filters, n_highway=2),
)
model = elmo.Model.of(elmo.BiLM(config).eval())
elmo.save(model, sys.argv[1] + "/native")
elmo.save(model, sys.argv[1] + "/bilm-tf", format="bilm-tf")
"""

LOAD = f"""
import resource, sys, time, torch, h5py, safetensors.torch, elmo.api
before, start = {PEAK}, time.perf_counter()
model = elmo.load(sys.argv[1])
seconds = time.perf_counter() - start
weights = sum(p.numel() * 4 for p in model.bilm.parameters()) / 2**20
print(seconds, {PEAK} - before - weights)
"""

EMBED = f"""
import resource, sys
sys.argv[0] = "elmo"
from elmo.cli import main
try:
    main()
except SystemExit:
    pass
print({PEAK}, file=sys.stderr)
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def seconds(*command: str) -> float:
    """The best of five runs of a command."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def write_text(path: Path, lines: int) -> None:
    """Lines of 1 to 30 drawn words, with a long tail of rare ones as text has."""
    rng = random.Random(0)
    with path.open("w") as file:
        for _ in range(lines):
            words = (f"w{int(rng.paretovariate(0.8))}" for _ in range(rng.randint(1, 30)))
            file.write(" ".join(words) + "\n")


def main() -> None:
    """Measure and print."""
    print(f"torch threads {os.environ.get('OMP_NUM_THREADS', 'default')}, Python {sys.version.split()[0]}")
    print(f"import elmo                 {seconds(sys.executable, '-c', 'import elmo'):6.2f} s")
    print(f"import elmo, with PyTorch   {seconds(sys.executable, '-c', 'import elmo; elmo.load'):6.2f} s")
    print(f"elmo --help                 {seconds(sys.executable, '-m', 'elmo', '--help'):6.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        run(MAKE_ORIGINAL, folder)
        for name in ("native", "bilm-tf"):
            taken, beyond = map(float, run(LOAD, f"{folder}/{name}").stdout.split())
            print(f"load the original size, {name:<8} {taken:.2f} s, peak {beyond:.0f} MB beyond its weights")
        peaks = {}
        for lines in (10_000, 100_000):
            text = Path(folder) / f"{lines}.txt"
            write_text(text, lines)
            error = run(EMBED, "embed", text, "-o", f"{text}.hdf5", "--quiet").stderr
            peaks[lines] = float(error.split()[-1])
            print(f"elmo embed of {lines:>7,} lines into HDF5: peak {peaks[lines]:.0f} MB")
        print(f"growth: {100 * (peaks[100_000] / peaks[10_000] - 1):+.1f} %")


if __name__ == "__main__":
    main()
