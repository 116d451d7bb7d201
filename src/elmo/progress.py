"""A progress bar on a terminal, a plain line now and then elsewhere; both on standard error."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from types import TracebackType

_SECONDS_BETWEEN_LINES = 10.0


class ProgressBar:
    """Shows how far a long job has come and how many tokens a second it does; use it as a context."""

    def __init__(self, what: str, *, total: int | None, quiet: bool = False, units: str = "tokens") -> None:
        """Show that `what` is done, in a speed of `units`.

        `total` is in whatever `update` counts first, None where it is not known.
        """
        self._what = what
        self._units = units
        self._total = total
        self._quiet = quiet
        self._start = time.monotonic()
        self._next_line = self._start + _SECONDS_BETWEEN_LINES
        self._first_tokens: int | None = None
        self._first_done = 0
        self.tokens = 0
        self._rich = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._rich = Progress(
                TextColumn(what),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %" if total else ""),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._rich.add_task(what, total=total, note="")

    def __enter__(self) -> ProgressBar:
        """Start the bar."""
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bar, whatever happened."""
        if self._rich is not None:
            self._rich.stop()

    def update(self, done: int, tokens: int, note: str) -> None:
        """Say that `done` of the total and so many tokens are done; the first call says where an earlier run ended."""
        if self._first_tokens is None:
            self._first_tokens, self._first_done = tokens, done
        self.tokens = tokens - self._first_tokens
        if self._rich is not None:
            self._rich.update(self._task, completed=done, note=f"{note}, {self._rate:,.0f} {self._units}/s")
        elif not self._quiet and time.monotonic() >= self._next_line:
            share = f" {100 * done / self._total:.0f} %," if self._total else ""
            left = self._time_left(done)
            speed = f"{self._rate:,.0f} {self._units}/s"
            print(f"{self._what}:{share} {note}, {speed}{left}", file=sys.stderr, flush=True)
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    def summary(self) -> str:
        """What was done since the start, and how fast."""
        seconds = time.monotonic() - self._start
        return f"{self.tokens:,} {self._units} in {seconds:.1f} s ({self._rate:,.0f} {self._units}/s)"

    def _time_left(self, done: int) -> str:
        if self._total is None or done <= self._first_done:
            return ""
        seconds = (time.monotonic() - self._start) * (self._total - done) / (done - self._first_done)
        return f", {timedelta(seconds=round(seconds))} left"

    @property
    def _rate(self) -> float:
        return self.tokens / max(time.monotonic() - self._start, 1e-9)
