"""Vectors without this library or PyTorch: `elmo export default model.onnx; python onnx_without_elmo.py model.onnx`."""

import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
(_, _, length), m, c = (value.shape for value in session.get_inputs())
sentence = ["We", "sat", "on", "the", "bank", "of", "the", "river", "."]

ids = np.full((1, len(sentence) + 2, length), 261)  # padding; a byte b is b + 1
for row, word in enumerate([[257], *sentence, [258]]):  # the boundaries have ids of their own
    symbols = [byte + 1 for byte in word.encode()[: length - 2]] if isinstance(word, str) else word
    ids[0, row, : len(symbols) + 2] = [259, *symbols, 260]  # between the marks of a word's begin and end

nothing = [np.zeros((layers, 2, 1, width), np.float32) for layers, _, _, width in (m, c)]
layers, _, _, _ = session.run(None, {"char_ids": ids, "m": nothing[0], "c": nothing[1]})
for word, vector in zip(sentence, layers.mean(axis=0)[0, 1:-1], strict=True):
    print(f"{word:<6}", vector[:4].round(4))
