"""ELMo where its users already are: one small file for each library, each with an extra of its own."""
