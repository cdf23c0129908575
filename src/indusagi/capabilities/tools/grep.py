"""`grep`: search file contents for a pattern."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace

from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to, find_similar_name
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.paths.ignore import IgnoreRules, compile_glob
from indusagi.capabilities.files.text.lines import format_path, format_path_below
from indusagi.capabilities.ports import FileKind, Fs
from indusagi.capabilities.search.output import MatchReader
from indusagi.capabilities.search.report import GrepRequest, build_report, describe_failure
from indusagi.capabilities.search.request import Mode, Search
from indusagi.capabilities.search.search import Ripgrep, RipgrepMissing, SearchResult, sort_by_mtime
from indusagi.capabilities.search.walk import SearchTarget, Walk, find_secrets_below, open_target
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble, report_missing_path
from indusagi.core.json import JsonObject, JsonValue
from indusagi.runtime.contract import JsonSchema, ToolResult

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
"""Boolean arguments about case, with the value that means case-insensitive."""
_ALWAYS = ("-n", "lineNumbers", "line_numbers")
"""Arguments for behavior that's always on."""
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


def rename_arguments(arguments: JsonValue) -> JsonValue:
    """Translate the names and values of other search tools."""
    if not isinstance(arguments, dict):
        return arguments
    renamed = {name: value for name, value in arguments.items() if name not in _ALWAYS}
    mode, flags = renamed.get("mode"), renamed.get("flags")
    if isinstance(mode, str):
        renamed["mode"] = _MODES.get(mode, mode)
    flags = flags.replace("-", "") if isinstance(flags, str) else flags
    case = {name: renamed.pop(name) for name in _ANY_CASE if isinstance(renamed.get(name), bool)}
    if any(value is _ANY_CASE[name] for name, value in case.items()) and isinstance(flags or "", str):
        flags = f"{flags or ''}i"
    return renamed if flags is None else {**renamed, "flags": flags}


_WHOLE_DIRECTORY = re.compile(r"/?(?P<folder>(?:[^/*?\[\]{}\\!]+/)*)\*\*(?:/\*+)?|\*")
"""A glob for everything, or for everything in one directory."""


_DEFAULT_MATCHES = 200
_MAX_MATCHES = 5_000
_MAX_CONTEXT = 100
_MAX_OFFSET = 1_000_000
_LONGEST_PATTERN = 64 * 1024
_MAX_EXAMINED = 5_000
"""How many entries to examine for ignored names after an empty search."""
_IGNORED_SHOWN = 3
_FLAGS = frozenset("ismxguy")
_SEVERAL = re.compile(r"[*?\[{, ]")
"""Characters of a glob or list, passed where a path belongs."""
_HERE = re.compile(r"^(!?)\./")
_NEWLINE = re.compile(r"(?<!\\)(?:\\\\)*\\n|\n")


def grep_tool() -> DefinedTool:
    """Create the `grep` tool."""
    prepare = coerce_to(_SCHEMA, ALIASES)
    spec = ToolSpec(
        "grep",
        _DESCRIPTION,
        _SCHEMA,
        _run,
        title="Search in files",
        read_only=True,
        prepare=lambda arguments: rename_arguments(prepare(arguments)),
        terse=True,
    )
    return define_tool(spec)


async def replace_directory_glob(search: Search, path: str, fs: Fs) -> tuple[Search, str]:
    """Turn a glob for a whole directory, such as `packages/**`, into a path.

    ripgrep includes files that match a glob even if they're ignored, so such a glob would include every `node_modules`
    below.
    """
    match = _WHOLE_DIRECTORY.fullmatch(search.glob or "")
    if match is None:
        return search, path
    if match["folder"]:
        folder = os.path.join(path, match["folder"])
        try:
            if (await fs.stat(folder)).kind is not FileKind.DIRECTORY:
                return search, path
        except OSError:
            return search, path
        path = folder
    return replace(search, glob=None), path


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    search = _parse_arguments(arguments)
    if isinstance(search, ToolResult):
        return search
    search, path = await replace_directory_glob(search, path_given(arguments), ctx.fs)
    try:
        root = await ctx.fs.resolve(".")
        async with open_target(ctx.fs, path) as target:
            if not target.is_file:
                search = replace(search, secrets=await find_secrets_below(ctx.fs, target.shown, root))
            try:
                return await _search_target(arguments, search, target, root)
            except RipgrepMissing as exc:
                return ToolResult.error(f"grep cannot search: {exc}", code="spawn")
            except OSError as exc:
                return ToolResult.error(f"The search cannot be started: {exc}", code="spawn")
    except FileNotFoundError as exc:
        if not _SEVERAL.search(path):
            return await report_missing_path(exc, path, ctx)
        message = (
            f"{format_path(path)} does not exist: path is one directory or file; "
            "glob chooses among the files in it, as *.py or {src,tests}/** do"
        )
        return ToolResult.error(message, code="not_found")
    except OSError as exc:
        return path_trouble(exc, path)


def _parse_arguments(arguments: JsonObject) -> Search | ToolResult:
    """Build a search from the arguments, or describe the first invalid one."""
    pattern, flags = _text(arguments, "pattern") or "", set(_text(arguments, "flags") or "")
    unknown = sorted(flags - _FLAGS)
    if unknown:
        return ToolResult.error(f"There is no flag {unknown[0]!r}: use i, s, m or x.", code="invalid_pattern")
    for name in ("pattern", "glob", "type"):
        problem = _find_problem(_text(arguments, name) or "")
        if problem:
            return ToolResult.error(f"The {name} {problem}.", code="invalid_pattern")
    literal = arguments.get("literal") is True
    spans_lines = "\n" in pattern if literal else bool(_NEWLINE.search(pattern))
    dot_all = arguments.get("multiline") is True or "s" in flags
    around = _number(arguments, "context", 0, _MAX_CONTEXT)
    glob = _text(arguments, "glob")
    return Search(
        pattern=pattern,
        mode=Mode(_text(arguments, "mode") or Mode.CONTENT),
        literal=literal,
        ignore_case="i" in flags,
        extended="x" in flags,
        multiline=dot_all or spans_lines,
        dot_all=dot_all,
        # Shells write `./` before a name; ripgrep's globs don't have such a prefix.
        glob=None if glob is None else _HERE.sub(r"\1/", glob),
        type=_text(arguments, "type"),
        before=_number(arguments, "before", around, _MAX_CONTEXT),
        after=_number(arguments, "after", around, _MAX_CONTEXT),
        no_ignore=arguments.get("noIgnore") is True,
    )


def _text(arguments: JsonObject, name: str) -> str | None:
    value = arguments.get(name)
    return value if isinstance(value, str) and value else None


def _number(arguments: JsonObject, name: str, default: int, most: int) -> int:
    value = arguments.get(name)
    return min(value, most) if isinstance(value, int) else default


def _find_problem(text: str) -> str | None:
    """Return the reason a text can't be a program argument, or None if it can."""
    if "\0" in text:
        return "holds a NUL character, which no text file does"
    if len(text) > _LONGEST_PATTERN:
        return f"is longer than {_LONGEST_PATTERN:,} characters"
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is not text"
    return None


async def _search_target(arguments: JsonObject, search: Search, target: SearchTarget, root: str) -> ToolResult:
    ripgrep = await Ripgrep.find(root)
    accepts: Callable[[str], bool] | None = None
    if search.type is not None:
        types = await ripgrep.list_types(target.cwd)
        if search.type not in types:
            meant = {kind for kind, globs in types.items() if f"*.{search.type}" in globs}
            meant |= {find_similar_name(search.type, types) or ""} - {""}
            hint = f" Did you mean {', '.join(sorted(meant))}?" if meant else ""
            ending = search.type.rpartition(".")[2]
            message = f"There is no type {search.type!r}.{hint} A glob such as *.{ending} does without types."
            return ToolResult.error(message, code="invalid_pattern")
        # ripgrep includes files that match a glob regardless of type.
        if search.glob is not None and not target.is_file:
            regexes = [regex for regex in map(compile_glob, types[search.type]) if regex is not None]

            def has_type(path: str) -> bool:
                return any(regex.match(os.path.basename(path)) for regex in regexes)

            accepts = has_type
    shown = format_path_below(target.shown, root)
    request = GrepRequest(
        search,
        shown,
        _number(arguments, "maxMatches", _DEFAULT_MATCHES, _MAX_MATCHES),
        _number(arguments, "offset", 0, _MAX_OFFSET),
        shown if target.is_file else None,
    )
    result = await ripgrep.search(search, target, limit=request.limit, offset=request.offset, accepts=accepts)
    # Format outside the event loop: there may be thousands of lines.
    return describe_failure(result, search) or await to_thread.run_sync(_format_result, request, target, result)


def _format_result(request: GrepRequest, target: SearchTarget, result: SearchResult) -> ToolResult:
    search, reader = request.search, result.reader
    files: list[str] = []
    ignored: list[str] = []
    is_empty = not (reader.matches if isinstance(reader, MatchReader) else reader.counts)
    if isinstance(reader, MatchReader) and reader.matches and search.mode is Mode.FILES:
        files = [file.path for file in reader.sorted_files()]
        if not target.is_file:
            files = sort_by_mtime(target.handle, files)
    elif is_empty and not target.is_file and not search.no_ignore:
        for examined, entry in enumerate(Walk(target.handle, IgnoreRules.load(target.shown))):
            if entry.is_ignored():
                ignored.append(f"{entry.path}/" if entry.is_dir else entry.path)
            if len(ignored) >= _IGNORED_SHOWN or examined >= _MAX_EXAMINED:
                break
        ignored.sort()
    return build_report(request, result, files, ignored)
