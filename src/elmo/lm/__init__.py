"""Pretraining, fine-tuning and the language model itself."""
