"""JSON laid out in lines, and text laid open. Nothing but white space and the unseen changes."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Final

from indusagi.capabilities.worker.message import packed, unpacked
from indusagi.core.text import escape_invisible, remove_break_hints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_LINE_ENDS = re.compile(r"\r\n?|\u2028|\u2029|\x85")
_STEP: Final = 128 * 1024
LONGEST_JSON: Final = 1024 * 1024
"""Beyond this it is shown as it came: laying it out takes a while."""
SHORT_JSON: Final = 128 * 1024
"""Up to this the parser, which lets nobody else run, takes a hundredth of a second."""

_DEEPEST: Final = 16
"""Indentation stops here, or a nest of a few bytes would become megabytes of spaces."""


def laid_out(text: str) -> str:
    """Lay out JSON with two spaces; every number, name and string stays as it was written.

    What is no JSON, or nested too deep to be read, is given back as it is.
    """
    if len(text) > LONGEST_JSON:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    # One by one: a search for all of them at once would let no other thread run meanwhile.
    return "".join(_lines(found[0] for found in _TOKEN.finditer(text)))


def message(text: str) -> list[bytes]:
    """Write what goes to the process that lays out JSON, and what comes from it."""
    return packed({}, [text.encode("utf-8", "surrogatepass")])


def text_in(pieces: Sequence[bytes]) -> str:
    """Read what `message` wrote.

    Raises:
        ValueError: It is something else, or not all of it.
    """
    _, (text,) = unpacked(b"".join(pieces))
    return text.decode("utf-8", "surrogatepass")


def main() -> int:
    """Lay out the JSON on standard input, in a process of its own."""
    for piece in message(laid_out(text_in([sys.stdin.buffer.read()]))):
        sys.stdout.buffer.write(piece)
    return 0


def _lines(tokens: Iterable[str]) -> list[str]:
    written: list[str] = []
    depth, before = 0, ""
    for token in tokens:
        if token in {"}", "]"}:
            depth -= 1
        if before and _breaks(before, token):
            written.append("\n" + "  " * min(depth, _DEEPEST))
        written.append(": " if token == ":" else token)
        if token in {"{", "["}:
            depth += 1
        before = token
    return written


def _breaks(before: str, token: str) -> bool:
    if before in {"{", "["}:
        return token not in {"}", "]"}
    return before == "," or token in {"}", "]"}


def laid_open(text: str) -> tuple[str, int]:
    """Make line ends plain and what cannot be seen visible; tell how much of the latter there was.

    Half a surrogate pair counts too: what comes out can be written anywhere.
    """
    shown: list[str] = []
    hidden = 0
    for piece in _pieces(text):
        plain = _LINE_ENDS.sub("\n", piece).replace("\u00ad", "")
        visible, found = escape_invisible(remove_break_hints(plain))
        shown.append(visible)
        hidden += found
    return "".join(shown), hidden


def _pieces(text: str) -> Iterator[str]:
    """Cut a text so that a pattern runs over little at a time.

    No line end falls apart, nor what makes one sign of several characters.
    """
    at = 0
    while at < len(text):
        end = at + _STEP
        while end < at + 2 * _STEP and not text[end : end + 1].isascii():
            end += 1
        end += text[end - 1 : end] == "\r"
        yield text[at:end]
        at = end
