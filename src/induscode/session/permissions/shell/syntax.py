"""Words of a shell command: what the text says they are, and what they may come to.

A word counts as known only if the shell can make nothing else of it. For the rest there are
guesses, so that a rule that denies something finds it behind quotes, escapes and variables; a guess
never allows anything.

The tree that the grammar of the shell makes of a text, and ways through it.

Characters that one reader of a command takes for a space, and another does not.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise, product
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tree_sitter import Node, Parser


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


WORDS = frozenset({
    "word", "number", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation", "simple_expansion",
    "expansion", "command_substitution", "process_substitution", "arithmetic_expansion",
})  # fmt: skip
_LEAVES = frozenset({"string", "raw_string", "ansi_c_string", "comment", "expansion"})
_TEXT_REDIRECTS = frozenset({"heredoc_redirect", "herestring_redirect"})
_REDIRECTED = frozenset({"command", "redirected_statement", "function_definition"})
"""The nodes that have redirections as children."""
_GAP = re.compile(rb"(?:[ \t\n]|\\\n)*")
_BRACKETS = re.compile(rb"\[[ \t][^\n]*[ \t]\]")


def parsed(data: bytes) -> Node:
    """Make the tree of a text."""
    return _parser().parse(data).root_node


@cache
def _parser() -> Parser:
    import tree_sitter_bash  # noqa: PLC0415 — only whoever runs commands pays for the grammar
    from tree_sitter import Language, Parser  # noqa: PLC0415 — the same

    return Parser(Language(tree_sitter_bash.language()))


def all_nodes(root: Node) -> Iterator[Node]:
    """Give a node and all below it, in the order of the text."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def bracket_command(node: Node) -> Node | None:
    """Read `[ a ]` again as `test a`; None unless that is one plain command of the same words."""
    text = node.text or b""
    if node.type != "test_command" or node.has_error or not _BRACKETS.fullmatch(text):
        return None
    inner = parsed(b"test" + text[1:-1].rstrip(b" \t"))
    command = inner.named_children[0]
    parts = {child.type for child in command.children} - {"command_name"}
    plain = len(inner.named_children) == 1 and command.type == "command" and not inner.has_error
    return command if plain and parts <= WORDS else None


def is_covered(root: Node, data: bytes) -> bool:
    """Tell whether nothing but white space lies between the parts that were understood."""
    at = 0
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.children and node.type not in _LEAVES and "heredoc" not in node.type:
            waiting.extend(reversed(node.children))
            continue
        if node.start_byte > at and not _GAP.fullmatch(data, at, node.start_byte):
            return False
        at = max(at, node.end_byte)
    return _GAP.fullmatch(data, at) is not None


def is_fed(command: Node) -> bool:
    """Tell whether another command writes into the standard input of this one."""
    node: Node | None = command
    while node is not None:
        parent = node.parent
        if parent is not None and parent.type == "pipeline":
            first = parent.named_child(0)
            if first is None or first.start_byte != node.start_byte:
                return True
        # A list of statements has a child for each of them: it is left out, or many commands
        # would take quadratic time.
        if node.type in _REDIRECTED and any(one.type in _TEXT_REDIRECTS for one in node.children):
            return True
        node = parent
    return False


def redirects_of(command: Node) -> Iterator[Node]:
    """Give the redirections of a command, those before it and those behind."""
    parent = command.parent
    outer = parent.children if parent and parent.type == "redirected_statement" else []
    for child in (*command.children, *outer):
        if child.type == "file_redirect":
            yield child


def redirect_words(node: Node) -> list[Node]:
    """Give the words of a redirection: its target, and what the grammar took along."""
    return [child for child in node.named_children if child.type in WORDS]


def spans_lines(node: Node) -> bool:
    """Tell whether a line ends between the parts of a node, other than with a backslash."""
    text, start = node.text or b"", node.start_byte
    return any(
        b"\n" in text[one.end_byte - start : other.start_byte - start].replace(b"\\\n", b"")
        for one, other in pairwise(node.children)
    )


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
