"""What is compared: models of drawn shapes and of the published sizes, and sentences in ten scripts."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from conftest import SHARED, Options, weight_shapes
from elmo.tasks.readers import read_conllu

REAL = {
    "Latin": "pos_ewt.tar.xz/pos_ewt/en_ewt-ud-dev.conllu",
    "Cyrillic": "ud_russian.tar.xz/ud_russian/ru_taiga-ud-dev.conllu",
    "Han": "ud_chinese.tar.xz/ud_chinese/zh-ud-dev.conllu",
}
DRAWN = {
    "Greek": (0x0370, 0x0400),
    "Hebrew": (0x05D0, 0x05EB),
    "Arabic": (0x0620, 0x06D4),
    "Devanagari": (0x0904, 0x0940),
    "Thai": (0x0E01, 0x0E31),
    "Georgian": (0x10D0, 0x1100),
    "Hangul": (0xAC00, 0xD7A4),
}
RANGES = {"Latin": (0x61, 0x250), "Cyrillic": (0x0400, 0x0500), "Han": (0x4E00, 0x9FFF)} | DRAWN
ODD = ["😀", "👩‍👩‍👧", "🇩🇪", "x" * 47, "é" * 30, "日" * 20, "3.14", "<UNK>", "don't", "—"]  # emoji, words that are cut
SENTENCES_A_SCRIPT = 50
LONGEST = 14  # words; a tenth has up to three times as many


def sentences(seed: int = 0) -> tuple[list[list[str]], list[str]]:
    """500 sentences of ten scripts, mixed, and the scripts of which the text is real."""
    rng = random.Random(seed)
    found: list[list[str]] = []
    real = [script for script, path in REAL.items() if (SHARED / "data" / "tasks" / path.split("/")[0]).exists()]
    for script in RANGES:
        rows = _real(script) if script in real else [_drawn(script, rng) for _ in range(SENTENCES_A_SCRIPT)]
        for number, row in enumerate(rows):
            row = row[: LONGEST if number % 10 else 3 * LONGEST]
            if number % 5 == 0:
                row.insert(rng.randrange(len(row) + 1), rng.choice(ODD))
            found.append(row)
    rng.shuffle(found)
    return found, real


def drawn_sentences(count: int, seed: int = 0) -> list[list[str]]:
    """Sentences of drawn words, in each script in turn."""
    rng = random.Random(seed)
    found = [_drawn(list(RANGES)[number % len(RANGES)], rng) for number in range(count)]
    return [[rng.choice(ODD), *row] if number % 4 == 0 else row for number, row in enumerate(found)]


def _real(script: str) -> list[list[str]]:
    path = str(SHARED / "data" / "tasks" / REAL[script])
    # A token of a treebank may have a space in it; a line of text has none.
    tokens = ([word.replace(" ", "").replace("\u00a0", "") for word in one.tokens] for one in read_conllu(path))
    return [row for row in tokens if len(row) > 1 and all(row)][:SENTENCES_A_SCRIPT]


def _drawn(script: str, rng: random.Random) -> list[str]:
    letters = [chr(code) for code in range(*RANGES[script]) if unicodedata.category(chr(code)).startswith("L")]
    return ["".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(rng.randint(2, LONGEST))]


def shape(seed: int) -> Options:
    """A drawn architecture, of those that both peers take."""
    rng = random.Random(seed)
    width = rng.choice([5, 8, 16])
    filters = [[size, rng.randint(4, 12)] for size in range(1, rng.randint(4, 7))]
    return _options(
        width * rng.randint(2, 4),
        width,
        [*filters, [7, width]],  # so that there are more filters than the projection is wide
        n_layers=rng.randint(2, 3),
        n_highway=rng.randint(0, 2),
        characters=rng.choice([4, 16]),
        activation=rng.choice(["relu", "tanh"]),
        clip=rng.choice([0.7, 3]),
    )


PUBLISHED = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]


def published(size: str) -> Options:
    """The small or the original size."""
    return _options(1024, 128, PUBLISHED, n_highway=1) if size == "small" else _options(4096, 512, PUBLISHED)


def _options(
    dim: int,
    width: int,
    filters: list[list[int]],
    *,
    n_layers: int = 2,
    n_highway: int = 2,
    characters: int = 16,
    activation: str = "relu",
    clip: float = 3,
) -> Options:
    lstm: dict[str, Any] = {"dim": dim, "projection_dim": width, "n_layers": n_layers, "use_skip_connections": True}
    return {
        "lstm": lstm | {"cell_clip": clip, "proj_clip": clip},
        "char_cnn": {
            "embedding": {"dim": characters},
            "filters": filters,
            "n_highway": n_highway,
            "n_characters": 262,
            "max_characters_per_token": 50,
            "activation": activation,
        },
    }


def write(folder: Path, options: Options, seed: int) -> None:
    """Write bilm-tf's files, not by this library; weights are scaled by their inputs, so that no layer explodes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, size in weight_shapes(options).items():
            matrix = len(size) > 1 and name != "char_embed"
            inputs = int(np.prod(size[:-1])) if matrix else 1
            scale = 1.0 / np.sqrt(inputs) if matrix else 1.0 if name == "char_embed" else 0.1
            file[name] = rng.normal(0, scale, size).astype(np.float32)
    (folder / "options.json").write_text(json.dumps(options))
