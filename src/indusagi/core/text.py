"""Text from strangers, made harmless to look at.

A description, a title or a line of standard error may hold what nobody sees but a terminal or a
model obeys: escape sequences, direction overrides, invisible letters, tag characters. These are
taken out. Letters themselves are never changed or normalised.
"""

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor moves
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # strings for the terminal: titles, clipboards
    r"|\x1b[ -/]*[0-~]",  # everything else that starts with an escape
    re.DOTALL,
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u200b-\u200f\u2060-\u2064\ufeff"  # zero width
    "\u202a-\u202e\u2066-\u2069"  # direction overrides
    "\ufff9-\ufffb"  # interlinear marks
    "\ud800-\udfff"  # halves of surrogate pairs
    "\U000e0000-\U000e007f]"  # tags
)


def clean_text(text: str) -> tuple[str, int]:
    """Take out what cannot be seen, and tell how many characters that were."""
    cleaned = _UNSEEN.sub("", _ESCAPES.sub("", text))
    return cleaned, len(text) - len(cleaned)


def show_unseen(text: str) -> tuple[str, int]:
    """Write out what cannot be seen (`<U+202E>`), and tell how many characters that were."""
    return _UNSEEN.subn(lambda found: f"<U+{ord(found[0]):04X}>", text)


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Say how many of something there are: `1 file`, `1,200 files`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def cut_text(text: str, limit: int) -> str:
    """Shorten a text to `limit` characters, and say how many are missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit:,} more characters]"
