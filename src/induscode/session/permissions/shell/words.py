"""Words of a shell command: what the text says they are, and what they may come to.

A word counts as known only if the shell can make nothing else of it. For the rest there are
guesses, so that a rule that denies something finds it behind quotes, escapes and variables; a guess
never allows anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tree_sitter import Node

Variables: TypeAlias = "Mapping[str, Sequence[str | None]]"
"""The values that a command itself gives to names; None for one that is not known."""
_MOST_GUESSES = 8
_SPLIT = re.compile(r"[*?\[]")
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\(\n|["\\$`])')
_ANSI = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_ANSI_LETTERS = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NUMBERS = frozenset({"$?", "$#", "$$", "${#}", "${?}", "$!"})
_MANY = re.compile(r"\$\{?@|\[@\]")
"""What is many words inside of quotes as well."""
_LAST_CHARACTER = 0x10FFFF
_PLAIN_EXPANSION = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?")
_WITH_DEFAULT = re.compile(r"\$\{!?([A-Za-z_][A-Za-z0-9_]*)(?::?[-=+](.*))?.*\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command."""

    text: str | None
    """What it is; None if only the shell will know."""
    guesses: tuple[str, ...]
    """What it may be, with nothing in the place of what is not known."""
    hole: bool = False
    """Whether a part of it is not known at all."""
    glob: bool = False
    """Whether the shell looks for files of such names first."""
    single: bool = True
    """Whether it is one word in any case; an expansion outside of quotes may be many, or none."""
    prefix: str = ""
    """What it begins with, as far as that is known."""

    @property
    def shown(self) -> str:
        """What to call it."""
        return self.text if self.text is not None else self.guesses[0] or "…"


def known(text: str) -> Word:
    """Make a word that is what it says."""
    return Word(text, (text,), prefix=text)


UNKNOWN = Word(None, ("",), hole=True, single=False)
ALL_VARIABLES = "*"
"""The name under which it is noted that any variable may have another value."""


def word_of(node: Node, variables: Variables) -> Word:
    """Read a word; `variables` are the values that the command itself gives to names."""
    read = _READERS.get(node.type)
    return UNKNOWN if read is None else read(node, variables)


def source(node: Node) -> str:
    """Give the text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


def plain_expansion(node: Node) -> bool:
    """Tell whether an expansion does nothing but put a value in its place."""
    return _PLAIN_EXPANSION.fullmatch(source(node)) is not None


def joined(words: Sequence[Word]) -> Word:
    """Put parts together that stand without a space between them."""
    texts = [word.text for word in words]
    whole = None if None in texts else "".join(text for text in texts if text is not None)
    glob = any(word.glob for word in words)
    single = all(word.single for word in words)
    prefix = ""
    for word in words:
        prefix += word.prefix
        if word.text is None or word.glob:
            break
    if whole is not None:
        return Word(whole, (whole,), glob=glob, single=single, prefix=prefix)
    combined = list(islice(product(*(word.guesses for word in words)), _MOST_GUESSES + 1))
    guesses = tuple("".join(parts) for parts in combined[:_MOST_GUESSES])
    hole = any(word.hole for word in words) or len(combined) > _MOST_GUESSES
    return Word(None, guesses, hole, glob, single, prefix)


def _bare(node: Node, _variables: Variables) -> Word:
    raw = source(node)
    text = _ESCAPED.sub(lambda found: found[1].strip("\n"), raw)
    signs = _SPLIT.search(_ESCAPED.sub("xx", raw))
    prefix = text if signs is None else _ESCAPED.sub(r"\1", raw[: signs.start()])
    return _unless_braced(Word(text, (text,), glob=signs is not None, prefix=prefix), raw)


def _unless_braced(word: Word, raw: str) -> Word:
    """Treat `{a,b}` and `{1..3}` as what only the shell knows."""
    bare = _ESCAPED.sub("", raw)
    if "{" not in bare or not ("," in bare or ".." in bare):
        return word
    spread = re.sub(r"[{},]", " ", word.guesses[0]).strip()
    return Word(None, (*word.guesses, spread), hole=word.hole, glob=word.glob, single=False)


def _raw(node: Node, _variables: Variables) -> Word:
    return known(source(node)[1:-1])


def _quoted(node: Node, variables: Variables) -> Word:
    """Read a string in double quotes, piece by piece."""
    word = joined([known(""), *_pieces(node, variables)])
    return replace(word, single=_MANY.search(source(node)) is None, glob=False)


def _pieces(node: Node, variables: Variables) -> Iterator[Word]:
    start, text = node.start_byte, node.text or b""
    at = 1
    for child in node.named_children:
        if child.type == "string_content":
            continue
        yield _literal(text[at : child.start_byte - start])
        yield word_of(child, variables)
        at = child.end_byte - start
    yield _literal(text[at:-1])


def _literal(data: bytes) -> Word:
    text = data.decode("utf-8", "replace")
    return known(_ESCAPED_IN_QUOTES.sub(lambda found: found[1].strip("\n"), text))


def _ansi(node: Node, _variables: Variables) -> Word:
    # Known in principle; nobody who has nothing to hide writes an argument of a rule like this.
    text = _ANSI.sub(_ansi_character, source(node)[2:-1])
    return Word(None, (text,), prefix=text)


def _ansi_character(found: re.Match[str]) -> str:
    two, four, eight, octal, control, letter = found.groups()
    if letter is not None:
        return _ANSI_LETTERS.get(letter, letter)
    if control is not None:
        return chr(ord(control) & 0x1F)
    number = int(octal, 8) if octal is not None else int(two or four or eight, 16)
    return chr(number) if 0 < number <= _LAST_CHARACTER else ""


def _concatenated(node: Node, variables: Variables) -> Word:
    word = joined([word_of(child, variables) for child in node.children])
    bare = "".join(source(child) for child in node.children if child.type in {"word", "number"})
    return _unless_braced(word, bare)


def _expanded(node: Node, variables: Variables) -> Word:
    raw = source(node)
    if raw in _NUMBERS:
        return Word(None, ("0",), prefix="0")
    found = _WITH_DEFAULT.fullmatch(raw)
    name = found[1] if found else raw.lstrip("$")
    values = variables.get(name, ())
    given = [value for value in values if value is not None]
    if found and found[2]:
        given.append(found[2].strip("\"'"))
    guesses = tuple(dict.fromkeys(given))
    certain = plain_expansion(node) and bool(values) and None not in values
    unchanged = ALL_VARIABLES not in variables and "IFS" not in variables
    hole = not (certain and unchanged) or len(guesses) > _MOST_GUESSES
    return Word(None, guesses[:_MOST_GUESSES] or ("",), hole=hole, single=False)


def _inner(node: Node, variables: Variables) -> Word:
    words = [word_of(child, variables) for child in node.named_children]
    return joined(words) if words else UNKNOWN


_READERS: dict[str, Callable[[Node, Variables], Word]] = {
    "word": _bare,
    "number": _bare,
    "variable_name": _bare,
    "raw_string": _raw,
    "string": _quoted,
    "ansi_c_string": _ansi,
    "translated_string": _inner,
    "concatenation": _concatenated,
    "command_name": _inner,
    "simple_expansion": _expanded,
    "expansion": _expanded,
}
