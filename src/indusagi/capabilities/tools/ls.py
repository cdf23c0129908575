"""`ls`: list a directory and its subdirectories up to a depth."""

from __future__ import annotations

import heapq
import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.budget import MOST_ENTRIES
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.ignore import REPOSITORY, RULE_FILE, IgnoreRules, compile_glob
from indusagi.capabilities.files.lines import format_path
from indusagi.capabilities.ports import DirEntry, FileKind, Fs, PathRefused
from indusagi.capabilities.tool import DefinedTool, define_native_tool
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble, report_missing_path
from indusagi.core.app_dirs import is_within, parts_below
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.text import format_count
from indusagi.runtime.contract import JsonSchema, ToolResult

_MAX_DEPTH = 3
_ALIASES = {
    **PATH_ALIASES,
    "directory": "path",
    "dir": "path",
    "dir_path": "path",
    "show_hidden": "showHidden",
    "hidden": "showHidden",
    "all": "showHidden",
    "exclude": "ignore",
}
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Default: the workspace."},
        "showHidden": {"type": "boolean", "description": "List dot files too."},
        "depth": {
            "type": "integer",
            "minimum": 1,
            "maximum": _MAX_DEPTH,
            "description": f"Levels: 1 (default) to {_MAX_DEPTH}.",
        },
        "ignore": {"type": "array", "items": {"type": "string"}, "description": "Names to leave out: *.log, dist/."},
    },
    "additionalProperties": False,
}
_DESCRIPTION = (
    "List a directory, with sizes. Dot files are counted, what git ignores is marked and not "
    f"entered. {MOST_ENTRIES:,} entries at most. Use find to search for names."
)
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STEP = 1024
_MAX_PATTERNS = 100


def ls_tool() -> DefinedTool:
    """Create the `ls` tool."""
    prepare = coerce_to(_PARAMETERS, _ALIASES)
    return define_native_tool("ls", "List directory", _DESCRIPTION, _PARAMETERS, run_ls, prepare, read_only=True)


def format_size(size: int) -> str:
    """Format a size with at most four digits, rounded down."""
    if size < _STEP:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    tenths = size * 10 >> 10 * power
    return f"{tenths // 10}.{tenths % 10} {_UNITS[power - 1]}"


def format_tree(name: str, tree: DirectoryTree) -> str:
    """Format the listing: a header, then one line per entry."""
    counts = ((tree.folders, "directory", "directories"), (tree.entries - tree.folders, "file", "files"))
    parts = [format_count(count, one, many) for count, one, many in counts if count] or ["empty"]
    if tree.hidden:
        parts.append(f"{tree.hidden:,} hidden (showHidden shows them)")
    if tree.excluded:
        parts.append(f"{tree.excluded:,} left out by ignore")
    if tree.is_truncated:
        unread = format_count(tree.unread, "directory was", "directories were")
        parts.append(f"cut at {MOST_ENTRIES:,}" + (f", {unread} not entered" * bool(tree.unread)))
    return "\n".join([f"[{name}: {'; '.join(parts)}]", *_format_level(tree.top, "")])


def _format_level(level: ListedEntry, indent: str) -> Iterator[str]:
    for row in level.below or ():
        entry = row.entry
        line = format_path(entry.name)
        if entry.kind is FileKind.DIRECTORY:
            line += "/"
        elif entry.kind is FileKind.SYMLINK:
            line += f" -> {format_path(entry.target or '?')}"
            line += "/" if row.is_link_to_directory else ""
        elif entry.kind is FileKind.OTHER:
            line += " (special)"
        elif entry.size is not None:
            line += f"  {format_size(entry.size)}"
        line += f" ({row.problem})" if row.problem else ""
        yield f"{indent}{line}{' (ignored)' if row.ignored else ''}"
        yield from _format_level(row, f"{indent}  ")
    if level.more:
        yield f"{indent}[{level.more:,} more]"


@dataclass(slots=True)
class ListedEntry:
    """An entry to show."""

    entry: DirEntry
    ignored: bool = False
    problem: str = ""
    """Why a directory is unreadable, or the problem with a link."""
    is_link_to_directory: bool = False
    below: list[ListedEntry] | None = None
    """The entries of a directory we've read."""
    more: int = 0
    """Number of its entries past the limit."""


class DirectoryTree:
    """A directory and its subdirectories, down to `depth` levels.

    A glob in `patterns` excludes names; one with a slash matches against the path from the top.
    """

    def __init__(self, depth: int, patterns: Sequence[str], *, show_hidden: bool) -> None:
        self.top = ListedEntry(DirEntry(".", FileKind.DIRECTORY))
        self.entries = self.folders = self.hidden = self.ignored = self.excluded = 0
        self.unread = 0
        """Number of directories not read because of the limit."""
        self._depth, self._show_hidden = depth, show_hidden
        self._patterns: list[tuple[re.Pattern[str] | None, bool, bool]] = []
        """(compiled glob, whether it matches whole paths, whether it only matches directories)"""
        for pattern in patterns:
            text = pattern.removeprefix("./").rstrip("/")
            self._patterns.append((compile_glob(text.removeprefix("/")), "/" in text, pattern.endswith("/")))
        self._remaining = MOST_ENTRIES

    async def read(self, fs: Fs, path: str) -> None:
        """Read a directory tree level by level.

        Raises `OSError` if the top directory is unreadable; problems with others end up in their entry.
        """
        waiting = deque([(self.top, path, "", IgnoreRules())])
        while waiting and self._remaining:
            level, folder, way, rules = waiting.popleft()
            try:
                entries = await fs.readdir(folder)
            except OSError as exc:
                if level is self.top:
                    raise
                level.problem = exc.strerror or str(exc)
                continue
            rules = await _load_rules(fs, folder, rules, entries, is_top=level is self.top)
            level.below = await to_thread.run_sync(self._select_entries, level, way, rules, entries)
            for row in level.below:
                name, below = row.entry.name, os.path.join(folder, row.entry.name)
                if row.entry.kind is FileKind.SYMLINK:
                    try:
                        row.is_link_to_directory = (await fs.stat(below)).kind is FileKind.DIRECTORY
                    except PathRefused:
                        row.problem = "outside"
                    except OSError:
                        row.problem = "broken"
                elif (
                    _is_folder(row.entry)
                    and not row.ignored
                    and name != REPOSITORY
                    and way.count("/") < self._depth - 1
                ):
                    waiting.append((row, below, f"{way}{name}/", rules))
        self.unread = len(waiting)

    @property
    def is_truncated(self) -> bool:
        """Whether entries are missing."""
        return self.entries > MOST_ENTRIES or self.unread > 0

    def to_details(self) -> dict[str, JsonValue]:
        """Return the counts as result details."""
        return {
            "kind": "directory",
            "entries": self.entries,
            "shown": MOST_ENTRIES - self._remaining,
            "directories": self.folders,
            "hidden": self.hidden,
            "ignored": self.ignored,
            "leftOut": self.excluded,
            "truncated": self.is_truncated,
        }

    def _select_entries(
        self, level: ListedEntry, way: str, rules: IgnoreRules, entries: Sequence[DirEntry]
    ) -> list[ListedEntry]:
        """Select and sort the entries to show. Blocks, since a directory may be huge."""
        listed: list[DirEntry] = []
        for entry in entries:
            is_folder, path = _is_folder(entry), way + entry.name
            if entry.name.startswith(".") and not self._show_hidden:
                self.hidden += 1
            elif any(
                regex is not None and (is_folder or not folders) and regex.match(path if by_path else entry.name)
                for regex, by_path, folders in self._patterns
            ):
                self.excluded += 1
            else:
                self.folders += is_folder
                self.ignored += rules.ignores(entry.name, is_dir=is_folder)
                listed.append(entry)
        self.entries += len(listed)
        # Use a heap: sorting a huge list would hold the GIL.
        chosen = heapq.nsmallest(
            self._remaining, listed, key=lambda entry: (not _is_folder(entry), entry.name.casefold(), entry.name)
        )
        self._remaining -= len(chosen)
        level.more = len(listed) - len(chosen)
        return [ListedEntry(entry, rules.ignores(entry.name, is_dir=_is_folder(entry))) for entry in chosen]


def _is_folder(entry: DirEntry) -> bool:
    return entry.kind is FileKind.DIRECTORY


async def _load_rules(
    fs: Fs, path: str, above: IgnoreRules, entries: Sequence[DirEntry], *, is_top: bool
) -> IgnoreRules:
    """Load the ignore rules of a directory, if the file system supports handles."""
    names = {name for name in (REPOSITORY, RULE_FILE) if _has_name(entries, name)}
    name = os.path.basename(path)
    if not is_top and not names:
        return above.below(name, path, names)
    try:
        with await fs.folder(path) as folder:
            if is_top:
                return await to_thread.run_sync(IgnoreRules.load, folder.path)
            return await to_thread.run_sync(above.below, name, folder.handle, names)
    except OSError:
        return above


def _has_name(entries: Sequence[DirEntry], name: str) -> bool:
    """Return whether sorted entries contain a name."""
    at = bisect_left(entries, name, key=attrgetter("name"))
    return at < len(entries) and entries[at].name == name


async def run_ls(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Run a call of `ls`."""
    path = path_given(arguments)
    patterns = _patterns(arguments)
    if len(patterns) > _MAX_PATTERNS:
        return ToolResult.error(
            f"ignore holds {len(patterns):,} patterns, {_MAX_PATTERNS} at most are accepted: use fewer and wider ones",
            code="invalid_pattern",
        )
    try:
        found = await ctx.fs.stat(path)
        resolved = await ctx.fs.resolve(path)
    except OSError as exc:
        return await report_missing_path(exc, path, ctx)
    name = resolved
    with suppress(OSError):
        cwd = await ctx.fs.resolve(ctx.cwd)
        if is_within(resolved, cwd):
            name = "/".join(parts_below(resolved, cwd)) or "."
    name = format_path(name)
    if found.kind is not FileKind.DIRECTORY:
        line = f"{name}  {format_size(found.size)}" if found.kind is FileKind.FILE else f"{name} (special)"
        return ToolResult.text(line, path=resolved, kind=str(found.kind), size=found.size)
    depth = arguments.get("depth")
    tree = DirectoryTree(
        depth if isinstance(depth, int) else 1, patterns, show_hidden=arguments.get("showHidden") is True
    )
    try:
        await tree.read(ctx.fs, path)
    except OSError as exc:
        return path_trouble(exc, path)
    return ToolResult.text(format_tree(name, tree), path=resolved, **tree.to_details())


def _patterns(arguments: JsonObject) -> tuple[str, ...]:
    given = arguments.get("ignore")
    listed = given if isinstance(given, list) else []
    return tuple(pattern for pattern in listed if isinstance(pattern, str))
