"""Comments that stand for code which was left out: written to a file they would delete it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from indusagi.core.text import common_end, common_start

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEADERS = r"//++|/\*++|\{/\*|\*++|<!--|#++|--|;++|%++|\(\*|'|rem\b|\"{3}"
_PROSE_LEADERS = r"<!--|//++|/\*++"
"""In a text for people, what else looks like a comment is a heading or an item of a list."""
_PROSE = (".md", ".markdown", ".mdx", ".rst", ".txt", ".adoc")
_THING = (
    r"(?:code|file|class(?:es)?|functions?|methods?|implementations?|contents?|lines?|logic|module"
    r"|body|imports?|tests?|components?|styles?|definitions?|config(?:uration)?|properties|fields"
    r"|routes?|handlers?|document|script|sections?|template|markup|program|stuff)"
)
_SOME = r"(?:[\w./-]+\s+){0,3}?"
_KEPT = (
    r"(?:unchanged|unmodified|untouched|omitted|(?:the )?same(?: as before)?|as (?:it )?(?:is|was)"
    r"|as before|as above|not shown|here|below|above|continues|stays|remains)"
)
_END = rf"(?:\s+(?:is|are|was|were|goes|go|stays?|remains?|kept|left)){{0,2}}(?:\s+(?P<kept>{_KEPT}))?"
_SAID = re.compile(
    rf"(?:keep\s+)?(?:all\s+|and\s+|the\s+|your\s+|my\s+){{0,3}}"
    rf"(?:(?:rest|remainder)(?:\s+of\s+{_SOME}{_THING})?"
    rf"|(?:rest|remaining|existing|previous|other|original|unchanged|same)\s+{_SOME}{_THING}"
    rf"|{_SOME}{_THING}(?=\s+(?:unchanged|unmodified|omitted|not shown|stays|remains|is|are)\b)"
    rf"|unchanged|unmodified|omitted)"
    rf"{_END}(?:\s+for (?:brevity|clarity|space))?",
    re.IGNORECASE,
)
_DOTS = re.compile(r"\.{3,}|\u2026")
_FRAME = " \t.\u2026-\u2013\u2014:;,!*/<>{}()[]#\"'"
"""What stands around the words of a placeholder."""
_PART = 64 * 1024
"""Characters that are searched in one go: meanwhile nothing else runs."""
_LONGEST_LINE = 200
"""A placeholder is short; what is longer explains something."""


def omissions(text: str, former: str, path: str) -> list[tuple[int, str]]:
    """Find lines that are only a comment, and one that stands for something left out.

    Args:
        text: What is about to be written.
        former: What stands in the file; a placeholder that it has already is somebody's text.
        path: The name tells a program from prose.

    Returns:
        The number and the text of each such line.
    """
    leaders = _PROSE_LEADERS if path.lower().endswith(_PROSE) else _LEADERS
    # Nothing is given back that a `++` has taken: a line may be one long row of signs.
    comment = re.compile(rf"^[ \t]*+(?:{leaders})[ \t]*+(?P<said>[^\n]{{3,{_LONGEST_LINE}}})$", re.I | re.M)
    found = [
        match
        for start, end in _parts_that_differ(text, former)
        for match in comment.finditer(text, start, end)
        if _stands_for_something(match["said"].rstrip())
    ]
    kept = {line.strip() for line in former.split("\n")} if found else set[str]()
    return [
        (text.count("\n", 0, match.start()) + 1, match.group().strip())
        for match in found
        if match.group().strip() not in kept
    ]


def _parts_that_differ(text: str, former: str) -> Iterator[tuple[int, int]]:
    """Set aside what both versions begin and end with; give the rest in parts of whole lines."""
    start = common_start(text, former)
    end = len(text) - common_end(text, former, start)
    start = text.rfind("\n", 0, start) + 1
    while start <= end and start < len(text):
        stop = text.find("\n", min(start + _PART, end))
        stop = stop if stop >= 0 else len(text)
        yield start, stop
        start = stop + 1


def _stands_for_something(said: str) -> bool:
    """Tell a placeholder: the words for it and no others, with dots or what became of the rest."""
    found = _SAID.fullmatch(_DOTS.sub(" ", said).strip(_FRAME))
    return found is not None and bool(_DOTS.search(said) or found["kept"])
