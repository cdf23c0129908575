"""Edits of tables in TOML that leave every other line as it is."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import cast


def set_table(text: str, path: Sequence[str], table: str) -> str:
    """Put a table in the place of the one at a path, or at the end.

    The text is changed by lines; whether it means what it should is for the caller to check.
    """
    kept, at = _without(text, path)
    if at is not None:
        return "".join([*kept[:at], f"{table}\n", *kept[at:]])
    before = "".join(kept)
    gap = "" if not before.strip() else "\n" if before.endswith("\n") else "\n\n"
    return f"{before}{gap}{table}\n"


def remove_table(text: str, path: Sequence[str]) -> str:
    """Remove the table at a path and those below it, and the blank line before each."""
    kept, at = _without(text, path)
    if at is not None and at > 0 and not kept[at - 1].strip():
        del kept[at - 1]
    return "".join(kept)


def _without(text: str, path: Sequence[str]) -> tuple[list[str], int | None]:
    """Give the lines without the tables at or below a path, and where the first of them stood."""
    kept: list[str] = []
    ours: list[str] | None = None
    at: int | None = None
    for line in text.splitlines(keepends=True):
        header = _header(line)
        if header is not None:
            kept.extend(_trailing(ours))
            ours = [] if header[: len(path)] == [*path] else None
            at = len(kept) if ours is not None and at is None else at
        if ours is None:
            kept.append(line)
        else:
            ours.append(line)
    kept.extend(_trailing(ours))
    return kept, at


def _trailing(ours: Sequence[str] | None) -> Sequence[str]:
    """Give the blank lines and comments at the end of a table: they belong to what follows."""
    lines = ours or ()
    end = len(lines)
    while end and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return lines[end:]


def _header(line: str) -> list[str] | None:
    """Read the path of a header of a table; None if the line is something else."""
    if not line.lstrip().startswith("["):
        return None
    try:
        found: object = tomllib.loads(line.strip())
    except ValueError:
        return None
    keys: list[str] = []
    while isinstance(found, dict) and found:  # a header has one key at each level
        key, found = next(iter(cast("dict[str, object]", found).items()))
        keys.append(key)
    return keys
