"""Shell syntax: the tree-sitter-bash tree, words and their possible values, brace expansion.

A word has a known text only if the shell can't turn it into anything else. Otherwise it has guesses, so that deny rules
see through quotes, escapes and variables. A guess never allows anything. Order of expansions:
https://www.gnu.org/software/bash/manual/html_node/Shell-Expansions.html.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise, product
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.records import record

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# -- words --------------------------------------------------------------------------------------

Variables: TypeAlias = "Mapping[str, Sequence[str | None]]"
"""Values that the command itself assigns to variables, with `None` for unknown values."""
ALL_VARIABLES = "*"
"""Key that means any variable may have another value."""
_MAX_GUESSES = 8
_GLOB = re.compile(r"[*?\[]")
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\(\n|["\\$`])')
_ANSI = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_ANSI_LETTERS = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NUMBERS = frozenset({"$?", "$#", "$$", "${#}", "${?}", "$!"})
_MANY_WORDS = re.compile(r"\$\{?@|\[@\]")
"""Expansions that are many words even inside double quotes."""
_LAST_CHARACTER = 0x10FFFF
_PLAIN_EXPANSION = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?")
_WITH_DEFAULT = re.compile(r"\$\{!?([A-Za-z_][A-Za-z0-9_]*)(?::?[-=+](.*))?.*\}", re.DOTALL)


@record
class Word:
    """A word of a command."""

    text: str | None
    """`None` if only the shell can resolve it."""
    guesses: tuple[str, ...]
    """Possible texts, in which unknown parts are empty."""
    hole: bool = False
    """Whether part of it is unknown."""
    glob: bool = False
    """Whether the shell replaces it with matching file names."""
    single: bool = True
    """Whether it's always exactly one word. An unquoted expansion may yield many words, or none."""
    prefix: str = ""
    """Its known start."""

    @property
    def shown(self) -> str:
        """The word for messages."""
        return self.text if self.text is not None else self.guesses[0] or "…"


UNKNOWN = Word(None, ("",), hole=True, single=False)


def literal_word(text: str) -> Word:
    """Build a word with a known text."""
    return Word(text, (text,), prefix=text)


def read_word(node: Node, variables: Variables) -> Word:
    """Read a word of the tree."""
    read = _READERS.get(node.type)
    return UNKNOWN if read is None else read(node, variables)


def get_source(node: Node) -> str:
    """Return the text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


def is_plain_expansion(node: Node) -> bool:
    """Return whether an expansion is just the value of a variable (`$x`, `${x}`)."""
    return _PLAIN_EXPANSION.fullmatch(get_source(node)) is not None


def join_words(words: Sequence[Word]) -> Word:
    """Join the parts of a word."""
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
    combinations = list(islice(product(*(word.guesses for word in words)), _MAX_GUESSES + 1))
    guesses = tuple("".join(parts) for parts in combinations[:_MAX_GUESSES])
    hole = any(word.hole for word in words) or len(combinations) > _MAX_GUESSES
    return Word(None, guesses, hole, glob, single, prefix)


def _read_bare(node: Node, _variables: Variables) -> Word:
    raw = get_source(node)
    text = _ESCAPED.sub(lambda match: match[1].strip("\n"), raw)
    glob = _GLOB.search(_ESCAPED.sub("xx", raw))
    prefix = text if glob is None else _ESCAPED.sub(r"\1", raw[: glob.start()])
    return _mark_braces(Word(text, (text,), glob=glob is not None, prefix=prefix), raw)


def _mark_braces(word: Word, raw: str) -> Word:
    """Treat a word with `{a,b}` or `{1..3}` as unknown."""
    bare = _ESCAPED.sub("", raw)
    if "{" not in bare or not ("," in bare or ".." in bare):
        return word
    spread = re.sub(r"[{},]", " ", word.guesses[0]).strip()
    return Word(None, (*word.guesses, spread), hole=word.hole, glob=word.glob, single=False)


def _read_double_quoted(node: Node, variables: Variables) -> Word:
    start, data = node.start_byte, node.text or b""
    pieces = [literal_word("")]
    position = 1
    for child in node.named_children:
        if child.type == "string_content":
            continue
        pieces += [_read_literal(data[position : child.start_byte - start]), read_word(child, variables)]
        position = child.end_byte - start
    pieces.append(_read_literal(data[position:-1]))
    is_single = _MANY_WORDS.search(get_source(node)) is None
    return replace(join_words(pieces), single=is_single, glob=False)


def _read_literal(data: bytes) -> Word:
    text = data.decode("utf-8", "replace")
    return literal_word(_ESCAPED_IN_QUOTES.sub(lambda match: match[1].strip("\n"), text))


def _read_ansi_quoted(node: Node, _variables: Variables) -> Word:
    """Read `$'…'`: https://www.gnu.org/software/bash/manual/html_node/ANSI_002dC-Quoting.html.

    The text could be known, but counts as unknown: an honest command doesn't need these escapes.
    """
    text = _ANSI.sub(_decode_ansi_escape, get_source(node)[2:-1])
    return Word(None, (text,), prefix=text)


def _decode_ansi_escape(match: re.Match[str]) -> str:
    two, four, eight, octal, control, letter = match.groups()
    if letter is not None:
        return _ANSI_LETTERS.get(letter, letter)
    if control is not None:
        return chr(ord(control) & 0x1F)
    number = int(octal, 8) if octal is not None else int(two or four or eight, 16)
    return chr(number) if 0 < number <= _LAST_CHARACTER else ""


def _read_concatenation(node: Node, variables: Variables) -> Word:
    word = join_words([read_word(child, variables) for child in node.children])
    bare = "".join(get_source(child) for child in node.children if child.type in {"word", "number"})
    return _mark_braces(word, bare)


def _read_expansion(node: Node, variables: Variables) -> Word:
    raw = get_source(node)
    if raw in _NUMBERS:
        return Word(None, ("0",), prefix="0")
    match = _WITH_DEFAULT.fullmatch(raw)
    name = match[1] if match else raw.lstrip("$")
    values = variables.get(name, ())
    texts = [value for value in values if value is not None]
    if match and match[2]:
        texts.append(match[2].strip("\"'"))
    guesses = tuple(dict.fromkeys(texts))
    is_certain = is_plain_expansion(node) and bool(values) and None not in values
    is_unchanged = ALL_VARIABLES not in variables and "IFS" not in variables
    hole = not (is_certain and is_unchanged) or len(guesses) > _MAX_GUESSES
    return Word(None, guesses[:_MAX_GUESSES] or ("",), hole=hole, single=False)


def _read_children(node: Node, variables: Variables) -> Word:
    words = [read_word(child, variables) for child in node.named_children]
    return join_words(words) if words else UNKNOWN


_READERS: dict[str, Callable[[Node, Variables], Word]] = {
    "word": _read_bare,
    "number": _read_bare,
    "variable_name": _read_bare,
    "raw_string": lambda node, _variables: literal_word(get_source(node)[1:-1]),
    "string": _read_double_quoted,
    "ansi_c_string": _read_ansi_quoted,
    "translated_string": _read_children,
    "concatenation": _read_concatenation,
    "command_name": _read_children,
    "simple_expansion": _read_expansion,
    "expansion": _read_expansion,
}

# -- the tree -----------------------------------------------------------------------------------

WORDS = frozenset({
    "word", "number", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation", "simple_expansion",
    "expansion", "command_substitution", "process_substitution", "arithmetic_expansion",
})  # fmt: skip
"""Node types that are words."""
_LEAVES = frozenset({"string", "raw_string", "ansi_c_string", "comment", "expansion"})
_TEXT_REDIRECTS = frozenset({"heredoc_redirect", "herestring_redirect"})
_REDIRECTED = frozenset({"command", "redirected_statement", "function_definition"})
"""Node types with redirections as children."""
_GAP = re.compile(rb"(?:[ \t\n]|\\\n)*")
_BRACKETS = re.compile(rb"\[[ \t][^\n]*[ \t]\]")


def parse_tree(data: bytes) -> Node:
    """Parse a text."""
    return _load_parser().parse(data).root_node


@cache
def _load_parser() -> Parser:
    import tree_sitter_bash  # noqa: PLC0415 — the grammar is loaded for commands only
    from tree_sitter import Language, Parser  # noqa: PLC0415 — the grammar is loaded for commands only

    return Parser(Language(tree_sitter_bash.language()))


def iter_nodes(root: Node) -> Iterator[Node]:
    """Yield a node and all its descendants in text order."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def parse_bracket_command(node: Node) -> Node | None:
    """Reparse `[ a ]` as `test a`. Return `None` unless that's one plain command with the same words."""
    text = node.text or b""
    if node.type != "test_command" or node.has_error or not _BRACKETS.fullmatch(text):
        return None
    inner = parse_tree(b"test" + text[1:-1].rstrip(b" \t"))
    command = inner.named_children[0]
    parts = {child.type for child in command.children} - {"command_name"}
    is_plain = len(inner.named_children) == 1 and command.type == "command" and not inner.has_error
    return command if is_plain and parts <= WORDS else None


def is_covered(root: Node, data: bytes) -> bool:
    """Return whether the leaves of the tree have only white space between them."""
    position = 0
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.children and node.type not in _LEAVES and "heredoc" not in node.type:
            waiting.extend(reversed(node.children))
            continue
        if node.start_byte > position and not _GAP.fullmatch(data, position, node.start_byte):
            return False
        position = max(position, node.end_byte)
    return _GAP.fullmatch(data, position) is not None


def is_fed(command: Node) -> bool:
    """Return whether a pipe, here-document or here-string writes to the standard input of a command."""
    node: Node | None = command
    while node is not None:
        parent = node.parent
        if parent is not None and parent.type == "pipeline":
            first = parent.named_child(0)
            if first is None or first.start_byte != node.start_byte:
                return True
        # Skip the children of statement lists, which would take quadratic time with many commands.
        if node.type in _REDIRECTED and any(child.type in _TEXT_REDIRECTS for child in node.children):
            return True
        node = parent
    return False


def find_redirects(command: Node) -> Iterator[Node]:
    """Yield the redirections before and after a command."""
    parent = command.parent
    outer = parent.children if parent and parent.type == "redirected_statement" else []
    for child in (*command.children, *outer):
        if child.type == "file_redirect":
            yield child


def get_redirect_words(node: Node) -> list[Node]:
    """Return the target of a redirection, and the words after it that the grammar attaches to it."""
    return [child for child in node.named_children if child.type in WORDS]


def spans_lines(node: Node) -> bool:
    """Return whether a node has a line break without a backslash between its parts."""
    text, start = node.text or b"", node.start_byte
    return any(
        b"\n" in text[first.end_byte - start : second.start_byte - start].replace(b"\\\n", b"")
        for first, second in pairwise(node.children)
    )


# -- characters and braces ----------------------------------------------------------------------

_MAX_EXPANDED_WORDS = 256
_PIECE = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|\$\{[^}]*\}|[\s;&|()<>]|.""", re.DOTALL)
_RANGE = re.compile(r"(?:(-?[0-9]+)\.\.(-?[0-9]+)|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?[0-9]+)?")


def is_strange(char: str) -> bool:
    """Return whether a character is invisible, or looks like another kind of space."""
    if char in "\n\t " or "!" <= char <= "~":
        return False
    return unicodedata.category(char)[0] in "CZ"


def iter_readings(text: str) -> Iterator[str]:
    """Yield other readings of a text: without line continuations, with braces expanded, with other white space."""
    if "`" in text:
        # The grammar sometimes pairs up the wrong backticks.
        yield from text.split("`")
    if re.search(r"\\\r?\n", text):
        yield re.sub(r"\\\r?\n", "", text)
    expanded = expand_braces(text)
    if expanded is not None and expanded != text:
        yield expanded
    if any(map(is_strange, text)):
        yield "".join(" " if is_strange(char) else char for char in text)
        yield "".join("" if is_strange(char) else char for char in text)
        yield "".join("\n" if char in "\r\v\f\x85\u2028\u2029" else char for char in text)


def expand_braces(text: str) -> str | None:
    """Expand `{a,b}` and `{a..c}`, but not in quotes or `${…}`. Return `None` if a word expands to too many.

    https://www.gnu.org/software/bash/manual/html_node/Brace-Expansion.html.
    """
    if "{" not in text:
        return text
    words: list[list[str]] = [[]]
    for piece in _PIECE.findall(text):
        if piece in set(" \t\n;&|()<>"):
            words += [[piece], []]
        else:
            words[-1].append(piece)
    expanded = [_expand_word(pieces) for pieces in words]
    if any(len(results) > _MAX_EXPANDED_WORDS for results in expanded):
        return None
    return "".join(" ".join(results) for results in expanded)


def _expand_word(pieces: list[str]) -> list[str]:
    """Expand the first brace of a word, then the rest of each result, up to a limit."""
    brace = _find_brace(pieces)
    if brace is None:
        return ["".join(pieces)]
    start, commas, end = brace
    if commas:
        alternatives = [pieces[left + 1 : right] for left, right in pairwise([start, *commas, end])]
    else:
        match = _RANGE.fullmatch("".join(pieces[start + 1 : end]))
        assert match is not None, "braces without a comma are a range"
        is_numeric = match[1] is not None
        first, last = (int(match[1]), int(match[2])) if is_numeric else (ord(match[3]), ord(match[4]))
        step = 1 if first <= last else -1
        numbers = islice(range(first, last + step, step), _MAX_EXPANDED_WORDS + 1)
        alternatives = [[str(number) if is_numeric else chr(number)] for number in numbers]
    results: list[str] = []
    for alternative in alternatives:
        results += _expand_word([*pieces[:start], *alternative, *pieces[end + 1 :]])
        if len(results) > _MAX_EXPANDED_WORDS:
            break
    return results


def _find_brace(pieces: list[str]) -> tuple[int, list[int], int] | None:
    """Find the first pair of braces that the shell expands, and the commas between them."""
    for start, piece in enumerate(pieces):
        if piece != "{":
            continue
        depth, commas = 0, list[int]()
        for index in range(start + 1, len(pieces)):
            if pieces[index] == "{":
                depth += 1
            elif pieces[index] == "," and depth == 0:
                commas.append(index)
            elif pieces[index] == "}" and depth > 0:
                depth -= 1
            elif pieces[index] == "}":
                if commas or _RANGE.fullmatch("".join(pieces[start + 1 : index])):
                    return start, commas, index
                break
    return None
