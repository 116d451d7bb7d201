"""`elmo` inside other libraries: a module each, with an extra of its own."""
