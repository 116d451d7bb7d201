"""The one error type a user of `elmo` meets: what was given, what is allowed, what to do."""

from __future__ import annotations


class ElmoError(ValueError):
    """A mistake in what the user gave (a file, an option, a text). The command prints it and exits with code 2."""


class MissingExtraError(ElmoError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency. Install it with: pip install 'elmo[{extra}]'")
