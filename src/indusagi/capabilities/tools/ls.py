"""`ls`: list a directory and its subdirectories up to a depth."""

from __future__ import annotations

import heapq
import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from indusagi.core.records import record
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
    files = tree.entries - tree.folders
    parts = [_format_count(tree.folders, "directory", "directories"), _format_count(files, "file", "files")]
    parts = [part for part in parts if part] or ["empty"]
    if tree.hidden:
        parts.append(f"{tree.hidden:,} hidden (showHidden shows them)")
    if tree.excluded:
        parts.append(f"{tree.excluded:,} left out by ignore")
    if tree.is_truncated:
        unread = _format_count(tree.unread, "directory was", "directories were")
        parts.append(f"cut at {MOST_ENTRIES:,}" + (f", {unread} not entered" * bool(unread)))
    return "\n".join([f"[{name}: {'; '.join(parts)}]", *_format_level(tree.top, "")])


def _format_count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}" if number else ""


def _format_level(level: ListedDirectory, indent: str) -> Iterator[str]:
    for entry_row in level.shown:
        entry = entry_row.entry
        line = format_path(entry.name)
        if entry.kind is FileKind.DIRECTORY:
            line += "/"
        elif entry.kind is FileKind.SYMLINK:
            line += f" -> {format_path(entry.target or '?')}"
            line += "/" if entry_row.is_link_to_directory else ""
        elif entry.kind is FileKind.OTHER:
            line += " (special)"
        elif entry.size is not None:
            line += f"  {format_size(entry.size)}"
        line += f" ({entry_row.problem})" if entry_row.problem else ""
        yield f"{indent}{line}{' (ignored)' if entry_row.ignored else ''}"
        if entry_row.below is not None:
            yield from _format_level(entry_row.below, f"{indent}  ")
    if level.more:
        yield f"{indent}[{level.more:,} more]"


@record(kw_only=True)
class ListOptions:
    """Options of a listing."""

    depth: int = 1
    show_hidden: bool = False
    patterns: tuple[str, ...] = ()
    """Globs to exclude; a glob with a slash matches against the path from the top."""


@dataclass(slots=True)
class ListedEntry:
    """An entry to show."""

    entry: DirEntry
    ignored: bool
    below: ListedDirectory | None = None
    problem: str = ""
    """Why a directory is unreadable, or the problem with a link."""
    is_link_to_directory: bool = False


@dataclass(slots=True)
class ListedDirectory:
    """The entries of a directory to show, and the number of others."""

    shown: list[ListedEntry] = field(default_factory=list[ListedEntry])
    more: int = 0
    """Number of entries past the limit."""


@dataclass(slots=True)
class _PendingDirectory:
    """A directory we haven't read yet."""

    path: str
    way: str
    """Path from the top with a trailing slash; empty for the top itself."""
    depth: int
    rules: IgnoreRules
    entry_row: ListedEntry | None


class DirectoryTree:
    """A directory and its subdirectories."""

    def __init__(self, options: ListOptions) -> None:
        self.top = ListedDirectory()
        self.entries = 0
        self.folders = 0
        self.hidden = 0
        self.ignored = 0
        self.excluded = 0
        self.unread = 0
        """Number of directories not read because of the limit."""
        self._choice = options
        self._patterns: list[tuple[re.Pattern[str] | None, bool, bool]] = []
        """(compiled glob, whether it matches whole paths, whether it only matches directories)"""
        for pattern in options.patterns:
            text = pattern.removeprefix("./").rstrip("/")
            self._patterns.append((compile_glob(text.removeprefix("/")), "/" in text, pattern.endswith("/")))
        self._remaining = MOST_ENTRIES

    @staticmethod
    async def read(fs: Fs, path: str, options: ListOptions) -> DirectoryTree:
        """Read a directory tree level by level.

        Raises:
            OSError: The top directory is unreadable; problems with others end up in their entry.
        """
        tree = DirectoryTree(options)
        waiting = deque([_PendingDirectory(path, "", 1, IgnoreRules(), None)])
        while waiting and tree._remaining:
            pending = waiting.popleft()
            try:
                entries = await fs.readdir(pending.path)
            except OSError as exc:
                if pending.entry_row is None:
                    raise
                pending.entry_row.problem = exc.strerror or str(exc)
                continue
            pending.rules = await _load_rules(fs, pending, entries)
            level = await to_thread.run_sync(tree._select_entries, pending, entries)
            for entry_row in level.shown:
                if entry_row.entry.kind is FileKind.SYMLINK:
                    try:
                        found = await fs.stat(os.path.join(pending.path, entry_row.entry.name))
                        entry_row.is_link_to_directory = found.kind is FileKind.DIRECTORY
                    except PathRefused:
                        entry_row.problem = "outside"
                    except OSError:
                        entry_row.problem = "broken"
            if pending.entry_row is None:
                tree.top = level
            else:
                pending.entry_row.below = level
            # Descend into directories that are neither ignored nor `.git`.
            waiting.extend(
                _PendingDirectory(
                    os.path.join(pending.path, entry_row.entry.name),
                    f"{pending.way}{entry_row.entry.name}/",
                    pending.depth + 1,
                    pending.rules,
                    entry_row,
                )
                for entry_row in level.shown
                if pending.depth < options.depth
                and entry_row.entry.kind is FileKind.DIRECTORY
                and not entry_row.ignored
                and entry_row.entry.name != REPOSITORY
            )
        tree.unread = len(waiting)
        return tree

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

    def _select_entries(self, pending: _PendingDirectory, entries: Sequence[DirEntry]) -> ListedDirectory:
        """Select and sort the entries to show. Blocks, since a directory may be huge."""
        listed: list[DirEntry] = []
        for entry in entries:
            is_folder, path = _is_folder(entry), pending.way + entry.name
            if entry.name.startswith(".") and not self._choice.show_hidden:
                self.hidden += 1
            elif any(
                regex is not None and (is_folder or not folders) and regex.match(path if by_path else entry.name)
                for regex, by_path, folders in self._patterns
            ):
                self.excluded += 1
            else:
                self.folders += is_folder
                self.ignored += pending.rules.ignores(entry.name, is_dir=is_folder)
                listed.append(entry)
        self.entries += len(listed)
        # Use a heap: sorting a huge list would hold the GIL.
        chosen = heapq.nsmallest(
            self._remaining, listed, key=lambda entry: (not _is_folder(entry), entry.name.casefold(), entry.name)
        )
        shown = [ListedEntry(entry, pending.rules.ignores(entry.name, is_dir=_is_folder(entry))) for entry in chosen]
        self._remaining -= len(shown)
        return ListedDirectory(shown, len(listed) - len(shown))


def _is_folder(entry: DirEntry) -> bool:
    return entry.kind is FileKind.DIRECTORY


async def _load_rules(fs: Fs, pending: _PendingDirectory, entries: Sequence[DirEntry]) -> IgnoreRules:
    """Load the ignore rules of a directory, if the file system supports handles."""
    names = {name for name in (REPOSITORY, RULE_FILE) if _has_name(entries, name)}
    name = os.path.basename(pending.path)
    if pending.entry_row is not None and not names:
        return pending.rules.below(name, pending.path, names)
    try:
        with await fs.folder(pending.path) as folder:
            if pending.entry_row is None:
                return await to_thread.run_sync(IgnoreRules.load, folder.path)
            return await to_thread.run_sync(pending.rules.below, name, folder.handle, names)
    except OSError:
        return pending.rules


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
    options = ListOptions(
        depth=depth if isinstance(depth, int) else 1, show_hidden=arguments.get("showHidden") is True, patterns=patterns
    )
    try:
        tree = await DirectoryTree.read(ctx.fs, path, options)
    except OSError as exc:
        return path_trouble(exc, path)
    return ToolResult.text(format_tree(name, tree), path=resolved, **tree.to_details())


def _patterns(arguments: JsonObject) -> tuple[str, ...]:
    given = arguments.get("ignore")
    listed = given if isinstance(given, list) else []
    return tuple(pattern for pattern in listed if isinstance(pattern, str))
