"""An independent biLM in plain numpy and float64, one sentence and one number at a time where that is clearer.

It shares no code with `elmo`: it reads weights under bilm-tf's names and follows SEMANTICS sections 1 to 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = dict[str, Array]
LSTMState = tuple[Array, Array]


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def char_row(word: str, length: int) -> list[int]:
    if word == "<S>":
        marks = [256]
    elif word == "</S>":
        marks = [257]
    else:
        marks = list(word.encode("utf-8", "ignore"))[: length - 2]
    row = [258, *marks, 259]
    return row + [260] * (length - len(row))


class Reference:
    """One model. `embed` gives all layers of one sentence and the state that it leaves."""

    def __init__(self, options: dict[str, Any], weights: dict[str, Any], words: list[str] | None = None) -> None:
        self.lstm = options["lstm"]
        self.cnn = options.get("char_cnn")
        self.w: Weights = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
        self.words = words or []

    def token(self, word: str) -> Array:
        if self.cnn is None:
            place = self.words.index(word) if word in self.words else self.words.index("<UNK>")
            return np.asarray(self.w["embedding"][place])
        length = self.cnn["max_characters_per_token"]
        chars = self.w["char_embed"][char_row(word, length)]
        pieces = []
        for i, (width, _) in enumerate(self.cnn["filters"]):
            kernel, bias = self.w[f"CNN/W_cnn_{i}"][0], self.w[f"CNN/b_cnn_{i}"]
            places = [
                np.tensordot(chars[p : p + width], kernel, axes=([0, 1], [0, 1])) + bias
                for p in range(length - width + 1)
            ]
            best = np.max(places, axis=0)
            pieces.append(np.maximum(best, 0) if self.cnn["activation"] == "relu" else np.tanh(best))
        x = np.concatenate(pieces)
        for k in range(self.cnn.get("n_highway") or 0):
            p = f"CNN_high_{k}/"
            gate = sigmoid(x @ self.w[p + "W_carry"] + self.w[p + "b_carry"])
            x = gate * np.maximum(x @ self.w[p + "W_transform"] + self.w[p + "b_transform"], 0) + (1 - gate) * x
        if len(x) != self.lstm["projection_dim"]:
            x = x @ self.w["CNN_proj/W_proj"] + self.w["CNN_proj/b_proj"]
        return np.asarray(x)

    def step(self, prefix: str, x: Array, state: LSTMState) -> LSTMState:
        m, c = state
        z = np.concatenate([x, m]) @ self.w[prefix + "W_0"] + self.w[prefix + "B"]
        i, j, f, o = np.split(z, 4)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j)
        if self.lstm.get("cell_clip"):
            c = np.clip(c, -self.lstm["cell_clip"], self.lstm["cell_clip"])
        m = sigmoid(o) * np.tanh(c)
        if prefix + "W_P_0" in self.w:
            m = m @ self.w[prefix + "W_P_0"]
            if self.lstm.get("proj_clip"):
                m = np.clip(m, -self.lstm["proj_clip"], self.lstm["proj_clip"])
        return m, c

    def zero_state(self) -> list[list[LSTMState]]:
        narrow = min(self.lstm["projection_dim"], self.lstm["dim"])
        return [
            [(np.zeros(narrow), np.zeros(self.lstm["dim"])) for _ in range(self.lstm["n_layers"])] for _ in range(2)
        ]

    def embed(
        self, tokens: list[str], state: list[list[LSTMState]] | None = None
    ) -> tuple[Array, list[list[LSTMState]]]:
        """Layers `(L, tokens + 2, 2 * projection)`, boundaries included, and the state after the sentence."""
        state = [list(direction) for direction in (state or self.zero_state())]
        x = [self.token(word) for word in ["<S>", *tokens, "</S>"]]
        layers = [np.stack([np.concatenate([v, v]) for v in x])]
        halves: list[list[Array]] = []
        for direction in range(2):
            sequence = x if direction == 0 else x[::-1]
            outs = []
            for k in range(self.lstm["n_layers"]):
                cell = f"MultiRNNCell/Cell{k}/" if self.lstm["n_layers"] > 1 else ""
                prefix = f"RNN_{direction}/RNN/{cell}LSTMCell/"
                produced = []
                for v in sequence:
                    state[direction][k] = self.step(prefix, v, state[direction][k])
                    m = state[direction][k][0]
                    produced.append(m + v if k > 0 and self.lstm.get("use_skip_connections") else m)
                sequence = produced
                outs.append(np.stack(sequence if direction == 0 else sequence[::-1]))
            halves.append(outs)
        layers += [np.concatenate(pair, axis=1) for pair in zip(*halves, strict=True)]
        return np.stack(layers), state
