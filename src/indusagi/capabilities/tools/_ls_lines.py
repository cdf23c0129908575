"""The lines of a listing, as `ls` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.capabilities.backends import FileKind
from indusagi.capabilities.files.shown import shown_name
from indusagi.capabilities.tools._ls_tree import MOST_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indusagi.capabilities.tools._ls_tree import Branch, Level, Tree

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STEP = 1024


def sized(size: int) -> str:
    """Say a size in at most four digits; the same size is always said the same way."""
    if size < _STEP:
        return f"{size} B"
    # In whole numbers, and never rounded up to the next unit.
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    tenths = size * 10 >> 10 * power
    return f"{tenths // 10}.{tenths % 10} {_UNITS[power - 1]}"


def render(name: str, tree: Tree) -> str:
    """Give the listing: a line on the whole, then one for each entry."""
    return "\n".join([_header(name, tree), *_lines(tree.top, "")])


def _header(name: str, tree: Tree) -> str:
    files = tree.entries - tree.folders
    parts = [_count(tree.folders, "directory", "directories"), _count(files, "file", "files")]
    parts = [part for part in parts if part] or ["empty"]
    if tree.hidden:
        parts.append(f"{tree.hidden:,} hidden (showHidden shows them)")
    if tree.left_out:
        parts.append(f"{tree.left_out:,} left out by ignore")
    if tree.is_cut:
        unlisted = _count(tree.unlisted, "directory was", "directories were")
        parts.append(f"cut at {MOST_ENTRIES:,}" + (f", {unlisted} not entered" * bool(unlisted)))
    return f"[{name}: {'; '.join(parts)}]"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}" if number else ""


def _lines(level: Level, indent: str) -> Iterator[str]:
    for branch in level.shown:
        yield f"{indent}{_line(branch)}"
        if branch.below is not None:
            yield from _lines(branch.below, f"{indent}  ")
    if level.more:
        yield f"{indent}[{level.more:,} more]"


def _line(branch: Branch) -> str:
    entry = branch.entry
    line = shown_name(entry.name)
    if entry.kind is FileKind.DIRECTORY:
        line += "/"
    elif entry.kind is FileKind.SYMLINK:
        line += f" -> {shown_name(entry.target or '?')}"
        line += "/" if branch.leads_to_folder else ""
    elif entry.kind is FileKind.OTHER:
        line += " (special)"
    elif entry.size is not None:
        line += f"  {sized(entry.size)}"
    if branch.trouble:
        line += f" ({branch.trouble})"
    return f"{line} (ignored)" if branch.ignored else line
