"""Characters that one reader of a command takes for a space, and another does not."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_strange(char: str) -> bool:
    """Tell whether a character cannot be seen, or looks like another kind of space."""
    if char in "\n\t " or "!" <= char <= "~":
        return False
    return unicodedata.category(char)[0] in "CZ"


def respelt(text: str) -> Iterator[str]:
    """Give the text as others may read it who see white space where the shell sees none."""
    if "`" in text:
        # The grammar takes one pair of them for the end of another now and then.
        yield from text.split("`")
    if re.search(r"\\\r?\n", text):
        yield re.sub(r"\\\r?\n", "", text)
    if any(map(is_strange, text)):
        yield "".join(" " if is_strange(char) else char for char in text)
        yield "".join("" if is_strange(char) else char for char in text)
        yield "".join("\n" if char in "\r\v\f\x85\u2028\u2029" else char for char in text)
