"""`find`: find files and directories by name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic

from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.ignore import IgnoreRules, compile_glob
from indusagi.capabilities.files.lines import format_path, format_path_below, join_path
from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.search.request import TooManyAlternatives, expand_braces, path_key
from indusagi.capabilities.search.walk import DirHandle, DirListing, Walk, describe_secrets, find_secrets_below, is_dir
from indusagi.capabilities.tool import DefinedTool, define_native_tool
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble, report_missing_path
from indusagi.core.app_dirs import sort_in_chunks
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.core.text import format_count
from indusagi.runtime.contract import JsonSchema, ToolResult

_KINDS = {
    "any": None,
    "all": None,
    "f": "file",
    "files": "file",
    "d": "dir",
    "directory": "dir",
    "directories": "dir",
    "folder": "dir",
    "l": "link",
    "symlink": "link",
}
"""Names used by other tools."""
_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Part of a name, or a glob: *.py, src/**/*.{c,h}."},
        "path": {"type": "string", "description": "Default: the workspace."},
        "type": {"type": "string", "enum": ["file", "dir", "link"]},
        "limit": {"type": "integer", "minimum": 1, "description": "Default 500, at most 10000."},
        "sort": {"type": "string", "enum": ["path", "mtime"], "description": "Default: path."},
        "noIgnore": {"type": "boolean", "description": "Find ignored files too."},
        "hidden": {"type": "boolean", "description": "false: no dot files."},
    },
    "required": ["query"],
    "additionalProperties": False,
}
_ALIASES = {**PATH_ALIASES, "pattern": "query", "glob": "query", "name": "query", "no_ignore": "noIgnore"}
_DESCRIPTION = (
    "Find files and directories by name. Without glob characters the query is part of a name, "
    "in any case. Honours .gitignore. Use grep to search in files."
)
_DEFAULT_LIMIT = 500
_MAX_LIMIT = 10_000
_LONGEST_QUERY = 4_096
_OTHER_SYNTAX = re.compile(r"[|^$\\(),]")
_SYNTAX = "part of a name, or a glob such as *.{ts,tsx}: no list and no regular expression"
_KIND_OF = {"file": FileKind.FILE, "dir": FileKind.DIRECTORY, "link": FileKind.SYMLINK}


def find_tool() -> DefinedTool:
    """Create the `find` tool."""
    prepare = coerce_to(_SCHEMA, _ALIASES)

    def translate_kind(arguments: JsonValue) -> JsonValue:
        prepared = prepare(arguments)
        kind = prepared.get("type") if isinstance(prepared, dict) else None
        if isinstance(prepared, dict) and isinstance(kind, str) and kind in _KINDS:
            own_kind = _KINDS[kind]
            prepared = {name: value for name, value in prepared.items() if name != "type"}
            return prepared if own_kind is None else {**prepared, "type": own_kind}
        return prepared

    return define_native_tool("find", "Find files", _DESCRIPTION, _SCHEMA, _run, translate_kind, read_only=True)


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    text = str(arguments["query"]).removeprefix("./")
    if not text.strip("/") or len(text) > _LONGEST_QUERY or "\0" in text:
        message = f"A query has 1 to {_LONGEST_QUERY:,} characters and no NUL; * finds everything."
        return ToolResult.error(message, code="invalid_pattern")
    folder, rest = split_query(text)
    path = join_path(path_given(arguments), folder) if folder else path_given(arguments)
    query = NameQuery(
        rest.rstrip("/"),
        by_path="/" in text.rstrip("/"),
        kind=FileKind.DIRECTORY if rest.endswith("/") else _KIND_OF.get(str(arguments.get("type"))),
        no_ignore=arguments.get("noIgnore") is True,
        hidden=arguments.get("hidden") is not False,
        by_time=arguments.get("sort") == "mtime",
    )
    try:
        root = await ctx.fs.resolve(".")
        with await ctx.fs.folder(path) as directory:
            query = replace(query, secrets=await find_secrets_below(ctx.fs, directory.path, root))
            handle = DirHandle(directory.handle)
            try:
                names = await to_thread.run_sync(find_names, handle, directory.path, query, abandon_on_cancel=True)
            finally:
                handle.abandon()  # if we're cancelled, the thread ends soon
            base = format_path_below(directory.path, root)
        if query.by_path and not query.is_glob:
            # The query may be the full path of an entry the walk doesn't reach.
            with suppress(OSError):
                status = await ctx.fs.stat(os.path.join(path, query.text), follow=False)
                shown = query.text + ("/" if status.kind is FileKind.DIRECTORY else "")
                if query.kind in {None, status.kind} and shown not in names.paths:
                    names.paths.insert(0, shown)
    except FileNotFoundError as exc:
        return await report_missing_path(exc, path, ctx)
    except OSError as exc:
        return path_trouble(exc, path)
    except TooManyAlternatives as exc:
        return ToolResult.error(f"The query {exc}.", code="invalid_pattern")
    limit = arguments.get("limit")
    most = min(limit, _MAX_LIMIT) if isinstance(limit, int) else _DEFAULT_LIMIT
    return await to_thread.run_sync(_format_result, names, query, base, most)


def _format_result(names: NameResult, query: NameQuery, base: str, limit: int) -> ToolResult:
    page = names.paths[:limit]
    total = len(names.paths)
    head = f"{total:,} found" if total else f"Nothing found among {names.examined:,} names"
    if len(page) < total:
        head += f", the first {len(page):,} are shown: narrow the query, or raise limit"
    lines = [join_path(base, format_path(path)) for path in page]
    notices = [*describe_secrets(query.secrets, base), *_build_notices(names, query)]
    details: dict[str, JsonValue] = {
        "total": total,
        "shown": len(page),
        "ignored": names.hidden_by_rules,
        "ignoredDirectories": names.ignored_dirs,
        "partial": names.timed_out or names.is_full or bool(names.unreadable),
    }
    if query.secrets:
        details["protected"] = len(query.secrets)
    return ToolResult.text("\n".join([head, *notices, *lines]), **details)


def _build_notices(names: NameResult, query: NameQuery) -> Iterator[str]:
    if names.timed_out:
        yield f"[Stopped after {TIME_LIMIT_S:.0f} s, with what was found until then: give a path.]"
    if names.is_full:
        yield "[Stopped at so many names: narrow the query, or give a path.]"
    if names.unreadable:
        unreadable = format_count(len(names.unreadable), "directory", "directories")
        yield f"[{unreadable} could not be looked into.]"
    hidden = names.hidden_by_rules
    if hidden:
        more = format_count(hidden, "more is", "more are")
        yield f"[{more} hidden by ignore rules: noIgnore: true shows what they hide.]"
    if names.ignored_dirs and not names.paths:
        dirs = format_count(names.ignored_dirs, "ignored directory was", "ignored directories were")
        yield f"[{dirs} not looked into: noIgnore: true does.]"
    if not names.paths and _OTHER_SYNTAX.search(query.text):
        yield f"[A query is {_SYNTAX}.]"
    if not names.paths and query.is_glob and query.by_path and not query.text.startswith("**/"):
        yield f"[A glob with a slash is matched from the top: **/{query.text} matches anywhere.]"


# -- the walk ---------------------------------------------------------------------------------------


TIME_LIMIT_S = 20.0
COLLECTED = 100_000
_GLOB = re.compile(r"[*?\[{]")


@record
class NameQuery:
    """A query for names below a directory."""

    text: str
    """A case-insensitive substring of a name or path, or a glob that matches all of it."""
    by_path: bool = False
    """Match against the path instead of the name."""
    kind: FileKind | None = None
    no_ignore: bool = False
    hidden: bool = True
    by_time: bool = False
    secrets: Sequence[str] = ()
    """Paths of directories not to enter."""

    @property
    def is_glob(self) -> bool:
        """Whether `text` is a glob."""
        return _GLOB.search(self.text) is not None

    def build_matcher(self) -> Callable[[DirListing], list[os.DirEntry[str]]]:
        """Return a function that selects the matching entries of a directory.

        Raises `TooManyAlternatives` if the braces expand to too many patterns.
        """
        by_path = self.by_path
        if not self.is_glob:
            part = self.text.lower()

            def select_containing(listing: DirListing) -> list[os.DirEntry[str]]:
                above = listing.above if by_path else ""
                return [entry for entry in listing.entries if part in (above + entry.name).lower()]

            return select_containing
        regexes = [regex for regex in map(compile_glob, expand_braces(self.text)) if regex]

        def select_matching(listing: DirListing) -> list[os.DirEntry[str]]:
            if not by_path and len(regexes) == 1:
                match = regexes[0].match
                return [entry for entry in listing.entries if match(entry.name)]
            above = listing.above if by_path else ""
            return [entry for entry in listing.entries if any(regex.match(above + entry.name) for regex in regexes)]

        return select_matching


def split_query(text: str) -> tuple[str, str]:
    """Split the leading literal directories off a glob, so the walk can start there."""
    if not _GLOB.search(text):
        return "", text
    *above, last = text.split("/")
    plain = next((index for index, name in enumerate(above) if _GLOB.search(name)), len(above))
    folder = "/".join(above[:plain])
    if plain and not folder:
        folder = "/"
    return folder, "/".join([*above[plain:], last])


@dataclass(slots=True)
class NameResult:
    """The matching names."""

    paths: list[str] = field(default_factory=list[str])
    """Sorted; directories have a trailing slash."""
    hidden_by_rules: int = 0
    """Number of matching but ignored names."""
    ignored_dirs: int = 0
    """Number of ignored directories, which we didn't enter."""
    unreadable: list[str] = field(default_factory=list[str])
    examined: int = 0
    timed_out: bool = False
    is_full: bool = False


def find_names(handle: DirHandle, path: str, query: NameQuery) -> NameResult:
    """Walk a directory and collect the matching names; `path` leads to the ignore rules above it. Blocks."""
    result, times = NameResult(), dict[str, int]()
    with handle.use() as descriptor:
        if descriptor is None:
            return result
        rules = None if query.no_ignore else IgnoreRules.load(path)
        walk = Walk(descriptor, rules, hidden=query.hidden, secrets=frozenset(query.secrets))
        select, deadline = query.build_matcher(), monotonic() + TIME_LIMIT_S
        for listing in walk.listings():
            result.examined += len(listing.entries)
            for entry in select(listing):
                found = listing.above + entry.name
                if not _has_kind(entry, query.kind):
                    continue
                # An ignored entry only counts if the query is its exact name.
                if listing.ignores(entry) and query.text != (found if query.by_path else entry.name):
                    result.hidden_by_rules += 1
                else:
                    times[f"{found}/" if is_dir(entry) else found] = _read_age(entry) if query.by_time else 0
            if handle.abandoned.is_set() or monotonic() > deadline:
                result.timed_out = True
                break
            if len(times) >= COLLECTED:
                result.is_full = True
                break
    result.unreadable, result.ignored_dirs = walk.unreadable, walk.ignored
    result.paths = sort_in_chunks(list(times), lambda path: (times[path], path_key(path)))
    return result


def _has_kind(entry: os.DirEntry[str], kind: FileKind | None) -> bool:
    try:
        if kind is FileKind.DIRECTORY:
            return entry.is_dir(follow_symlinks=False)
        if kind is FileKind.SYMLINK:
            return entry.is_symlink()
        return kind is None or entry.is_file(follow_symlinks=False)
    except OSError:  # removed in the meantime, on a system without d_type
        return False


def _read_age(entry: os.DirEntry[str]) -> int:
    """Return a key that sorts the newest first."""
    try:
        return -entry.stat(follow_symlinks=False).st_mtime_ns
    except OSError:  # removed in the meantime
        return 0
