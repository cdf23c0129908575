"""grep: lines of files that match a pattern."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.arguments import find_similar_name
from indusagi.capabilities.coercion import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.paths.globs import compile_glob
from indusagi.capabilities.files.paths.ignore import IgnoreRules
from indusagi.capabilities.files.text.display import format_path, format_path_below
from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.search.records import Matches
from indusagi.capabilities.search.report import Asked, failure, report
from indusagi.capabilities.search.request import Mode, Search
from indusagi.capabilities.search.secrets import secrets_below
from indusagi.capabilities.search.seek import Engine, Found, Seeker, stamped
from indusagi.capabilities.search.target import Target, opened_target
from indusagi.capabilities.search.walk import Walk
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble
from indusagi.capabilities.tools.read.folder import report_missing_path
from indusagi.core.json import JsonObject
from indusagi.runtime.contract import JsonSchema, ToolResult

if TYPE_CHECKING:
    from indusagi.capabilities.ports import Fs
    from indusagi.core.json import JsonValue


ALIASES = {
    **PATH_ALIASES,
    "query": "pattern",
    "regex": "pattern",
    "output_mode": "mode",
    "include": "glob",
    "max_matches": "maxMatches",
    "head_limit": "maxMatches",
    "no_ignore": "noIgnore",
    "fixed_strings": "literal",
    "-A": "after",
    "-B": "before",
    "-C": "context",
}
_MODES = {"files_with_matches": "files", "filesWithMatches": "files"}
_ANY_CASE = {
    **dict.fromkeys(("-i", "ignoreCase", "ignore_case"), True),
    **dict.fromkeys(("caseInsensitive", "case_insensitive"), True),
    **dict.fromkeys(("caseSensitive", "case_sensitive"), False),
}
"""Truth values about upper and lower case, and which one means that it does not count."""
_ALWAYS = ("-n", "lineNumbers", "line_numbers")
"""What is done whatever is said."""
_ALL_OF = re.compile(r"/?(?P<folder>(?:[^/*?\[\]{}\\!]+/)*)\*\*(?:/\*+)?|\*")
"""A glob for everything, or for all that lies in one directory."""


def in_our_words(arguments: JsonValue) -> JsonValue:
    """Say in the tool's own words what was said in those of others."""
    if not isinstance(arguments, dict):
        return arguments
    given = {name: value for name, value in arguments.items() if name not in _ALWAYS}
    mode, flags = given.get("mode"), given.get("flags")
    if isinstance(mode, str):
        given["mode"] = _MODES.get(mode, mode)
    if isinstance(flags, str):
        given["flags"] = flags.replace("-", "")
    return _with_case(given)


def _with_case(given: JsonObject) -> JsonObject:
    said = [name for name in _ANY_CASE if isinstance(given.get(name), bool)]
    rest = {name: value for name, value in given.items() if name not in said}
    flags = rest.get("flags", "")
    if isinstance(flags, str) and any(given[name] is _ANY_CASE[name] for name in said):
        rest["flags"] = f"{flags}i"
    return rest


async def narrowed(search: Search, path: str, fs: Fs) -> tuple[Search, str]:
    """Take a glob for all that lies in a directory, as `packages/**` is, for a path.

    To ripgrep what a glob names is meant even if it is ignored, so that such a one would bring in
    every `node_modules` below.
    """
    found = _ALL_OF.fullmatch(search.glob or "")
    if found is None:
        return search, path
    if found["folder"]:
        path_of_all = os.path.join(path, found["folder"])
        try:
            if (await fs.stat(path_of_all)).kind is not FileKind.DIRECTORY:
                return search, path
        except OSError:
            return search, path
        path = path_of_all
    return replace(search, glob=None), path


_DEFAULT_MATCHES = 200
_MOST_MATCHES = 5_000
_MOST_CONTEXT = 100
_MOST_OFFSET = 1_000_000
_LONGEST_PATTERN = 64 * 1024
_LOOKED_AT = 5_000
"""Names that are looked at to see whether ignore rules have kept something out of a search."""
_IGNORED_SHOWN = 3
_FLAGS = frozenset("ismxguy")
_SEVERAL = re.compile(r"[*?\[{, ]")
"""What is in a path that is no path, but a glob or a list."""
_HERE = re.compile(r"^(!?)\./")
_NEWLINE = re.compile(r"(?<!\\)(?:\\\\)*\\n|\n")

_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "description": "Regular expression."},
        "path": {"type": "string", "description": "Directory or file. Default: the workspace."},
        "glob": {"type": "string", "description": "Only files like *.ts, src/**, !*.min.js."},
        "type": {"type": "string", "description": "Only py, js, rust, md, ..."},
        "mode": {
            "type": "string",
            "enum": ["content", "files", "count"],
            "description": "Lines (default), names of files, or counts.",
        },
        "flags": {"type": "string", "description": "i: any case; s: dot matches newlines; x: ignore spaces."},
        "before": {"type": "integer", "minimum": 0, "description": "Lines before a match."},
        "after": {"type": "integer", "minimum": 0},
        "context": {"type": "integer", "minimum": 0, "description": "Lines before and after."},
        "literal": {"type": "boolean", "description": "Pattern is plain text."},
        "multiline": {"type": "boolean", "description": "Match across lines."},
        "noIgnore": {"type": "boolean", "description": "Search ignored files too."},
        "maxMatches": {"type": "integer", "minimum": 1, "description": "Default 200, at most 5000."},
        "offset": {"type": "integer", "minimum": 0, "description": "Matches to skip."},
    },
    "required": ["pattern"],
    "additionalProperties": False,
}
_DESCRIPTION = (
    "Search file contents with ripgrep: case-sensitive, honours .gitignore, skips binary files. "
    "Answers path:line: text. Prefer this to grep in a shell."
)


def grep_tool(engine: Engine | None = None) -> DefinedTool:
    """Make the tool; ripgrep searches where there is one, unless another engine is named."""

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        search = _search(arguments)
        if isinstance(search, ToolResult):
            return search
        path = path_given(arguments)
        search, path = await narrowed(search, path, ctx.fs)
        try:
            root = await ctx.fs.resolve(".")
            async with opened_target(ctx.fs, path) as target:
                if not target.is_file:
                    secrets = await secrets_below(ctx.fs, target.shown, root)
                    search = replace(search, secrets=secrets)
                seeker = await Seeker.find(root, engine)
                try:
                    return await _answer(arguments, search, target, seeker, root)
                except OSError as exc:
                    return ToolResult.error(f"The search cannot be started: {exc}", code="spawn")
        except FileNotFoundError as exc:
            if _SEVERAL.search(path):
                return _one_path(path)
            return await report_missing_path(exc, path, ctx)
        except OSError as exc:
            return path_trouble(exc, path)

    prepare = coerce_to(_SCHEMA, ALIASES)
    spec = ToolSpec(
        "grep",
        _DESCRIPTION,
        _SCHEMA,
        run,
        title="Search in files",
        read_only=True,
        prepare=lambda arguments: in_our_words(prepare(arguments)),
        terse=True,
    )
    return define_tool(spec)


def _one_path(path: str) -> ToolResult:
    message = (
        f"{format_path(path)} does not exist: path is one directory or file; "
        "glob chooses among the files in it, as *.py or {src,tests}/** do"
    )
    return ToolResult.error(message, code="not_found")


def _search(arguments: JsonObject) -> Search | ToolResult:
    """Read what is searched for, or say what is wrong with it."""
    pattern, flags = _text(arguments, "pattern") or "", set(_text(arguments, "flags") or "")
    unknown = sorted(flags - _FLAGS)
    if unknown:
        message = f"There is no flag {unknown[0]!r}: use i, s, m or x."
        return ToolResult.error(message, code="invalid_pattern")
    for what in ("pattern", "glob", "type"):
        trouble = _unusable(_text(arguments, what) or "")
        if trouble:
            return ToolResult.error(f"The {what} {trouble}.", code="invalid_pattern")
    literal = arguments.get("literal") is True
    crosses = "\n" in pattern if literal else bool(_NEWLINE.search(pattern))
    dot_all = arguments.get("multiline") is True or "s" in flags
    around = _number(arguments, "context", 0, _MOST_CONTEXT)
    return Search(
        pattern=pattern,
        mode=Mode(_text(arguments, "mode") or Mode.CONTENT),
        literal=literal,
        ignore_case="i" in flags,
        extended="x" in flags,
        multiline=dot_all or crosses,
        dot_all=dot_all,
        glob=_glob(arguments),
        type=_text(arguments, "type"),
        before=_number(arguments, "before", around, _MOST_CONTEXT),
        after=_number(arguments, "after", around, _MOST_CONTEXT),
        no_ignore=arguments.get("noIgnore") is True,
    )


def _text(arguments: JsonObject, name: str) -> str | None:
    value = arguments.get(name)
    return value if isinstance(value, str) and value else None


def _glob(arguments: JsonObject) -> str | None:
    """Read the glob, without the `./` that shells have before a name."""
    glob = _text(arguments, "glob")
    return None if glob is None else _HERE.sub(r"\1/", glob)


def _number(arguments: JsonObject, name: str, default: int, most: int) -> int:
    value = arguments.get(name)
    return min(value, most) if isinstance(value, int) else default


def _unusable(text: str) -> str | None:
    """Say why a program cannot be given a text; None if it can."""
    if "\0" in text:
        return "holds a NUL character, which no text file does"
    if len(text) > _LONGEST_PATTERN:
        return f"is longer than {_LONGEST_PATTERN:,} characters"
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return "holds half a surrogate pair, which is no text"
    return None


async def _answer(arguments: JsonObject, search: Search, target: Target, seeker: Seeker, root: str) -> ToolResult:
    accepts = None
    if search.type is not None:
        types = await seeker.types(target.cwd)
        if search.type not in types:
            return _unknown_type(search.type, types)
        # To ripgrep, a file that a glob names is of the right type whatever it is.
        if search.glob is not None and not target.is_file:
            accepts = _named_like(types[search.type])
    shown = format_path_below(target.shown, root)
    asked = Asked(
        search,
        shown,
        _number(arguments, "maxMatches", _DEFAULT_MATCHES, _MOST_MATCHES),
        _number(arguments, "offset", 0, _MOST_OFFSET),
        shown if target.is_file else None,
    )
    found = await seeker.seek(search, target, limit=asked.limit, offset=asked.offset, accepts=accepts)
    failed = failure(found, search)
    if failed is not None:
        return failed
    return await to_thread.run_sync(_reported, asked, target, found)


def _reported(asked: Asked, target: Target, found: Found) -> ToolResult:
    """Put the answer together: thousands of lines are not for the event loop."""
    files, ignored = _facts(asked.search, target, found)
    return report(asked, found, files, ignored)


def _unknown_type(name: str, types: dict[str, list[str]]) -> ToolResult:
    meant = {kind for kind, names in types.items() if f"*.{name}" in names}
    meant |= {find_similar_name(name, types) or ""} - {""}
    hint = f" Did you mean {', '.join(sorted(meant))}?" if meant else ""
    ending = name.rpartition(".")[2]
    message = f"There is no type {name!r}.{hint} A glob such as *.{ending} does without types."
    return ToolResult.error(message, code="invalid_pattern")


def _named_like(patterns: list[str]) -> Callable[[str], bool]:
    regexes = [regex for regex in map(compile_glob, patterns) if regex is not None]

    def accepts(path: str) -> bool:
        name = os.path.basename(path)
        return any(regex.match(name) for regex in regexes)

    return accepts


def _facts(search: Search, target: Target, found: Found) -> tuple[list[str], list[str]]:
    """Look up what only the files themselves can tell."""
    reader = found.reader
    if isinstance(reader, Matches) and reader.matches and search.mode is Mode.FILES:
        paths = [file.path for file in reader.sorted_files()]
        return (paths if target.is_file else stamped(target.handle, paths)), []
    is_empty = not (reader.matches if isinstance(reader, Matches) else reader.counts)
    if is_empty and not target.is_file and not search.no_ignore:
        return [], _ignored(target)
    return [], []


def _ignored(target: Target) -> list[str]:
    """Name some of what ignore rules exclude."""
    names: list[str] = []
    walk = Walk(target.handle, IgnoreRules.load(target.shown))
    for looked_at, met in enumerate(walk):
        if met.is_ignored():
            names.append(f"{met.path}/" if met.is_dir else met.path)
        if len(names) >= _IGNORED_SHOWN or looked_at >= _LOOKED_AT:
            break
    return sorted(names)
