"""The one error type a user of `elmo` meets: what was given, what is allowed, what to do."""

from __future__ import annotations


class ElmoError(ValueError):
    """A mistake in what the user gave (a file, an option, a text). The command prints it and exits with code 2."""


class TextError(ElmoError):
    """What was given as text is none, or cannot be used: trying again will not help, other text or settings may."""


class MissingExtraError(ElmoError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency. Install it with: pip install 'elmo[{extra}]'")
        self._given = feature, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        """Comes out of another process as it went in."""
        return type(self), self._given


def lack_of_memory(error: BaseException) -> str | None:
    """What PyTorch says where a device's memory is too small, in short; None of any other error."""
    if type(error).__name__ == "OutOfMemoryError":  # PyTorch's, which is not imported to say so
        return str(error).partition(". ")[0]
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)):
        return "out of memory"
    return None
