"""The tree that the grammar of the shell makes of a text, and ways through it."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from induscode.session.permissions.shell.launchers import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node, Parser

WORDS = names(
    "word number string raw_string ansi_c_string translated_string concatenation simple_expansion"
    " expansion command_substitution process_substitution arithmetic_expansion"
)
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
