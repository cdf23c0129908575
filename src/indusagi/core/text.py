"""Makes text and JSON from other programs and users safe to show to a model, a client or a terminal.

A description, a title or a line of standard error may hold characters without a glyph that a terminal or model obeys:
escape sequences, direction overrides, zero-width characters, tag characters. `clean_text` removes them, `make_visible`
escapes them (`<U+202E>`). Letters are never changed or normalised.

The set: control characters (C0, C1), format characters, Default_Ignorable_Code_Point
(https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point), surrogates and noncharacters. A joiner or
variation selector stays where a neighbouring glyph needs it: in an emoji sequence
(https://www.unicode.org/reports/tr51/#Emoji_ZWJ_Sequences), between letters of a joining script, after an ideograph.
Both functions remove two line break hints that no reader misses: the soft hyphen, and the zero width space of scripts
without spaces.

`clean_json` walks a value of any depth, including object keys. Tool definitions are cleaned by removal, tool results in
a session by escaping. Keys stay distinct: if cleaning would make two keys equal, or one empty, the changed key's
characters are escaped instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TypeAlias, TypeGuard, TypeVar, cast

from indusagi.core.json import JsonValue

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor moves
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # control strings: titles, clipboards
    r"|\x1b[ -/]*[0-~]",  # other escape sequences
    re.DOTALL,
)
_KINDS = {
    "escapes": "\x1b\x9b",
    "bidi": "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "tags": "\U000e0000-\U000e007f",
    "invisible": "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065"
    "\u206a-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0080-\U000e0fff",
    "controls": "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029",
    "halves": "\ud800-\udfff",
    "noncharacters": "\ufdd0-\ufdef"
    + "".join(chr(plane + 0xFFFE) + chr(plane + 0xFFFF) for plane in range(0, 0x110000, 0x10000)),
}
INVISIBLE = "".join(_KINDS.values())
"""All invisible characters, for a character class in a pattern."""
_PICTOGRAPHS = "\u2190-\u2bff\U0001f000-\U0001faff"
_JOINED = (
    "\u0620-\u10ff\u1780-\u17b3\u17b6-\u180a\u1810-\u1cff\ua800-\uabff"
    "\ufb50-\ufdcf\ufdf0-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00011fff\U0001e900-\U0001e95f"
)
"""Scripts where a joiner changes the shape of letters: Arabic, the scripts of India and South East Asia, Mongolian."""
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Scripts without spaces, where a zero width space separates words: Thai, Lao, Burmese, Khmer."""
_LETTERS = r"^\W\u115f\u1160\u3164\uffa0"
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fffd\U00030000-\U000323af"
_EMOJI_OR_TEXT = f"\u00a9\u00ae\u203c\u2049\u2122\u2139\u3030\u303d\u3297\u3299{_PICTOGRAPHS}"


# Compiled for the first text that isn't plain: together they take six milliseconds.


@cache
def _compile_invisible() -> re.Pattern[str]:
    """Match an invisible character."""
    return re.compile(
        f"[{INVISIBLE}]"
        # Except characters that belong to a neighbouring glyph:
        r"(?<!\r(?=\n|\Z))"  # a line ending,
        f"(?<![{_PICTOGRAPHS}]\u200d(?=[{_PICTOGRAPHS}]))"  # the joiner of an emoji sequence,
        f"(?<![{_PICTOGRAPHS}]\ufe0f\u200d(?=[{_PICTOGRAPHS}]))"
        f"(?<![{_JOINED}][\u200c\u200d])(?<![\u200c\u200d](?=[{_JOINED}]))"  # a joiner of letters,
        f"(?<![{_EMOJI_OR_TEXT}][\ufe0e\ufe0f])"  # text or emoji presentation,
        "(?<![#*0-9]\ufe0f(?=\u20e3))"  # a keycap,
        "(?<![0\u2200-\u2bff]\ufe00)"  # a variant of a mathematical sign,
        f"(?<![{_IDEOGRAPHS}][\ufe00-\ufe0f\U000e0100-\U000e01ef])"  # of an ideograph,
        "(?<![\u1820-\u18aa][\u180b-\u180f])"  # of a Mongolian letter,
        "(?<![\U00013000-\U0001342f][\U00013430-\U0001343f])"  # a hieroglyph format control.
    )


@cache
def _compile_unseen() -> re.Pattern[str]:
    """Match an invisible character, without exceptions."""
    return re.compile(f"[{INVISIBLE}]")


@cache
def _compile_break_hint() -> re.Pattern[str]:
    """Match line break hints inside a word, or between words without a space."""
    return re.compile(f"(?<=[{_LETTERS}])\u00ad(?=[{_LETTERS}])|(?<=[{_UNSPACED}])\u200b|\u200b(?=[{_UNSPACED}])")


@cache
def _compile_kind() -> re.Pattern[str]:
    """Match an invisible character and name its kind as a group."""
    return re.compile("|".join(f"(?P<{kind}>[{letters}])" for kind, letters in _KINDS.items()))


def clean_text(text: str) -> tuple[str, int]:
    """Remove invisible characters; return the text and their number."""
    if text.isascii() and text.isprintable():
        return text, 0
    cleaned = _compile_invisible().sub("", _ESCAPES.sub("", text)).replace("\r", "")
    return cleaned, len(text) - len(cleaned)


def escape_invisible(text: str) -> tuple[str, int]:
    """Escape invisible characters as `<U+202E>`; return the text and their number."""
    return _compile_invisible().subn(lambda match: f"<U+{ord(match[0]):04X}>", text)


def escape_unseen(text: str) -> str:
    """Escape every character without a glyph and every line end the way Python does, for questions to a user.

    No exceptions, so that no joiner or selector can hide a difference.
    """
    if text.isascii() and text.isprintable():
        return text
    unseen = _compile_unseen()
    return "".join(
        char if char.isprintable() and not unseen.match(char) else char.encode("unicode_escape").decode()
        for char in text
    )


def make_visible(text: str) -> tuple[str, int]:
    """Escape invisible characters as `<U+202E>` and remove line break hints; return the text and their number."""
    if text.isascii() and text.isprintable():
        return text, 0
    plain = _compile_break_hint().sub("", text)
    visible, count = escape_invisible(plain)
    return visible, count + len(text) - len(plain)


def remove_break_hints(text: str) -> str:
    """Remove soft hyphens inside words, and zero width spaces in scripts without spaces."""
    return _compile_break_hint().sub("", text)


def find_invisible_kinds(text: str) -> Iterator[str]:
    """Yield the kind of each invisible character, skipping line break hints.

    The kinds are `escapes`, `bidi`, `tags`, `invisible`, `controls`, `halves` of surrogate pairs and `noncharacters`.
    """
    for match in _compile_kind().finditer("".join(_compile_invisible().findall(_compile_break_hint().sub("", text)))):
        yield match.lastgroup or ""


def format_count(number: int, noun: str, nouns: str | None = None) -> str:
    """Format a number with its noun: `1 file`, `1,200 files`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def cut_text(text: str, limit: int) -> str:
    """Shorten a text to `limit` characters, adding the number of missing ones."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit:,} more characters]"


TextT = TypeVar("TextT", str, bytes)
_CHUNK = 64 * 1024


def matches_parts(text: str, parts: Sequence[str]) -> bool:
    """Return whether a text consists of the parts in order, with any text between them.

    Reads the text once: the pattern and the text may come from two parties who want it to take long.
    """
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return text == first
    start, end = len(first), len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last) or start > end:
        return False
    for part in parts[1:-1]:
        found = text.find(part, start, end)
        if found < 0:
            return False
        start = found + len(part)
    return True


def common_start(one: TextT, other: TextT) -> int:
    """Count the characters that both start with."""
    longest = min(len(one), len(other))
    low, high = 0, min(_CHUNK, longest)
    while low < high and one[low:high] == other[low:high]:
        low, high = high, min(high + _CHUNK, longest)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_end(one: TextT, other: TextT, start: int) -> int:
    """Count the characters that both end with, ignoring the first `start` of each."""
    length, other_length = len(one), len(other)
    longest = min(length, other_length) - start
    low, high = 0, min(_CHUNK, longest)
    while low < high and one[length - high : length - low] == other[other_length - high : other_length - low]:
        low, high = high, min(high + _CHUNK, longest)
    while low < high:
        middle = (low + high + 1) // 2
        if one[length - middle : length - low] == other[other_length - middle : other_length - low]:
            low = middle
        else:
            high = middle - 1
    return low


# -- JSON values ------------------------------------------------------------------------------------


CleanText: TypeAlias = Callable[[str], tuple[str, int]]
"""Returns the cleaned text and the number of changed characters."""


def clean_json(value: JsonValue, clean: CleanText = clean_text) -> tuple[JsonValue, int]:
    """Clean every string in a value, including keys; return it with the number of changed characters.

    Doesn't modify the argument, and returns it if nothing changes.
    """
    if not value:
        return value, 0
    if isinstance(value, str):
        return clean(value)
    count = sum(clean(text)[1] for text in iter_strings(value))
    if not count:
        return value, 0
    # Copy with cleaned strings; without recursion, since the sender controls the depth.
    frame: dict[object, object] = {}
    pending: list[tuple[object, dict[object, object], object]] = [(value, frame, "")]
    copies: dict[int, dict[object, object]] = {}
    while pending:
        source, target, step = pending.pop()
        if _is_container(source):
            if id(source) not in copies:
                copies[id(source)], children = _open(source, clean)
                pending.extend((inner, copies[id(source)], key) for key, inner in children)
            target[step] = copies[id(source)]
        else:
            target[step] = clean(source)[0] if isinstance(source, str) else source
    return cast("JsonValue", frame[""]), count


def clean_names(names: Iterable[str], clean: CleanText = clean_text) -> dict[str, str]:
    """Clean the keys of one object and keep them distinct, in the given order."""
    keys = list(names)
    shown = {name: clean(name)[0] for name in keys}
    uses: dict[str, int] = {}
    for name in shown.values():
        uses[name] = uses.get(name, 0) + 1
    taken = {name for name in keys if shown[name] == name}
    for name in keys:
        if shown[name] == name:
            continue
        if not shown[name] or uses[shown[name]] > 1:
            # A line ending is visible in a text, but not in a key.
            escaped = free = escape_invisible(name.replace("\r", "<U+000D>"))[0]
            number = 2
            while free in taken:
                free, number = f"{escaped} ({number})", number + 1
            shown[name] = free
        taken.add(shown[name])
    return shown


def iter_strings(value: JsonValue) -> Iterator[str]:
    """Yield every string in a value, including keys; visit a shared or cyclic container once."""
    pending: list[object] = [value]
    visited: set[int] = set()
    while pending:
        inner = pending.pop()
        if isinstance(inner, str):
            yield inner
        elif _is_container(inner) and id(inner) not in visited:
            visited.add(id(inner))
            pending.extend(inner)
            if isinstance(inner, dict):
                pending.extend(inner.values())


def _is_container(value: object) -> TypeGuard[dict[object, object] | list[object]]:
    return isinstance(value, (dict, list))


def _open(
    source: dict[object, object] | list[object], clean: CleanText
) -> tuple[dict[object, object], Iterable[tuple[object, object]]]:
    """Create a copy of a container with a slot for each child, in order.

    A list is typed as a dict here: both support assignment to an index.
    """
    if isinstance(source, list):
        return cast("dict[object, object]", [None] * len(source)), enumerate(source)
    # Non-string keys are invalid JSON, which other code rejects.
    names = clean_names([name for name in source if isinstance(name, str)], clean)
    places = {name: names.get(cast("str", name), name) for name in source}
    children = [(places[name], inner) for name, inner in source.items()]
    copy: dict[object, object] = {place: None for place in places.values()}  # noqa: C420 — typed
    return copy, children


def quote_for_shell(text: str) -> str:
    """Quote a word of a command line for a shell, in ASCII, making every character visible."""
    from shlex import quote  # noqa: PLC0415 — for a question

    if text.isascii() and text.isprintable():
        return quote(text)
    escaped = text.encode("unicode_escape").decode().replace("'", "\\'")
    return f"$'{escaped}'"
