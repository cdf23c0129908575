"""Checks on the text an edit produces: elisions and syntax errors.

An elision is a comment like `# ... rest of the code unchanged ...`: writing it to the file would delete that code. We
report a syntax error only if the old text had none, and only for formats with a parser in the standard library. Files
that are too large to parse in one go aren't checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from indusagi.core.text import common_end, common_start

_LEADERS = r"//++|/\*++|\{/\*|\*++|<!--|#++|--|;++|%++|\(\*|'|rem\b|\"{3}"
_PROSE_LEADERS = r"<!--|//++|/\*++"
"""In prose, the other comment markers are headings and list items."""
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
_PLACEHOLDER = re.compile(
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
"""Characters surrounding the words of an elision."""
_SEARCH_CHARACTERS = 64 * 1024
"""How much to search per call of `re`, which holds the GIL."""
_LONGEST_ELISION = 200
"""Longer comments actually explain something."""


def find_elisions(text: str, former: str, path: str) -> list[tuple[int, str]]:
    """Find comment-only lines that stand for omitted code, and return their number and text.

    Elisions that the `former` text already contains are fine. The path tells code from prose.
    """
    leaders = _PROSE_LEADERS if path.lower().endswith(_PROSE) else _LEADERS
    # The possessive `++` keeps the search linear on a line of repeated marks.
    comment = re.compile(rf"^[ \t]*+(?:{leaders})[ \t]*+(?P<words>[^\n]{{3,{_LONGEST_ELISION}}})$", re.I | re.M)
    elisions: list[re.Match[str]] = []
    # Only search between the common start and end of both texts, in chunks of whole lines.
    start = common_start(text, former)
    end = len(text) - common_end(text, former, start)
    start = text.rfind("\n", 0, start) + 1
    while start <= end and start < len(text):
        stop = text.find("\n", min(start + _SEARCH_CHARACTERS, end))
        stop = stop if stop >= 0 else len(text)
        for match in comment.finditer(text, start, stop):
            # Require the usual words, plus dots or a word like `unchanged`.
            words = match["words"].rstrip()
            placeholder = _PLACEHOLDER.fullmatch(_DOTS.sub(" ", words).strip(_FRAME))
            if placeholder is not None and (_DOTS.search(words) or placeholder["kept"]):
                elisions.append(match)
        start = stop + 1
    kept = {line.strip() for line in former.split("\n")} if elisions else set[str]()
    return [
        (text.count("\n", 0, match.start()) + 1, match.group().strip())
        for match in elisions
        if match.group().strip() not in kept
    ]


# -- syntax -------------------------------------------------------------------------------------

_MAX_CHARACTERS = 400_000
_SLOW_PYTHON_CHARACTERS = 16 * 1024
"""Python's parser holds the GIL: for this many characters, about ten milliseconds."""
_MAX_TOML_STEPS = 10_000_000
"""The TOML parser walks all enclosing tables for each key."""
_JSON_WITH_COMMENTS = ("tsconfig", "jsconfig", "devcontainer", ".eslintrc", ".babelrc")
"""Prefixes of `.json` files that may contain comments."""
_FILE_NAME = "<edited file>"


def find_new_syntax_error(path: str, former: str | None, text: str) -> str | None:
    """Return a syntax error in a file whose `former` text (None for a new file) had none."""
    error = _find_error(path, text)
    if error is not None and former and former.strip() and _find_error(path, former) is not None:
        return None
    return error


def _find_error(path: str, text: str) -> str | None:
    parse, text = _find_parser(path), text.removeprefix("\ufeff")
    return None if parse is None or len(text) > _MAX_CHARACTERS else parse(text)


def is_slow_to_parse(path: str, size: int) -> bool:
    """Return whether parsing this many characters would hold the GIL for long."""
    return _SLOW_PYTHON_CHARACTERS < size <= _MAX_CHARACTERS and _find_parser(path) is _parse_python


def _find_parser(path: str) -> Callable[[str], str | None] | None:
    name = os.path.basename(path).lower()
    suffix = os.path.splitext(name)[1]
    if suffix == ".json" and (name.startswith(_JSON_WITH_COMMENTS) or "/.vscode/" in f"/{path}"):
        return None
    return _PARSERS.get(suffix)


def _parse_python(text: str) -> str | None:
    import ast  # noqa: PLC0415 — only after an edit of Python
    import warnings  # noqa: PLC0415 — only after an edit of Python

    # Invalid escape sequences are just warnings. The filter only applies to this file name.
    warnings.filterwarnings("ignore", module=f"^{_FILE_NAME}$")
    try:
        ast.parse(text, _FILE_NAME)
    except SyntaxError as exc:
        return f"line {exc.lineno}: {exc.msg}" if exc.lineno else str(exc.msg)
    except (ValueError, RecursionError, MemoryError):
        return None  # invalid characters, or nested too deeply for the parser
    return None


def _parse_json(text: str) -> str | None:
    import json  # noqa: PLC0415 — only after an edit of JSON

    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        return f"line {exc.lineno}: {exc.msg}"
    except (ValueError, RecursionError):
        return None
    return None


def _parse_toml(text: str) -> str | None:
    # Estimate how many tables the parser walks, erring on the high side.
    steps = deepest = 0
    for line in text.split("\n"):
        key = line.partition("=")[0]
        parts = 1 + (line if '"' in key or "'" in key else key).count(".")
        if line.lstrip().startswith("["):
            deepest = max(deepest, parts)
        steps += parts * (deepest + parts)
    if steps > _MAX_TOML_STEPS:
        return None
    import tomllib  # noqa: PLC0415 — only after an edit of TOML

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        return str(exc)
    except (ValueError, RecursionError):
        return None
    return None


def _parse_xml(text: str) -> str | None:
    if "<!ENTITY" in text:
        return None  # entities can expand to more text than fits in memory
    from xml.parsers import expat  # noqa: PLC0415 — only after an edit of XML

    # We've already decoded the text, whatever encoding it declares; expat never fetches external entities.
    parser = expat.ParserCreate("utf-8")
    try:
        parser.Parse(text.encode("utf-8"), True)  # noqa: FBT003 — it takes no keywords
    except UnicodeEncodeError:
        return None
    except expat.ExpatError as exc:
        return f"line {exc.lineno}: {expat.ErrorString(exc.code)}"
    return None


_PARSERS: dict[str, Callable[[str], str | None]] = {
    ".py": _parse_python,
    ".pyi": _parse_python,
    ".json": _parse_json,
    ".toml": _parse_toml,
    ".xml": _parse_xml,
    ".svg": _parse_xml,
    ".xsd": _parse_xml,
    ".plist": _parse_xml,
}
