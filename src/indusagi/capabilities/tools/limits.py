"""Limits of the native tools that stand in their definitions and hold in their runs."""

from __future__ import annotations

DEFAULT_TIMEOUT_MS = 120_000
"""Of a command of `bash`, unless told otherwise."""
LONGEST_TIMEOUT_MS = 600_000
"""The longest that a command of `bash` may ask for."""
MOST_ENTRIES = 1_000
"""Of one listing by `ls`."""
LONGEST_WAIT_MS = 30_000
"""For output of a job, in one call of `process`."""
