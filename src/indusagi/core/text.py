"""Text from strangers, made harmless to look at.

A description, a title or a line of standard error may hold what nobody sees but a terminal or a
model obeys: escape sequences, direction overrides, invisible letters, tag characters. These are
taken out. Letters themselves are never changed or normalised.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor moves
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # strings for the terminal: titles, clipboards
    r"|\x1b[ -/]*[0-~]",  # everything else that starts with an escape
    re.DOTALL,
)
_KINDS = {
    "escapes": "\x1b\x9b",
    "bidi": "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
    "tags": "\U000e0000-\U000e007f",
    "invisible": "\u00ad\u034f\u115f\u1160\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0080-\U000e0fff",
    "controls": "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029",
    "halves": "\ud800-\udfff",
}
UNSEEN = "".join(_KINDS.values())
"""Every character that cannot be seen, to stand in a class of a pattern."""
_KIND = re.compile("|".join(f"(?P<{kind}>[{letters}])" for kind, letters in _KINDS.items()))
_PICTOGRAPHS = "\u2190-\u2bff\U0001f000-\U0001faff"
_JOINED = (
    "\u0620-\u10ff\u1780-\u180a\u1810-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00011fff\U0001e900-\U0001e95f"
)
"""Scripts in which a joiner changes how letters are written, from Arabic to those of India, of the
islands beyond and of Mongolia. A foreign word gets its ending by one too."""
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Scripts without spaces, in which one without width parts the words: Thai, Lao, Burmese, Khmer."""
_LETTERS = r"^\W\u115f\u1160\u3164\uffa0"
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_SHOWN_TWO_WAYS = f"#*0-9\u00a9\u00ae\u203c\u2049\u2122\u2139\u3030\u303d\u3297\u3299{_PICTOGRAPHS}"
_IS_UNSEEN = re.compile(
    f"[{UNSEEN}]"
    # But what belongs to what stands beside it:
    r"(?<!\r(?=\n|\Z))"  # an end of line,
    f"(?<![{_PICTOGRAPHS}{_JOINED}][\u200c\u200d])(?<![{_PICTOGRAPHS}]\ufe0f\u200d)"  # a joiner,
    f"(?<![\u200c\u200d](?=[{_JOINED}]))"
    f"(?<![{_UNSPACED}]\u200b)(?<!\u200b(?=[{_UNSPACED}]))"  # an end of a word,
    f"(?<![{_SHOWN_TWO_WAYS}][\ufe00\ufe0e\ufe0f])"  # the choice between a sign and a picture,
    f"(?<![{_IDEOGRAPHS}][\ufe00-\ufe0f\U000e0100-\U000e01ef])"  # and of one form of a letter.
    "(?<![\u1820-\u18aa][\u180b-\u180f])"
    f"(?<![{_LETTERS}]\u00ad(?=[{_LETTERS}]))"  # Where a word may be parted.
)


def clean_text(text: str) -> tuple[str, int]:
    """Take out what cannot be seen, and tell how many characters that were."""
    cleaned = _IS_UNSEEN.sub("", _ESCAPES.sub("", text)).replace("\r", "")
    return cleaned, len(text) - len(cleaned)


def show_unseen(text: str) -> tuple[str, int]:
    """Write out what cannot be seen (`<U+202E>`), and tell how many characters that were."""
    return _IS_UNSEEN.subn(lambda found: f"<U+{ord(found[0]):04X}>", text)


def kinds_of_unseen(text: str) -> Iterator[str]:
    """Name the kind of each character that cannot be seen.

    They are `escapes`, `bidi`, `tags`, `invisible`, `controls` and `halves` of surrogate pairs.
    """
    for found in _KIND.finditer("".join(_IS_UNSEEN.findall(text))):
        yield found.lastgroup or ""


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Say how many of something there are: `1 file`, `1,200 files`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def cut_text(text: str, limit: int) -> str:
    """Shorten a text to `limit` characters, and say how many are missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit:,} more characters]"
