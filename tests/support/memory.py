"""How much memory a block needed at its worst, counted by the interpreter itself."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

MIB = 1024 * 1024


class Peak:
    """The most that was held at once, beyond what was held before the block."""

    def __init__(self, before: int) -> None:
        self.bytes = 0
        self._before = before

    def held(self) -> int:
        """Tell what is held now, inside the block."""
        return tracemalloc.get_traced_memory()[0] - self._before

    def take(self) -> None:
        self.bytes = tracemalloc.get_traced_memory()[1] - self._before


@contextmanager
def peak_memory() -> Generator[Peak]:
    """Count what is allocated inside the block; `bytes` is known when it has been left."""
    tracemalloc.start()
    try:
        peak = Peak(tracemalloc.get_traced_memory()[0])
        tracemalloc.reset_peak()
        yield peak
        peak.take()
    finally:
        tracemalloc.stop()
