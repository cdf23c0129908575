"""What a search has found, in words: the lines, and before them what is to be known about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.capabilities.files.text.display import format_path, join_path
from indusagi.capabilities.files.text.invisible import find_invisible
from indusagi.capabilities.search.ends import with_any_end
from indusagi.capabilities.search.records import Counts, Matches
from indusagi.capabilities.search.request import MAX_FILE_BYTES, Mode, path_key
from indusagi.capabilities.search.secrets import notice
from indusagi.capabilities.search.seek import COLLECTED_FILES, TIME_LIMIT_S, page_of
from indusagi.core.text import clean_text, cut_text, format_count
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.search.request import FileHits, Search
    from indusagi.capabilities.search.seek import Found
    from indusagi.core.json import JsonValue

_NAMED = 5
"""Files that a notice names; of the others it gives the number."""
_COMPLAINT_CHARS = 500
_MIB = 1024 * 1024
_BAD_PATTERN = re.compile(r"regex parse error|could not be compiled|error compiling|not allowed in")
_DEFAULT_ENGINE = re.compile(r"~~~+\n(.*?)\n~~~+", re.DOTALL)
_OTHER_ENGINE = re.compile(r"^PCRE2: (.*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, as far as the answer depends on it."""

    search: Search
    base: str
    """How the directory that was searched is called, from where the user stands."""
    limit: int
    offset: int
    file: str | None = None
    """The name of the file, if only that was searched."""

    def name(self, path: str) -> str:
        """Give the name under which the user knows a file."""
        return self.file or join_path(self.base, format_path(path))


def failure(found: Found, search: Search) -> ToolResult | None:
    """Answer for a search that could not be made; None if it was, be it in part."""
    finished = found.finished
    reader = found.reader
    is_empty = not (reader.counts if isinstance(reader, Counts) else reader.files)
    if finished.exit_code in {0, 1, None} or not is_empty:
        return None
    said = finished.complaints.strip()
    if _BAD_PATTERN.search(said):
        hint = "Escape what is meant literally, or pass literal: true."
        reason = _pattern_trouble(said, search)
        return ToolResult.error(f"{reason}\n{hint}", code="invalid_pattern")
    code = "invalid_pattern" if "glob" in said else "failed"
    shown = cut_text(clean_text(said.removeprefix("rg: "))[0], _COMPLAINT_CHARS)
    return ToolResult.error(f"The search failed: {shown or 'no reason was given'}", code=code)


def _pattern_trouble(said: str, search: Search) -> str:
    """Find the one complaint that helps among those of two engines."""
    first = _DEFAULT_ENGINE.search(said)
    second = _OTHER_ENGINE.search(said)
    reason = first[1] if first else said.removeprefix("rg: ")
    if second and "not supported" in reason:
        # The first one knows no look-around; what is wrong is what the other one says.
        reason = f"error: {second[1]}"
    elif with_any_end(search) is None:
        return cut_text(clean_text(reason)[0], 4 * _COMPLAINT_CHARS)
    # Told without its place, which is one in a pattern that nobody wrote.
    what = reason.rpartition("error: ")[2]
    reason = f"regex parse error:\n    {search.pattern}\nerror: {what}"
    return cut_text(clean_text(reason)[0], 4 * _COMPLAINT_CHARS)


def report(asked: Asked, found: Found, files: Sequence[str], ignored: Sequence[str]) -> ToolResult:
    """Put an answer together.

    Args:
        asked: What was asked for.
        found: What was found.
        files: For a search that gives files: all of them, in order.
        ignored: Some names that ignore rules have kept out of the search, if nothing was found.
    """
    if asked.search.mode is Mode.CONTENT and isinstance(found.reader, Matches):
        head, body, details = _content(asked, found, found.reader)
    else:
        head, body, details = _listing(asked, found, files)
    if not body and not details["total"]:
        head = _nothing(asked, found, ignored)
    notices = list(_notices(asked, found, body))
    details = {"mode": str(asked.search.mode), "offset": asked.offset, **details}
    details["partial"] = found.finished.timed_out or found.finished.exit_code not in {0, 1, None}
    if asked.search.secrets:
        details["protected"] = len(asked.search.secrets)
    if found.reader.searched is not None:
        details["searched"] = found.reader.searched
    return ToolResult.text("\n".join([head, *notices, *body]), **details)


def _content(asked: Asked, found: Found, reader: Matches) -> tuple[str, list[str], dict[str, JsonValue]]:
    files = reader.sorted_files()
    page = page_of(files, asked.offset - found.skipped, asked.limit, asked.search)
    shown = sum(file.matches for file in page)
    # What did not come to its end may hold more than was counted.
    is_known = not reader.is_full and not found.finished.timed_out
    total = reader.matches
    more = total > asked.offset + shown
    if not more and not asked.offset:
        head = f"{format_count(total, 'match', 'matches')} in {format_count(len(page), 'file')}"
    else:
        whole = f"of {total:,}" if is_known else "of more"
        head = f"matches {asked.offset + 1:,}-{asked.offset + shown:,} {whole}"
    details: dict[str, JsonValue] = {"total": total, "shown": shown, "files": len(page)}
    if more:
        head += f"; the next with offset: {asked.offset + shown}"
        details["next"] = asked.offset + shown
    if not shown and total:
        head = f"no match at offset {asked.offset:,}: there are {total:,}"
    return head, list(_lines(asked, page)), details


def _lines(asked: Asked, page: list[FileHits]) -> Iterator[str]:
    has_context = bool(asked.search.before or asked.search.after)
    previous: tuple[str, int] | None = None
    for file in page:
        name = asked.name(file.path)
        for line in file.lines:
            if has_context and previous is not None and previous != (name, line.number - 1):
                yield "--"
            previous = (name, line.number)
            mark = "-" if line.match is None else ":"
            yield f"{name}{mark}{line.number}{mark} {line.text}"


def _listing(asked: Asked, found: Found, files: Sequence[str]) -> tuple[str, list[str], dict[str, JsonValue]]:
    counts = found.reader.counts if isinstance(found.reader, Counts) else None
    if counts is not None:
        files = sorted(counts, key=path_key)
    page = files[asked.offset : asked.offset + asked.limit]
    details: dict[str, JsonValue] = {"total": len(files), "shown": len(page)}
    head = format_count(len(files), "file")
    if counts is not None:
        matches = sum(counts.values())
        details["matches"] = matches
        # What reaches over several lines is counted as one.
        of_what = ("match", "matches") if asked.search.multiline else ("matching line",)
        head = f"{format_count(matches, *of_what)} in {head}"
    if not page:
        return f"no file at offset {asked.offset:,}: there are {len(files):,}", [], details
    if len(page) < len(files):
        head += f"; {asked.offset + 1:,}-{asked.offset + len(page):,} are shown"
    if asked.offset + len(page) < len(files):
        head += f", the next with offset: {asked.offset + len(page)}"
        details["next"] = asked.offset + len(page)
    if counts is None:
        return head, [asked.name(path) for path in page], details
    return head, [f"{asked.name(path)}:{counts[path]}" for path in page], details


def _nothing(asked: Asked, found: Found, ignored: Sequence[str]) -> str:
    """Say that nothing was found, and where nobody has looked."""
    searched, reader = found.reader.searched, found.reader
    unseen = not isinstance(reader, Counts) and (reader.binary or reader.too_long)
    said = "No matches that can be shown" if unseen else "No matches"
    said += "" if searched is None else f" in {format_count(searched, 'file')}"
    if asked.file is not None:
        return f"{said}."
    said += _without_files(asked) if searched == 0 else ""
    left_out = ["binary files", f"files over {MAX_FILE_BYTES // _MIB} MiB"]
    if ignored:
        names = ", ".join(join_path(asked.base, format_path(name)) for name in ignored)
        left_out.insert(0, f"what ignore rules exclude ({names}, …; noIgnore: true includes it)")
    return f"{said}. Not searched: {', '.join(left_out)}."


def _without_files(asked: Asked) -> str:
    """Say that the glob, if there is one, chooses nothing: it may not mean what was meant."""
    glob = asked.search.glob
    if glob is None:
        return ""
    shown = format_path(glob)
    several = f"; several are written as {{{shown}}}" if "," in glob and "{" not in glob else ""
    return f": no file in {asked.base} is like {shown}{several}"


def _notices(asked: Asked, found: Found, body: Sequence[str]) -> Iterator[str]:
    reader, finished = found.reader, found.finished
    yield from notice(asked.search.secrets, asked.base)
    if finished.timed_out:
        advice = "narrow it with path, glob or type"
        yield f"[Stopped after {TIME_LIMIT_S:.0f} s, with what was found until then: {advice}.]"
    if finished.exit_code not in {0, 1, None}:
        yield f"[Incomplete: {_complaint(finished.complaints, asked)}]"
    if asked.search.mode is not Mode.CONTENT and reader.is_full:
        yield f"[Stopped at {COLLECTED_FILES:,} files: narrow the search with path, glob or type.]"
    if not isinstance(reader, Counts):
        if reader.binary:
            yield f"[Binary files match: {_some(asked, reader.binary)}.]"
        if reader.too_long:
            names = _some(asked, sorted(set(reader.too_long), key=path_key))
            yield f"[Lines of more than 1 MiB match and are not shown: {names}.]"
    hidden = find_invisible(enumerate(body, 1))
    if hidden:
        yield f"[Below, counted from the next line: {'; '.join(map(str, hidden))}.]"


def _complaint(said: str, asked: Asked) -> str:
    lines = [line.removeprefix("rg: ").removeprefix("./") for line in said.splitlines() if line]
    first = lines[0] if lines else "no reason was given"
    if asked.file is not None:
        first = re.sub(r"^/proc/\d+/fd/\d+", lambda _: asked.file or "", first)
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return f"{cut_text(clean_text(first)[0], _COMPLAINT_CHARS)}{more}"


def _some(asked: Asked, paths: Sequence[str]) -> str:
    names = ", ".join(asked.name(path) for path in paths[:_NAMED])
    more = len(paths) - _NAMED
    return names if more <= 0 else f"{names} and {more:,} more"
