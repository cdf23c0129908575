"""`ls`: what is in a directory, and in those below it as far as asked for."""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.coercion import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.paths.globs import compile_glob
from indusagi.capabilities.files.paths.ignore import REPOSITORY, RULE_FILE, IgnoreRules
from indusagi.capabilities.files.text.display import format_path
from indusagi.capabilities.ports import FileKind, FileStat, PathRefused
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble
from indusagi.capabilities.tools.read.folder import report_missing_path
from indusagi.core.json import JsonObject
from indusagi.core.paths import is_within, parts_below
from indusagi.runtime.contract import JsonSchema, ToolResult

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.ports import DirEntry, Fs
    from indusagi.core.json import JsonValue


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
    line = format_path(entry.name)
    if entry.kind is FileKind.DIRECTORY:
        line += "/"
    elif entry.kind is FileKind.SYMLINK:
        line += f" -> {format_path(entry.target or '?')}"
        line += "/" if branch.leads_to_folder else ""
    elif entry.kind is FileKind.OTHER:
        line += " (special)"
    elif entry.size is not None:
        line += f"  {sized(entry.size)}"
    if branch.trouble:
        line += f" ({branch.trouble})"
    return f"{line} (ignored)" if branch.ignored else line


MOST_ENTRIES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a listing is to show."""

    depth: int = 1
    show_hidden: bool = False
    patterns: tuple[str, ...] = ()
    """What it leaves out; a pattern with a slash inside is for the path from the top."""


@dataclass(slots=True)
class Branch:
    """One entry that is shown."""

    entry: DirEntry
    ignored: bool
    below: Level | None = None
    trouble: str = ""
    """Why it cannot be listed, or what is the matter with a link."""
    leads_to_folder: bool = False


@dataclass(slots=True)
class Level:
    """A directory: what is shown of it, and how much is not."""

    shown: list[Branch] = field(default_factory=list[Branch])
    more: int = 0
    """Entries for which there was no room."""


@dataclass(slots=True)
class _Waiting:
    """A directory that is to be listed."""

    path: str
    way: str
    """The path from the top, with a slash at its end; empty for the top itself."""
    depth: int
    rules: IgnoreRules
    branch: Branch | None


class Tree:
    """A directory with what is below it."""

    def __init__(self, choice: Choice) -> None:
        self.top = Level()
        self.entries = 0
        self.folders = 0
        self.hidden = 0
        self.ignored = 0
        self.left_out = 0
        self.unlisted = 0
        """Directories for whose entries there was no room."""
        self._choice = choice
        self._patterns = [_compiled(pattern) for pattern in choice.patterns]
        self._room = MOST_ENTRIES

    @staticmethod
    async def grow(fs: Fs, path: str, choice: Choice) -> Tree:
        """List a directory and those below it, the upper levels first.

        Raises:
            OSError: The directory itself cannot be listed; those below say so in their place.
        """
        tree = Tree(choice)
        waiting = deque([_Waiting(path, "", 1, IgnoreRules(), None)])
        while waiting and tree._room:
            here = waiting.popleft()
            try:
                entries = await fs.readdir(here.path)
            except OSError as exc:
                if here.branch is None:
                    raise
                here.branch.trouble = exc.strerror or str(exc)
                continue
            here.rules = await _rules_of(fs, here, entries)
            level = await to_thread.run_sync(tree._take, here, entries)
            await _follow_links(fs, here.path, level)
            if here.branch is None:
                tree.top = level
            else:
                here.branch.below = level
            waiting.extend(tree._next(here, level))
        tree.unlisted = len(waiting)
        return tree

    @property
    def is_cut(self) -> bool:
        """Whether there is more than is shown."""
        return self.entries > MOST_ENTRIES or self.unlisted > 0

    def counts(self) -> dict[str, JsonValue]:
        """Give the facts for programs."""
        return {
            "kind": "directory",
            "entries": self.entries,
            "shown": MOST_ENTRIES - self._room,
            "directories": self.folders,
            "hidden": self.hidden,
            "ignored": self.ignored,
            "leftOut": self.left_out,
            "truncated": self.is_cut,
        }

    def _take(self, here: _Waiting, entries: Sequence[DirEntry]) -> Level:
        """Choose and sort what is shown of a directory; for a thread, there may be very many."""
        before = self.entries
        # One after the other, and none is kept that is not shown: to sort very many at once, or to
        # look through them for what is no longer used, would let no other thread run meanwhile.
        chosen = heapq.nsmallest(self._room, self._kept(here, entries), key=_order)
        shown = [Branch(entry, here.rules.ignores(entry.name, is_dir=_is_folder(entry))) for entry in chosen]
        self._room -= len(shown)
        return Level(shown, self.entries - before - len(shown))

    def _kept(self, here: _Waiting, entries: Sequence[DirEntry]) -> Iterator[DirEntry]:
        """Give what is neither hidden nor left out, and count all of it."""
        for entry in entries:
            is_folder = _is_folder(entry)
            if entry.name.startswith(".") and not self._choice.show_hidden:
                self.hidden += 1
            elif self._leaves_out(entry.name, here.way + entry.name, is_folder=is_folder):
                self.left_out += 1
            else:
                self.entries += 1
                self.folders += is_folder
                self.ignored += here.rules.ignores(entry.name, is_dir=is_folder)
                yield entry

    def _leaves_out(self, name: str, way: str, *, is_folder: bool) -> bool:
        return any(
            regex is not None and (is_folder or not folders) and regex.match(way if by_way else name)
            for regex, by_way, folders in self._patterns
        )

    def _next(self, here: _Waiting, level: Level) -> list[_Waiting]:
        """Name the directories that are listed next: neither ignored ones nor git's own."""
        if here.depth >= self._choice.depth:
            return []
        return [
            _Waiting(
                os.path.join(here.path, branch.entry.name),
                f"{here.way}{branch.entry.name}/",
                here.depth + 1,
                here.rules,
                branch,
            )
            for branch in level.shown
            if branch.entry.kind is FileKind.DIRECTORY and not branch.ignored and branch.entry.name != REPOSITORY
        ]


def _compiled(pattern: str) -> tuple[re.Pattern[str] | None, bool, bool]:
    """Give what a pattern matches, whether it is for whole paths, and for directories only."""
    text = pattern.removeprefix("./")
    folders = text.endswith("/")
    text = text.rstrip("/")
    return compile_glob(text.removeprefix("/")), "/" in text, folders


def _is_folder(entry: DirEntry) -> bool:
    return entry.kind is FileKind.DIRECTORY


def _order(entry: DirEntry) -> tuple[bool, str, str]:
    return not _is_folder(entry), entry.name.casefold(), entry.name


async def _rules_of(fs: Fs, here: _Waiting, entries: Sequence[DirEntry]) -> IgnoreRules:
    """Give git's rules for a directory; without files of this machine there are none."""
    names = {name for name in (REPOSITORY, RULE_FILE) if _holds(entries, name)}
    name = os.path.basename(here.path)
    if here.branch is not None and not names:
        return here.rules.below(name, here.path, names)
    try:
        with await fs.folder(here.path) as folder:
            if here.branch is None:
                return await to_thread.run_sync(IgnoreRules.load, folder.path)
            return await to_thread.run_sync(here.rules.below, name, folder.handle, names)
    except OSError:
        return here.rules


def _holds(entries: Sequence[DirEntry], name: str) -> bool:
    """Tell whether a name is among entries that are sorted, however many there are."""
    at = bisect_left(entries, name, key=attrgetter("name"))
    return at < len(entries) and entries[at].name == name


async def _follow_links(fs: Fs, path: str, level: Level) -> None:
    """Look where links lead."""
    for branch in level.shown:
        if branch.entry.kind is FileKind.SYMLINK:
            try:
                found = await fs.stat(os.path.join(path, branch.entry.name))
                branch.leads_to_folder = found.kind is FileKind.DIRECTORY
            except PathRefused:
                branch.trouble = "outside"
            except OSError:
                branch.trouble = "broken"


_DEEPEST = 3
_MOST_PATTERNS = 100
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
            "maximum": _DEEPEST,
            "description": f"Levels: 1 (default) to {_DEEPEST}.",
        },
        "ignore": {"type": "array", "items": {"type": "string"}, "description": "Names to leave out: *.log, dist/."},
    },
    "additionalProperties": False,
}
_DESCRIPTION = (
    "List a directory, with sizes. Dot files are counted, what git ignores is marked and not "
    f"entered. {MOST_ENTRIES:,} entries at most. Use find to search for names."
)


def ls_tool() -> DefinedTool:
    """Make the tool that lists directories."""
    return define_tool(
        ToolSpec(
            "ls",
            _DESCRIPTION,
            _PARAMETERS,
            _run,
            title="List directory",
            read_only=True,
            prepare=coerce_to(_PARAMETERS, _ALIASES),
            terse=True,
        )
    )


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    path = path_given(arguments)
    patterns = _patterns(arguments)
    if len(patterns) > _MOST_PATTERNS:
        return ToolResult.error(
            f"ignore holds {len(patterns):,} patterns, {_MOST_PATTERNS} at most are accepted: use fewer and wider ones",
            code="invalid_pattern",
        )
    try:
        found = await ctx.fs.stat(path)
        resolved = await ctx.fs.resolve(path)
    except OSError as exc:
        return await report_missing_path(exc, path, ctx)
    name = format_path(await _name(resolved, ctx))
    if found.kind is not FileKind.DIRECTORY:
        return _one(found, name, resolved)
    depth = arguments.get("depth")
    choice = Choice(
        depth=depth if isinstance(depth, int) else 1, show_hidden=arguments.get("showHidden") is True, patterns=patterns
    )
    try:
        tree = await Tree.grow(ctx.fs, path, choice)
    except OSError as exc:
        return path_trouble(exc, path)
    return ToolResult.text(render(name, tree), path=resolved, **tree.counts())


async def _name(resolved: str, ctx: ToolContext) -> str:
    """Give the name under which a model knows a path: relative where it lies in the cwd."""
    try:
        cwd = await ctx.fs.resolve(ctx.cwd)
    except OSError:
        return resolved
    return "/".join(parts_below(resolved, cwd)) or "." if is_within(resolved, cwd) else resolved


def _patterns(arguments: JsonObject) -> tuple[str, ...]:
    given = arguments.get("ignore")
    listed = given if isinstance(given, list) else []
    return tuple(pattern for pattern in listed if isinstance(pattern, str))


def _one(found: FileStat, name: str, resolved: str) -> ToolResult:
    line = f"{name}  {sized(found.size)}" if found.kind is FileKind.FILE else f"{name} (special)"
    return ToolResult.text(line, path=resolved, kind=str(found.kind), size=found.size)
