"""Make `tests/data/tensorflow`: a small checkpoint of bilm-tf's trainer, and the losses that TensorFlow has from there.

Run it in an environment with simple_elmo 0.9.2, whose trainer is bilm-tf's, and TensorFlow (`make .peers/.made`):
`.peers/simple_elmo/bin/python scripts/make_tensorflow_checkpoint.py OUT`. What is kept was made with tensorflow-cpu
2.15.1. The checkpoint is of the third step, so that Adagrad remembers something; two more steps follow, with the full
softmax and without dropout, and their losses and batches are written down. So is a module as TF Hub has them: the same
variables under its names, with two of a learned mix.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from simple_elmo.data import UnicodeCharsVocabulary
from simple_elmo.training import LanguageModel, clip_grads

BATCH, STEPS = 3, 5
WORDS = ["<S>", "</S>", "<UNK>", "the", ".", "cat", "sat", "on", "mat", "naïve", "猫"]
OPTIONS: dict[str, Any] = {
    "bidirectional": True,
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 4},
        "filters": [[1, 4], [2, 4], [3, 8]],
        "max_characters_per_token": 50,
        "n_characters": 261,
        "n_highway": 1,
    },
    "dropout": 0.0,
    "lstm": {
        "cell_clip": 3,
        "dim": 12,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": 5,
        "use_skip_connections": True,
    },
    "all_clip_norm_val": 10.0,
    "n_tokens_vocab": len(WORDS),
    "unroll_steps": STEPS,
    "batch_size": BATCH,
    "sample_softmax": False,
}


def draw(rng: np.random.Generator) -> dict[str, Any]:
    """A batch: words and targets of both directions, which need not make sense."""
    words = [*WORDS[:2], *WORDS[3:], "dog", "Zürich"]
    return {
        "inputs": rng.choice(words, (2, BATCH, STEPS)).tolist(),
        "targets": rng.integers(0, len(WORDS), (2, BATCH, STEPS)).tolist(),
    }


def feed(model: LanguageModel, batch: dict[str, Any], vocab: UnicodeCharsVocabulary) -> dict[Any, Any]:
    """A batch as the graph takes it."""
    forward, backward = ([[vocab.word_to_char_ids(word) for word in row] for row in rows] for rows in batch["inputs"])
    return {
        model.tokens_characters: np.array(forward),
        model.tokens_characters_reverse: np.array(backward),
        model.next_token_id: np.array(batch["targets"][0]),
        model.next_token_id_reverse: np.array(batch["targets"][1]),
    }


def hub_name(name: str) -> str:
    """What TF Hub's module calls a variable."""
    name = re.sub(r"/rnn/multi_rnn_cell/cell_([0-9]+)/lstm_cell/", r"/RNN/MultiRNNCell/Cell\1/rnn/lstm_cell/", name)
    return re.sub("^lm/", "bilm/", name)


def main() -> None:
    """Train three steps, save, train two more."""
    out = Path(sys.argv[1])
    (out / "hub" / "variables").mkdir(parents=True)
    tf.compat.v1.disable_v2_behavior()
    tf.compat.v1.set_random_seed(1)
    (out / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    (out / "options.json").write_text(json.dumps(OPTIONS, indent=2) + "\n")
    vocab = UnicodeCharsVocabulary(str(out / "vocab.txt"), 50)
    global_step = tf.compat.v1.get_variable("global_step", [], initializer=tf.zeros_initializer(), trainable=False)
    optimizer = tf.compat.v1.train.AdagradOptimizer(learning_rate=0.2, initial_accumulator_value=1.0)
    with tf.compat.v1.variable_scope("lm"):
        model = LanguageModel(OPTIONS, True)
        gradients = optimizer.compute_gradients(model.total_loss * STEPS)
    clipped, _ = clip_grads(gradients, OPTIONS, False, global_step)
    step = optimizer.apply_gradients(clipped, global_step=global_step)
    saver = tf.compat.v1.train.Saver(tf.compat.v1.global_variables(), save_relative_paths=True)
    mix = {
        "aggregation/weights": tf.Variable([0.5, -0.25, 1.0], trainable=False),
        "aggregation/scaling": tf.Variable(1.5, trainable=False),
    }
    network = [v for v in tf.compat.v1.trainable_variables() if "softmax" not in v.op.name]
    hub = tf.compat.v1.train.Saver({hub_name(v.op.name): v for v in network} | mix)
    rng, batches = np.random.default_rng(0), []
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        for number in range(5):
            if number == 3:
                saver.save(session, str(out / "model.ckpt"), global_step=3, write_meta_graph=False)
                hub.save(session, str(out / "hub/variables/variables"), write_meta_graph=False, write_state=False)
            batch = draw(rng)
            *losses, _ = session.run([*model.individual_losses, step], feed_dict=feed(model, batch, vocab))
            batches.append(batch | {"losses": [float(loss) for loss in losses]})
    figures = {"tensorflow": tf.__version__, "batches": batches[3:]}
    (out / "figures.json").write_text(json.dumps(figures, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
