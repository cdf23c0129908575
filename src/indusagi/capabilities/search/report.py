"""Format the answer of a search: first the notices about the lines, then the lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from indusagi.capabilities.files.text.lines import find_invisible, format_path, join_path
from indusagi.capabilities.search.output import CountReader, MatchReader
from indusagi.capabilities.search.request import MAX_FILE_BYTES, Mode, accept_any_line_ending, path_key
from indusagi.capabilities.search.search import COLLECTED_FILES, TIME_LIMIT_S, select_page
from indusagi.capabilities.search.walk import describe_secrets
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text, format_count
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.search.request import Search
    from indusagi.capabilities.search.search import SearchResult
    from indusagi.core.json import JsonValue

_Answer: TypeAlias = "tuple[str, list[str], dict[str, JsonValue]]"
"""Head line, body lines, details."""
_MAX_NAMED = 5
"""How many files a notice lists; it counts the rest."""
_COMPLAINT_CHARS = 500
_MIB = 1024 * 1024
_BAD_PATTERN = re.compile(r"regex parse error|could not be compiled|error compiling|not allowed in")
_DEFAULT_ENGINE = re.compile(r"~~~+\n(.*?)\n~~~+", re.DOTALL)
_OTHER_ENGINE = re.compile(r"^PCRE2: (.*)", re.MULTILINE)


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
    if _BAD_PATTERN.search(message):
        # `--engine=auto` reports the errors of two engines.
        first, second = _DEFAULT_ENGINE.search(message), _OTHER_ENGINE.search(message)
        reason = first[1] if first else message.removeprefix("rg: ")
        is_rewritten = accept_any_line_ending(search) is not None
        if second and "not supported" in reason:
            # The default engine doesn't support look-around, so report PCRE2's error.
            reason, is_rewritten = f"error: {second[1]}", True
        if is_rewritten:
            # Omit the position, which refers to the rewritten pattern.
            reason = f"regex parse error:\n    {search.pattern}\nerror: {reason.rpartition('error: ')[2]}"
        shown = cut_text(clean_text(reason)[0], 4 * _COMPLAINT_CHARS)
        hint = "Escape what is meant literally, or pass literal: true."
        return ToolResult.error(f"{shown}\n{hint}", code="invalid_pattern")
    code = "invalid_pattern" if "glob" in message else "failed"
    shown = cut_text(clean_text(message.removeprefix("rg: "))[0], _COMPLAINT_CHARS)
    return ToolResult.error(f"The search failed: {shown or 'no reason was given'}", code=code)


def build_report(
    request: GrepRequest, result: SearchResult, files: Sequence[str], ignored: Sequence[str]
) -> ToolResult:
    """Build the answer.

    Args:
        request: The query.
        result: The output of the search.
        files: The sorted files, if the search was for files.
        ignored: Some ignored names, if there were no matches.
    """
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
