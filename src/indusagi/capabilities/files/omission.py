"""Comments that stand for code which was left out: written to a file they would delete it."""

from __future__ import annotations

import re

_LEADERS = r"//+|/\*+|\{/\*|\*+|<!--|#+|--|;+|%+|\(\*|'|rem\b|\"{3}"
_PROSE_LEADERS = r"<!--|//+|/\*+"
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
_END = (
    rf"(?:\s+(?:is|are|was|were|goes|go|stays?|remains?|kept|left)){{0,2}}(?:\s+(?P<kept>{_KEPT}))?"
)
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
    comment = re.compile(rf"\s*(?:{leaders})\s*(?P<said>.*)", re.IGNORECASE)
    found: list[tuple[int, str]] = []
    kept: set[str] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _LONGEST_LINE or not _may_say(line):
            continue
        match = comment.fullmatch(line.rstrip())
        if match is None or not _stands_for_something(match["said"]):
            continue
        kept = {each.strip() for each in former.split("\n")} if kept is None else kept
        if line.strip() not in kept:
            found.append((number, line.strip()))
    return found


def _stands_for_something(said: str) -> bool:
    """Tell a placeholder: the words for it and no others, with dots or what became of the rest."""
    found = _SAID.fullmatch(_DOTS.sub(" ", said).strip(_FRAME))
    return found is not None and bool(_DOTS.search(said) or found["kept"])


_WORDS = re.compile(
    "rest|remain|existing|previous|unchanged|unmodified|omitted|same|other|original|not shown",
    re.IGNORECASE,
)


def _may_say(line: str) -> bool:
    return _WORDS.search(line) is not None
