"""What a model has learned, looked at: pure functions over an embedder and sentences."""
