"""An independent language model in float64: one row, one token, one number at a time where that is clearer.

It shares no code with `elmo` and follows SEMANTICS section 5. Gradients come from autograd over these plain loops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Masks = list[Tensor]  # (2, T, B, P), one a layer's input and one for the top: 0 or 1 / (1 - rate)


def leaves(weights: dict[str, Tensor]) -> Weights:
    return {name: w.detach().double().clone().requires_grad_() for name, w in weights.items()}


def word_vector(w: Weights, options: dict[str, Any], ids: list[int]) -> Tensor:
    cnn = options["char_cnn"]
    chars = torch.stack([w["encoder.characters.weight"][i] for i in ids])  # (C, E)
    pieces = []
    for k, (width, _) in enumerate(cnn["filters"]):
        kernel, bias = w[f"encoder.convolutions.{k}.weight"], w[f"encoder.convolutions.{k}.bias"]  # (n, E, width)
        places = [torch.einsum("we,new->n", chars[p : p + width], kernel) + bias for p in range(len(ids) - width + 1)]
        best = torch.stack(places).amax(dim=0)
        pieces.append(torch.relu(best) if cnn["activation"] == "relu" else torch.tanh(best))
    x = torch.cat(pieces)
    for k in range(cnn.get("n_highway", 0)):
        p = f"encoder.highways.{k}."
        gate = torch.sigmoid(w[p + "carry.weight"] @ x + w[p + "carry.bias"])
        x = gate * torch.relu(w[p + "transform.weight"] @ x + w[p + "transform.bias"]) + (1 - gate) * x
    if "encoder.projection.weight" in w:
        x = w["encoder.projection.weight"] @ x + w["encoder.projection.bias"]
    return x


def lstm_step(w: Weights, prefix: str, lstm: dict[str, Any], x: Tensor, m: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.cat([x, m]) @ w[prefix + "kernel"] + w[prefix + "bias"]
    n = lstm["dim"]
    i, j, f, o = z[:n], z[n : 2 * n], z[2 * n : 3 * n], z[3 * n :]
    c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(j)
    if lstm.get("cell_clip"):
        c = torch.clamp(c, -lstm["cell_clip"], lstm["cell_clip"])
    m = torch.sigmoid(o) * torch.tanh(c)
    if prefix + "projection" in w:
        m = m @ w[prefix + "projection"]
        if lstm.get("proj_clip"):
            m = torch.clamp(m, -lstm["proj_clip"], lstm["proj_clip"])
    return m, c


def top_layer(
    w: Weights,
    options: dict[str, Any],
    words: list[list[int]],
    inputs: list[list[list[int]]],
    m: Tensor,
    c: Tensor,
    masks: Masks | None,
) -> tuple[dict[tuple[int, int, int], Tensor], Tensor, Tensor]:
    """Top outputs by (direction, row, time), and the state `(K, 2, B, .)` behind the window."""
    lstm = options["lstm"]
    vectors = [word_vector(w, options, ids) for ids in words]
    tops: dict[tuple[int, int, int], Tensor] = {}
    m, c = m.clone(), c.clone()
    for direction, stack in enumerate(("forwards", "backwards")):
        for row, stream in enumerate(inputs[direction]):
            sequence = [vectors[word] for word in stream]
            for k in range(lstm["n_layers"]):
                now_m, now_c = m[k, direction, row].clone(), c[k, direction, row].clone()
                produced = []
                for t, x in enumerate(sequence):
                    dropped = x if masks is None else x * masks[k][direction, t, row]
                    now_m, now_c = lstm_step(w, f"{stack}.{k}.", lstm, dropped, now_m, now_c)
                    produced.append(now_m + dropped if k > 0 and lstm.get("use_skip_connections") else now_m)
                sequence = produced
                m[k, direction, row], c[k, direction, row] = now_m.detach(), now_c.detach()
            for t, x in enumerate(sequence):
                tops[direction, row, t] = x if masks is None else x * masks[-1][direction, t, row]
    return tops, m, c


def full_loss(weight: Tensor, bias: Tensor, h: Tensor, target: int) -> Tensor:
    scores = weight @ h + bias
    return torch.log(torch.exp(scores - scores.max()).sum()) + scores.max() - scores[target]


def sampled_loss(weight: Tensor, bias: Tensor, h: Tensor, target: int, samples: list[int], tries: int) -> Tensor:
    """`-ln softmax` over the target and the samples that are not it, each less the log of its expected count."""

    def corrected(word: int) -> Tensor:
        k, n_words = torch.tensor(float(word), dtype=torch.float64), len(bias)
        probability = torch.log((k + 2) / (k + 1)) / torch.log(torch.tensor(n_words + 1.0, dtype=torch.float64))
        expected = 1 - (1 - probability) ** tries
        return weight[word] @ h + bias[word] - torch.log(expected)

    scores = torch.stack([corrected(target), *(corrected(word) for word in samples if word != target)])
    return torch.log(torch.exp(scores - scores.max()).sum()) + scores.max() - scores[0]
