"""`python -m elmo` is the `elmo` command."""

from elmo.cli import main

main()
