"""The language model: text to shards, pretraining, its softmax, its scores."""
