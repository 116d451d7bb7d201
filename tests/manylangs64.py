"""ELMoForManyLangs: drawn model files after its documented layout, and its function in plain numpy and float64.

Nothing of `elmo` is used: characters, words, gates and boundaries are as SEMANTICS section 6 has them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

Weights = dict[str, Any]

SETTINGS: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 6, "cell_clip": 0.8, "proj_clip": 0.7, "dim": 9, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [3, 5]],
        "n_highway": 2,
        "word_dim": 4,
        "char_dim": 5,
        "max_characters_per_token": 12,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8192},
    "dropout": 0.1,
}
CHARACTERS = ["<oov>", "<bos>", "a", "<bow>", "b", "c", "<eow>", "é", "猫", "\u3000", "<eos>", "<pad>", "t"]
WORDS = ["<oov>", "<bos>", "cat", "<eos>", "猫", "<pad>", "abcabcabca", "tab", "\u3000", "tab\u00a0"]


def shapes(settings: dict[str, Any], characters: int, words: int) -> dict[str, tuple[int, ...]]:
    token, lstm = settings["token_embedder"], settings["encoder"]
    filters = sum(number for _, number in token["filters"])
    width, dim = lstm["projection_dim"], lstm["dim"]
    found: dict[str, tuple[int, ...]] = {"char_emb_layer.embedding.weight": (characters, token["char_dim"])}
    if token["word_dim"]:
        found["word_emb_layer.embedding.weight"] = (words, token["word_dim"])
    for i, (size, number) in enumerate(token["filters"]):
        found |= {f"convolutions.{i}.weight": (number, token["char_dim"], size), f"convolutions.{i}.bias": (number,)}
    for k in range(token["n_highway"]):
        name = f"highways._layers.{k}"
        found |= {f"{name}.weight": (2 * filters, filters), f"{name}.bias": (2 * filters,)}
    found |= {"projection.weight": (width, filters + token["word_dim"]), "projection.bias": (width,)}
    for direction in ("forward", "backward"):
        for k in range(lstm["n_layers"]):
            name = f"{direction}_layer_{k}"
            found |= {
                f"{name}.input_linearity.weight": (4 * dim, width),
                f"{name}.state_linearity.weight": (4 * dim, width),
                f"{name}.state_linearity.bias": (4 * dim,),
                f"{name}.state_projection.weight": (width, dim),
            }
    return found


def write(folder: Path, settings: dict[str, Any] | None = None, seed: int = 0) -> Weights:
    """Draw a model and write its folder."""
    settings = settings or SETTINGS
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    drawn = {
        name: torch.from_numpy(rng.normal(0, 0.7, shape).astype(np.float32))
        for name, shape in shapes(settings, len(CHARACTERS), len(WORDS)).items()
    }
    tokens = {name: value for name, value in drawn.items() if "_layer_" not in name or "emb_layer" in name}
    torch.save(tokens, folder / "token_embedder.pkl")
    torch.save({name: value for name, value in drawn.items() if name not in tokens}, folder / "encoder.pkl")
    for file, names in (("char.dic", CHARACTERS), ("word.dic", WORDS)):
        (folder / file).write_text("".join(f"{name}\t{i}\n" for i, name in enumerate(names)), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"config_path": "../elsewhere/settings.json", "seed": 1}))
    (folder / "settings.json").write_text(json.dumps(settings))
    return {name: value.double().numpy() for name, value in drawn.items()}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def token(word: str, w: Weights, settings: dict[str, Any]) -> Any:
    """A word's vector without its context; `<bos>` and `<eos>` are the boundaries."""
    about = settings["token_embedder"]
    length = about["max_characters_per_token"]
    word = word if word in ("<bos>", "<eos>") else word[: length - 2]
    symbols = [word] if word in ("<bos>", "<eos>") else list(word)
    row = ["<eow>", *symbols, "<bow>"]  # swapped, as in its reader
    row += ["<pad>"] * (length - len(row))
    places = [CHARACTERS.index(c if c in CHARACTERS else "<oov>") for c in row]
    vectors = w["char_emb_layer.embedding.weight"][places]
    pieces = []
    for i, (size, _) in enumerate(about["filters"]):
        kernel, bias = w[f"convolutions.{i}.weight"], w[f"convolutions.{i}.bias"]
        found = [np.tensordot(kernel, vectors[p : p + size].T, 2) + bias for p in range(length - size + 1)]
        best = np.max(found, axis=0)
        pieces.append(np.maximum(best, 0) if about["activation"] == "relu" else np.tanh(best))
    x = np.concatenate(pieces)
    for k in range(about["n_highway"]):
        made, gate = np.split(w[f"highways._layers.{k}.weight"] @ x + w[f"highways._layers.{k}.bias"], 2)
        x = sigmoid(gate) * x + (1 - sigmoid(gate)) * np.maximum(made, 0)
    if about["word_dim"]:
        known = WORDS.index(word if word in WORDS else "<oov>")
        x = np.concatenate([w["word_emb_layer.embedding.weight"][known], x])
    return w["projection.weight"] @ x + w["projection.bias"]


def embed(tokens: list[str], w: Weights, settings: dict[str, Any] | None = None) -> Any:
    """All layers of a sentence without its boundaries, `(3, tokens, 2 * projection)`."""
    settings = settings or SETTINGS
    lstm = settings["encoder"]
    x = [token(word, w, settings) for word in ["<bos>", *tokens, "<eos>"]]
    layers = [[np.stack(x)] * 2]
    for k in range(lstm["n_layers"]):
        halves = []
        for direction, below in zip(("forward", "backward"), layers[-1], strict=True):
            name = f"{direction}_layer_{k}"
            m, c = np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"])
            out = []
            for v in below if direction == "forward" else below[::-1]:
                z = w[f"{name}.input_linearity.weight"] @ v + w[f"{name}.state_linearity.weight"] @ m
                i, f, g, o = np.split(z + w[f"{name}.state_linearity.bias"], 4)
                c = np.clip(sigmoid(f) * c + sigmoid(i) * np.tanh(g), -lstm["cell_clip"], lstm["cell_clip"])
                m = w[f"{name}.state_projection.weight"] @ (sigmoid(o) * np.tanh(c))
                m = np.clip(m, -lstm["proj_clip"], lstm["proj_clip"])
                out.append(m + v if k else m)
            halves.append(np.stack(out if direction == "forward" else out[::-1]))
        layers.append(halves)
    return np.stack([np.concatenate(pair, axis=1)[1:-1] for pair in layers])
