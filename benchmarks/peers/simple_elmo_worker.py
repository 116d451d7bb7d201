"""simple_elmo 0.9.2 on TensorFlow 2.15.1, in its own environment (Python 3.11)."""

from __future__ import annotations

import logging
import sys
from typing import Any

import tensorflow as tf
from measure import measure
from simple_elmo import ElmoModel
from simple_elmo.elmo import weight_layers

logging.disable(logging.INFO)
model = ElmoModel()
model.load(sys.argv[1], max_batch_size=128)
session = tf.compat.v1.Session()
with session.as_default():
    model.elmo_sentence_input = weight_layers("input", model.sentence_embeddings_op, use_layers="average")
    session.run(tf.compat.v1.global_variables_initializer())


def embed(sentences: list[list[str]], rows: int) -> Any:
    """All sentences in batches of `rows`, in their order."""
    model.batch_size = rows
    return model.get_elmo_vectors(sentences, warmup=False, session=session)


measure("simple_elmo 0.9.2", embed, [8, 32, 128])
