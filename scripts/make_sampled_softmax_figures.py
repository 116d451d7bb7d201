"""Make `tests/data/sampled_softmax.json`: what TensorFlow's sampled softmax says of given numbers and samples.

Run it where TensorFlow is (it is no dependency of this project): `python scripts/make_sampled_softmax_figures.py OUT`.
The figures that are kept were made with tensorflow-cpu 2.15.1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


def case(seed: int, n_words: int, dim: int, positions: int, n_samples: int) -> dict[str, Any]:
    """Draw numbers, let TensorFlow draw samples, and write down its losses and gradients."""
    rng = np.random.default_rng(seed)
    weight = tf.Variable(rng.normal(0, dim**-0.5, (n_words, dim)).astype(np.float32))
    bias = tf.Variable(rng.normal(0, 0.5, n_words).astype(np.float32))
    h = tf.Variable(rng.normal(0, 1, (positions, dim)).astype(np.float32))
    targets = (np.exp(rng.random((positions, 1)) * np.log(n_words + 1)) - 1).astype(np.int64)  # many are sampled, too
    drawn = tf.random.log_uniform_candidate_sampler(targets, 1, n_samples, True, n_words, seed=seed)
    with tf.GradientTape() as tape:
        losses = tf.nn.sampled_softmax_loss(
            weight, bias, targets, h, n_samples, n_words, sampled_values=drawn, remove_accidental_hits=True
        )
        mean = tf.reduce_mean(losses)
    of_weight, of_bias, of_h = (tf.convert_to_tensor(g).numpy() for g in tape.gradient(mean, [weight, bias, h]))
    ids, of_true, of_sampled = (value.numpy() for value in drawn)
    return {
        "weight": weight.numpy().tolist(),
        "bias": bias.numpy().tolist(),
        "h": h.numpy().tolist(),
        "targets": targets[:, 0].tolist(),
        "samples": ids.tolist(),
        "expected_true": of_true[:, 0].tolist(),
        "expected_sampled": of_sampled.tolist(),
        "losses": losses.numpy().tolist(),
        "gradient_of_weight": of_weight.tolist(),
        "gradient_of_bias": of_bias.tolist(),
        "gradient_of_h": of_h.tolist(),
    }


def main() -> None:
    """Write the cases: many samples of few words, and few of many."""
    tf.random.set_seed(1)
    figures = {
        "tensorflow": tf.__version__,
        "cases": [case(0, 40, 6, 12, 20), case(1, 200, 4, 10, 16), case(2, 12, 3, 5, 10)],
    }
    rounded = json.loads(json.dumps(figures), parse_float=lambda text: float(f"{float(text):.9g}"))
    Path(sys.argv[1]).write_text(json.dumps(rounded) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
