"""Memory that comes from the system and goes back to it when it is freed."""

from __future__ import annotations

import mmap


def pages(size: int) -> mmap.mmap:
    """`size` zero bytes, of this process alone: Python's default would share them with the processes it forks."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)
