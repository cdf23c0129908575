"""The search of a tree in Python, for machines without ripgrep.

It runs in a process of its own and writes what ripgrep would write. A process, because a regular
expression of Python's may take for ever and nothing but the end of its process can stop it: in a
thread it would hold up everything else, for it does not let go of the interpreter.

Each file is tried as a whole first, and line by line only if something is found: most files hold
nothing, and one search of a whole file is far cheaper than one for each line.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from base64 import b64encode
from dataclasses import asdict
from typing import TYPE_CHECKING, BinaryIO

from indusagi.capabilities.files.paths.globs import compile_glob
from indusagi.capabilities.files.paths.ignore import IgnoreRules, RuleFile
from indusagi.capabilities.search.braces import TooManyAlternatives, expand_braces
from indusagi.capabilities.search.dialect import holds_in_whole, python_regex
from indusagi.capabilities.search.ends import names_return
from indusagi.capabilities.search.request import MAX_FILE_BYTES, Mode, Search
from indusagi.capabilities.search.types import file_types
from indusagi.capabilities.search.walk import Walk
from indusagi.capabilities.worker.interpreter import own_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indusagi.capabilities.search.listing import Met
    from indusagi.core.json import JsonObject

_WHOLE_BYTES = 256 * 1024 * 1024
"""The most that is read of a file that was asked for."""
_FIRST_LOOK = 64 * 1024
"""A file that shows so early that it is no text is not searched at all."""
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


def command(search: Search, target: str, *, whole: bool) -> list[str]:
    """Write the command line that searches `target`; see `ripgrep.command`."""
    extent = "whole" if whole else "tree"
    return own_python(__name__, json.dumps(asdict(search)), target, extent)


def main(request: str, target: str, extent: str) -> int:
    """Search, in a process of its own; the exit code is that of ripgrep."""
    search = _parsed(request)
    try:
        regex = python_regex(search)
        choice = Choice(search)
    except TooManyAlternatives as exc:
        sys.stderr.write(f"error parsing glob {search.glob!r}: {exc}\n")
        return 2
    except (re.error, OverflowError, RecursionError) as exc:
        sys.stderr.write(_caret(search.pattern, exc))
        return 2
    job = _Job(search, regex, sys.stdout.buffer)
    try:
        if extent == "whole":
            job.search_file(target)
        else:
            job.search_tree(target, choice)
        job.finish()
    except BrokenPipeError:
        # Whoever asked has enough. Python would say so once more at the end.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 2
    if job.troubles:
        sys.stderr.write("".join(f"{trouble}\n" for trouble in job.troubles))
        return 2
    return 0 if job.found else 1


def _parsed(request: str) -> Search:
    given = json.loads(request)
    given["mode"] = Mode(given["mode"])
    return Search(**given)


def _caret(pattern: str, exc: Exception) -> str:
    position = getattr(exc, "pos", None)
    shown = pattern.replace("\n", " ")
    mark = f"    {' ' * position}^\n" if isinstance(position, int) else ""
    return f"regex parse error:\n    {shown}\n{mark}error: {getattr(exc, 'msg', exc)}\n"


class Choice:
    """Which files a search is to look into, by their names."""

    def __init__(self, search: Search) -> None:
        globs = [] if search.glob is None else expand_braces(search.glob)
        self._globs = RuleFile(os.fsencode("\n".join(globs))) if globs else None
        self._only_named = any(not glob.startswith("!") for glob in globs)
        types = file_types().get(search.type or "", [])
        self._types = [regex for regex in map(compile_glob, types) if regex is not None]
        self._no_ignore = search.no_ignore
        self._secrets = frozenset(search.secrets)

    def enters(self, met: Met) -> bool:
        """Tell whether a directory is looked into."""
        if met.path in self._secrets:
            return False
        said = self._named(met)
        return (self._no_ignore or not met.is_ignored()) if said is None else said

    def takes(self, met: Met) -> bool:
        """Tell whether a file is searched."""
        said = self._named(met)
        if said is None:
            said = not self._only_named and (self._no_ignore or not met.is_ignored())
        return said and self.has_type(met.entry.name) and met.path not in self._secrets

    def has_type(self, name: str) -> bool:
        """Tell whether a name is one of the kind that is asked for."""
        return not self._types or any(regex.match(name) for regex in self._types)

    def _named(self, met: Met) -> bool | None:
        if self._globs is None:
            return None
        name, path = os.fsencode(met.entry.name), os.fsencode(met.path)
        return self._globs.decide(name, path, is_dir=met.is_dir)


class _Job:
    """One search, and what is written of it."""

    def __init__(self, search: Search, regex: re.Pattern[str], out: BinaryIO) -> None:
        self.found = False
        self.troubles: list[str] = []
        self._search = search
        self._regex = regex
        self._out = out
        self._searched = 0
        self._tries_whole = holds_in_whole(search)
        self._keeps_returns = names_return(search)

    def search_tree(self, root: str, choice: Choice) -> None:
        """Search the files of a directory that are chosen, in order."""
        rules = None if self._search.no_ignore else IgnoreRules.load(os.path.realpath(root))
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        walk = Walk(handle, rules, enters=choice.enters)
        try:
            for met in walk:
                if met.is_file() and choice.takes(met):
                    self._open(met.entry.name, met.path, met.handle)
        finally:
            os.close(handle)
        self.troubles += [f"{path}: cannot be looked into" for path in walk.closed]

    def search_file(self, path: str) -> None:
        """Search one file that was asked for."""
        self._open(path, path, None)

    def finish(self) -> None:
        """Write how many files there were."""
        if self._search.mode is Mode.COUNT:
            self._out.write(b"\n%d files searched\n" % self._searched)
        else:
            self._write("summary", {"stats": {"searches": self._searched}})
        self._out.flush()

    def _open(self, name: str, path: str, folder: int | None) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        flags |= 0 if folder is None else os.O_NOFOLLOW
        limit = _WHOLE_BYTES if folder is None else MAX_FILE_BYTES
        try:
            with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or (folder is not None and found.st_size > limit):
                    return
                data = file.read(limit)
        except OSError as exc:
            self.troubles.append(f"{path}: {exc.strerror}")
            return
        self._searched += 1
        self._look(data, path, is_asked_for=folder is None)

    def _look(self, data: bytes, path: str, *, is_asked_for: bool) -> None:
        text, zero = _decoded(data, keeps_returns=self._keeps_returns)
        if zero is not None and not is_asked_for:
            text, zero = self._before_zero(text, zero)
        if self._tries_whole and not self._search.multiline and not self._regex.search(text):
            return
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        blocks = list(self._blocks(text, lines))
        if not blocks:
            return
        self.found = True
        if self._search.mode is not Mode.COUNT:
            self._report(path, lines, blocks, zero)
        elif zero is None or is_asked_for:
            count = self._count(text) if self._search.multiline else len(blocks)
            self._out.write(b"%s\0%d\n" % (os.fsencode(path), count))
            self._out.flush()

    def _before_zero(self, text: str, zero: int) -> tuple[str, int | None]:
        """Give what ripgrep sees of a file before it knows that this is no text, if it gets to."""
        if zero < _FIRST_LOOK:
            return "", zero
        if self._search.multiline:
            return text, None
        return text[:zero], None if self._search.mode is Mode.FILES else zero

    def _blocks(self, text: str, lines: list[str]) -> Iterator[tuple[int, int, int, int]]:
        """Give the first and the last line of each match, and where in them it stands."""
        most = 1 if self._search.mode is Mode.FILES else len(lines)
        if not self._search.multiline:
            for number, line in enumerate(lines):
                if most and (found := self._regex.search(line)):
                    most -= 1
                    yield number, number, found.start(), found.end()
            return
        yield from self._long_blocks(text, lines)

    def _long_blocks(self, text: str, lines: list[str]) -> Iterator[tuple[int, int, int, int]]:
        number = start = 0
        held: tuple[int, int, int, int] | None = None
        for found in self._regex.finditer(text):
            ahead = text.count("\n", start, found.start())
            number, start = number + ahead, found.start()
            line_start = text.rfind("\n", 0, start) + 1
            last = number + text.count("\n", start, max(start, found.end() - 1))
            if number >= len(lines):
                break
            if held is not None and number <= held[1]:
                held = (held[0], max(held[1], last), held[2], held[3])
                continue
            if held is not None:
                yield held
            held = (number, last, start - line_start, found.end() - line_start)
            if self._search.mode is Mode.FILES:
                break
        if held is not None:
            yield held

    def _count(self, text: str) -> int:
        # Behind the last character there is no line.
        return sum(found.start() < len(text) for found in self._regex.finditer(text))

    # -- what is written ----------------------------------------------------------------------

    def _report(self, path: str, lines: list[str], blocks: list[tuple[int, int, int, int]], zero: int | None) -> None:
        named = _value(path)
        self._write("begin", {"path": named})
        shown = 0
        for at, (first, last, start, end) in enumerate(blocks):
            for number in range(max(shown, first - self._search.before), first):
                self._line("context", named, lines, number, number)
            prefix = "\n".join(lines[first : last + 1])
            place: JsonObject = {"start": _width(prefix[:start]), "end": _width(prefix[:end])}
            self._line("match", named, lines, first, last, place)
            following = blocks[at + 1][0] if at + 1 < len(blocks) else len(lines)
            shown = min(last + 1 + self._search.after, following)
            for number in range(last + 1, shown):
                self._line("context", named, lines, number, number)
        self._write("end", {"path": named, "binary_offset": zero})
        # Each file for itself: should this process be ended, what was found so far is there.
        self._out.flush()

    def _line(
        self, kind: str, path: JsonObject, lines: list[str], first: int, last: int, place: JsonObject | None = None
    ) -> None:
        text = _value("\n".join(lines[first : last + 1]) + "\n")
        found: list[JsonObject] = [] if place is None else [place]
        data: JsonObject = {"path": path, "lines": text, "line_number": first + 1}
        self._write(kind, {**data, "submatches": [*found]})

    def _write(self, kind: str, data: JsonObject) -> None:
        self._out.write(json.dumps({"type": kind, "data": data}, separators=(",", ":")).encode() + b"\n")


def _decoded(data: bytes, *, keeps_returns: bool) -> tuple[str, int | None]:
    """Read a file as text, whatever it holds, and tell where it shows that it is none."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            text = data[len(mark) :].decode(encoding, "replace")
            break
    else:
        text = data.decode("utf-8", "surrogateescape")
    if not keeps_returns and "\r\n" in text:
        text = text.replace("\r\n", "\n")
    zero = text.find("\0")
    return text, None if zero < 0 else zero


def _value(text: str) -> JsonObject:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return {"bytes": b64encode(os.fsencode(text)).decode("ascii")}
    return {"text": text}


def _width(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
