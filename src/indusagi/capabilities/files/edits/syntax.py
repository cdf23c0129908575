"""Whether a change has broken a file that was whole: what its own parser says of it.

Only what was not there before is told, and only for formats whose parser is at hand. A file that
is too large to be parsed in a moment is not looked at.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_CHARS = 400_000
_PYTHON_AT_ONCE = 16 * 1024
"""The parser of Python holds up the whole process: for this much, a hundredth of a second."""
_MOST_STEPS = 10_000_000
"""Through tables within tables, of a TOML file: its parser takes each of them anew for each key."""
_WITH_COMMENTS = ("tsconfig", "jsconfig", "devcontainer", ".eslintrc", ".babelrc")
"""Begin the names of files that are called JSON and may have comments."""
_CHECKED = "<edited file>"


def broken_by(path: str, former: str | None, text: str) -> str | None:
    """Say what is wrong with the text of a file that was right before, or give None.

    Args:
        path: Its name tells the format.
        former: The text it had; None if there was no such file.
        text: The text it has.
    """
    check = _check_for(path)
    if check is None:
        return None
    wrong = check(text.removeprefix("\ufeff"))
    if wrong is None:
        return None
    if former and former.strip() and check(former.removeprefix("\ufeff")) is not None:
        return None
    return wrong


def takes_long(path: str, size: int) -> bool:
    """Tell whether to look at so many characters would hold up the whole process for a while."""
    return _PYTHON_AT_ONCE < size <= _MOST_CHARS and _check_for(path) is _python


def _check_for(path: str) -> Callable[[str], str | None] | None:
    name = os.path.basename(path).lower()
    suffix = os.path.splitext(name)[1]
    if suffix == ".json" and (name.startswith(_WITH_COMMENTS) or "/.vscode/" in f"/{path}"):
        return None
    return _CHECKS.get(suffix)


def _python(text: str) -> str | None:
    if len(text) > _MOST_CHARS:
        return None
    import ast  # noqa: PLC0415 — only where Python was edited
    import warnings  # noqa: PLC0415 — as above

    # A doubtful escape is no error. The rule is for this name alone; others stay as they are.
    warnings.filterwarnings("ignore", module=f"^{_CHECKED}$")
    try:
        ast.parse(text, _CHECKED)
    except SyntaxError as exc:
        return f"line {exc.lineno}: {exc.msg}" if exc.lineno else str(exc.msg)
    except (ValueError, RecursionError, MemoryError):
        return None  # bytes that are no text, or nested too deeply to tell
    return None


def _json(text: str) -> str | None:
    if len(text) > _MOST_CHARS:
        return None
    import json  # noqa: PLC0415 — only where JSON was edited

    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        return f"line {exc.lineno}: {exc.msg}"
    except (ValueError, RecursionError):
        return None
    return None


def _toml(text: str) -> str | None:
    if len(text) > _MOST_CHARS or _toml_steps(text) > _MOST_STEPS:
        return None
    import tomllib  # noqa: PLC0415 — only where TOML was edited

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        return str(exc)
    except (ValueError, RecursionError):
        return None
    return None


def _toml_steps(text: str) -> int:
    """Estimate how many tables the parser goes through: too many rather than too few."""
    steps = deepest = 0
    for line in text.split("\n"):
        key = line.partition("=")[0]
        parts = 1 + (line if '"' in key or "'" in key else key).count(".")
        if line.lstrip().startswith("["):
            deepest = max(deepest, parts)
        steps += parts * (deepest + parts)
    return steps


def _xml(text: str) -> str | None:
    if len(text) > _MOST_CHARS or "<!ENTITY" in text:
        return None  # entities could stand for more than there is memory for
    from xml.parsers import expat  # noqa: PLC0415 — only where XML was edited

    # As characters, whatever encoding the file declares; nothing outside of it is ever fetched.
    parser = expat.ParserCreate("utf-8")
    try:
        parser.Parse(text.encode("utf-8"), True)  # noqa: FBT003 — it takes no keywords
    except UnicodeEncodeError:
        return None
    except expat.ExpatError as exc:
        return f"line {exc.lineno}: {expat.ErrorString(exc.code)}"
    return None


_CHECKS: dict[str, Callable[[str], str | None]] = {
    ".py": _python,
    ".pyi": _python,
    ".json": _json,
    ".toml": _toml,
    ".xml": _xml,
    ".svg": _xml,
    ".xsd": _xml,
    ".plist": _xml,
}
