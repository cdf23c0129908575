"""`grep`: search file contents for a pattern."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to, find_similar_name
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.ignore import IgnoreRules, compile_glob
from indusagi.capabilities.files.lines import find_invisible, format_path, format_path_below, join_path
from indusagi.capabilities.ports import FileKind, Fs
from indusagi.capabilities.search.request import MAX_FILE_BYTES, Mode, Search, accept_any_line_ending, path_key
from indusagi.capabilities.search.search import (
    COLLECTED_FILES,
    TIME_LIMIT_S,
    CountReader,
    MatchReader,
    Ripgrep,
    RipgrepMissing,
    SearchResult,
    select_page,
    sort_by_mtime,
)
from indusagi.capabilities.search.walk import (
    SearchTarget,
    Walk,
    describe_secrets,
    find_secrets_below,
    is_dir,
    open_target,
)
from indusagi.capabilities.tool import DefinedTool, define_native_tool
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble, report_missing_path
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text, format_count
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
    return define_native_tool(
        "grep",
        "Search in files",
        _DESCRIPTION,
        _SCHEMA,
        _run,
        lambda arguments: rename_arguments(prepare(arguments)),
        read_only=True,
    )


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
    ignored: Sequence[str] = ()
    is_empty = not (reader.matches if isinstance(reader, MatchReader) else reader.counts)
    if isinstance(reader, MatchReader) and reader.matches and search.mode is Mode.FILES:
        files = [file.path for file in reader.sorted_files()]
        if not target.is_file:
            files = sort_by_mtime(target.handle, files)
    elif is_empty and not target.is_file and not search.no_ignore:
        ignored = _find_ignored(target)
    return build_report(request, result, files, ignored)


def _find_ignored(target: SearchTarget) -> list[str]:
    """Find some ignored names in a directory."""
    ignored: list[str] = []
    examined = 0
    for listing in Walk(target.handle, IgnoreRules.load(target.shown)).listings():
        ignored += [
            f"{listing.above}{entry.name}/" if is_dir(entry) else f"{listing.above}{entry.name}"
            for entry in listing.entries
            if listing.ignores(entry)
        ]
        examined += len(listing.entries)
        if len(ignored) >= _IGNORED_SHOWN or examined >= _MAX_EXAMINED:
            break
    return sorted(ignored)[:_IGNORED_SHOWN]


# -- the answer -------------------------------------------------------------------------------------


_Answer: TypeAlias = "tuple[str, list[str], dict[str, JsonValue]]"
"""Head line, body lines, details."""
_MAX_NAMED = 5
"""How many files a notice lists; it counts the rest."""
_COMPLAINT_CHARS = 500
_MIB = 1024 * 1024
_BAD_PATTERN = re.compile(r"regex parse error|could not be compiled|error compiling|not allowed in")


@record
class GrepRequest:
    """The parts of a request that affect the answer."""

    search: Search
    base: str
    """The directory we searched, relative to the user's directory."""
    limit: int
    offset: int
    file: str | None = None
    """The name of the file, for a single-file search."""

    def name(self, path: str) -> str:
        """Return the path of a file, relative to the user's directory."""
        return self.file or join_path(self.base, format_path(path))


def describe_failure(result: SearchResult, search: Search) -> ToolResult | None:
    """Describe a failed search; None if there's a result, even a partial one."""
    run = result.run
    reader = result.reader
    is_empty = not (reader.counts if isinstance(reader, CountReader) else reader.files)
    if run.exit_code in {0, 1, None} or not is_empty:
        return None
    message = run.stderr.strip()
    message = message.removeprefix("rg: ").replace(accept_any_line_ending(search) or search.pattern, search.pattern)
    shown = cut_text(clean_text(message)[0], 4 * _COMPLAINT_CHARS)
    if _BAD_PATTERN.search(message):
        hint = "Escape what is meant literally, or pass literal: true."
        return ToolResult.error(f"{shown}\n{hint}", code="invalid_pattern")
    code = "invalid_pattern" if "glob" in message else "failed"
    return ToolResult.error(f"The search failed: {shown or 'no reason was given'}", code=code)


def build_report(
    request: GrepRequest, result: SearchResult, files: Sequence[str], ignored: Sequence[str]
) -> ToolResult:
    """Build the answer from the sorted files of a search for files, or some ignored names if there were no matches."""
    if request.search.mode is Mode.CONTENT and isinstance(result.reader, MatchReader):
        head, body, details = _format_content(request, result, result.reader)
    else:
        head, body, details = _format_files(request, result, files)
    if not body and not details["total"]:
        head = _describe_empty(request, result, ignored)
    notices = list(_build_notices(request, result, body))
    details = {"mode": str(request.search.mode), "offset": request.offset, **details}
    details["partial"] = result.run.timed_out or result.run.exit_code not in {0, 1, None}
    if request.search.secrets:
        details["protected"] = len(request.search.secrets)
    if result.reader.searched is not None:
        details["searched"] = result.reader.searched
    return ToolResult.text("\n".join([head, *notices, *body]), **details)


def _format_content(request: GrepRequest, result: SearchResult, reader: MatchReader) -> _Answer:
    files = reader.sorted_files()
    page = select_page(files, request.offset - result.skipped, request.limit, request.search)
    shown = sum(file.matches for file in page)
    # There may be more matches than we counted if the search ended early.
    is_known = not reader.is_full and not result.run.timed_out
    total = reader.matches
    more = total > request.offset + shown
    if not more and not request.offset:
        head = f"{format_count(total, 'match', 'matches')} in {format_count(len(page), 'file')}"
    else:
        whole = f"of {total:,}" if is_known else "of more"
        head = f"matches {request.offset + 1:,}-{request.offset + shown:,} {whole}"
    details: dict[str, JsonValue] = {"total": total, "shown": shown, "files": len(page)}
    if more:
        head += f"; the next with offset: {request.offset + shown}"
        details["next"] = request.offset + shown
    if not shown and total:
        head = f"no match at offset {request.offset:,}: there are {total:,}"
    body: list[str] = []
    has_context = bool(request.search.before or request.search.after)
    previous: tuple[str, int] | None = None
    for file in page:
        name = request.name(file.path)
        for line in file.lines:
            if has_context and previous is not None and previous != (name, line.number - 1):
                body.append("--")
            previous = (name, line.number)
            mark = "-" if line.match is None else ":"
            body.append(f"{name}{mark}{line.number}{mark} {line.text}")
    return head, body, details


def _format_files(request: GrepRequest, result: SearchResult, files: Sequence[str]) -> _Answer:
    counts = result.reader.counts if isinstance(result.reader, CountReader) else None
    if counts is not None:
        files = sorted(counts, key=path_key)
    page = files[request.offset : request.offset + request.limit]
    details: dict[str, JsonValue] = {"total": len(files), "shown": len(page)}
    head = format_count(len(files), "file")
    if counts is not None:
        matches = sum(counts.values())
        details["matches"] = matches
        # A multi-line match counts once.
        of_what = ("match", "matches") if request.search.multiline else ("matching line",)
        head = f"{format_count(matches, *of_what)} in {head}"
    if not page:
        return f"no file at offset {request.offset:,}: there are {len(files):,}", [], details
    if len(page) < len(files):
        head += f"; {request.offset + 1:,}-{request.offset + len(page):,} are shown"
    if request.offset + len(page) < len(files):
        head += f", the next with offset: {request.offset + len(page)}"
        details["next"] = request.offset + len(page)
    if counts is None:
        return head, [request.name(path) for path in page], details
    return head, [f"{request.name(path)}:{counts[path]}" for path in page], details


def _describe_empty(request: GrepRequest, result: SearchResult, ignored: Sequence[str]) -> str:
    """Describe an empty result and which files weren't searched."""
    searched, reader = result.reader.searched, result.reader
    unseen = not isinstance(reader, CountReader) and (reader.binary or reader.too_long)
    message = "No matches that can be shown" if unseen else "No matches"
    message += "" if searched is None else f" in {format_count(searched, 'file')}"
    if request.file is not None:
        return f"{message}."
    glob = request.search.glob
    if searched == 0 and glob is not None:
        several = f"; several are written as {{{format_path(glob)}}}" if "," in glob and "{" not in glob else ""
        message += f": no file in {request.base} is like {format_path(glob)}{several}"
    left_out = ["binary files", f"files over {MAX_FILE_BYTES // _MIB} MiB"]
    if ignored:
        names = ", ".join(join_path(request.base, format_path(name)) for name in ignored)
        left_out.insert(0, f"what ignore rules exclude ({names}, …; noIgnore: true includes it)")
    return f"{message}. Not searched: {', '.join(left_out)}."


def _build_notices(request: GrepRequest, result: SearchResult, body: Sequence[str]) -> Iterator[str]:
    reader, run = result.reader, result.run
    yield from describe_secrets(request.search.secrets, request.base)
    if run.timed_out:
        advice = "narrow it with path, glob or type"
        yield f"[Stopped after {TIME_LIMIT_S:.0f} s, with what was found until then: {advice}.]"
    if run.exit_code not in {0, 1, None}:
        lines = [line.removeprefix("rg: ").removeprefix("./") for line in run.stderr.splitlines() if line]
        first = lines[0] if lines else "no reason was given"
        if request.file is not None:
            first = re.sub(r"^/proc/\d+/fd/\d+", lambda _: request.file or "", first)
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        yield f"[Incomplete: {cut_text(clean_text(first)[0], _COMPLAINT_CHARS)}{more}]"
    if request.search.mode is not Mode.CONTENT and reader.is_full:
        yield f"[Stopped at {COLLECTED_FILES:,} files: narrow the search with path, glob or type.]"
    if not isinstance(reader, CountReader):
        if reader.binary:
            yield f"[Binary files match: {_format_some(request, reader.binary)}.]"
        if reader.too_long:
            names = _format_some(request, sorted(set(reader.too_long), key=path_key))
            yield f"[Lines of more than 1 MiB match and are not shown: {names}.]"
    hidden = find_invisible(enumerate(body, 1))
    if hidden:
        yield f"[Below, counted from the next line: {'; '.join(map(str, hidden))}.]"


def _format_some(request: GrepRequest, paths: Sequence[str]) -> str:
    names = ", ".join(request.name(path) for path in paths[:_MAX_NAMED])
    more = len(paths) - _MAX_NAMED
    return names if more <= 0 else f"{names} and {more:,} more"
