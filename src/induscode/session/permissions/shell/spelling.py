"""Characters that one reader of a command takes for a space, and another does not."""

from __future__ import annotations

import re
import unicodedata
from itertools import islice, pairwise
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
    spread = expand_braces(text)
    if spread is not None and spread != text:
        yield spread
    if any(map(is_strange, text)):
        yield "".join(" " if is_strange(char) else char for char in text)
        yield "".join("" if is_strange(char) else char for char in text)
        yield "".join("\n" if char in "\r\v\f\x85\u2028\u2029" else char for char in text)


# -- braces -----------------------------------------------------------------------------------

_MOST_WORDS = 256
_PIECE = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|\$\{[^}]*\}|[\s;&|()<>]|.""", re.DOTALL)
_RANGE = re.compile(r"(?:(-?[0-9]+)\.\.(-?[0-9]+)|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?[0-9]+)?")


def expand_braces(text: str) -> str | None:
    """Expand `{a,b}` and `{a..c}` as the shell does before anything else: bash(1), EXPANSION.

    Quoted parts and `${…}` are left as they are. None if a word becomes too many.
    """
    if "{" not in text:
        return text
    words: list[list[str]] = [[]]
    for piece in _PIECE.findall(text):
        if piece in set(" \t\n;&|()<>"):
            words += [[piece], []]
        else:
            words[-1].append(piece)
    spread = [_spread(pieces) for pieces in words]
    if any(len(one) > _MOST_WORDS for one in spread):
        return None
    return "".join(" ".join(one) for one in spread)


def _spread(pieces: list[str]) -> list[str]:
    """Expand the first brace of a word, and then what is left of each result, up to a limit."""
    found = _first_brace(pieces)
    if found is None:
        return ["".join(pieces)]
    start, commas, end = found
    if commas:
        cuts = [start, *commas, end]
        inner = [pieces[a + 1 : b] for a, b in pairwise(cuts)]
    else:
        inner = [[one] for one in _range("".join(pieces[start + 1 : end]))]
    results: list[str] = []
    for one in inner:
        results += _spread([*pieces[:start], *one, *pieces[end + 1 :]])
        if len(results) > _MOST_WORDS:
            break
    return results


def _first_brace(pieces: list[str]) -> tuple[int, list[int], int] | None:
    """Find the first pair of braces that the shell expands, and the commas between."""
    for start, piece in enumerate(pieces):
        if piece != "{":
            continue
        depth, commas = 0, list[int]()
        for at in range(start + 1, len(pieces)):
            if pieces[at] == "{":
                depth += 1
            elif pieces[at] == "," and depth == 0:
                commas.append(at)
            elif pieces[at] == "}" and depth > 0:
                depth -= 1
            elif pieces[at] == "}":
                if commas or _RANGE.fullmatch("".join(pieces[start + 1 : at])):
                    return start, commas, at
                break
    return None


def _range(text: str) -> list[str]:
    found = _RANGE.fullmatch(text)
    assert found is not None, "only ranges come here"
    if found[1] is not None:
        one, two = int(found[1]), int(found[2])
        step = 1 if one <= two else -1
        return [str(n) for n in islice(range(one, two + step, step), _MOST_WORDS + 1)]
    one, two = ord(found[3]), ord(found[4])
    step = 1 if one <= two else -1
    return [chr(n) for n in range(one, two + step, step)]
