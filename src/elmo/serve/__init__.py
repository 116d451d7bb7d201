"""`elmo serve`: a model over HTTP."""
