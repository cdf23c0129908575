"""All rows, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import bridge, kernel, start

if TYPE_CHECKING:
    from bench.row import Row

ROWS: tuple[Row, ...] = (*start.ROWS, *kernel.ROWS, *bridge.ROWS)
