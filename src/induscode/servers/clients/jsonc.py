"""Edits JSON with comments (https://code.visualstudio.com/docs/languages/json#_json-with-comments) in place.

The text is parsed into spans; an edit replaces, inserts or removes one of them. Everything else, including comments,
order, indentation and line ends, stays byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from indusagi.core.json import JsonValue

_MAX_DEPTH = 200
_SPACE = re.compile(r"\s*")
_PLAIN = re.compile(r"[^\s,\[\]{}\"/]+")
_LINE_END = re.compile(r"[ \t]*\r?\n")
_INDENT = re.compile(r"\n([ \t]+)\S")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class JsoncError(ValueError):
    """The text can't be edited."""


@dataclass(slots=True)
class _Node:
    """The span of a value, and its members or items."""

    start: int
    end: int = 0
    is_object: bool = False
    children: list[_Child] = field(default_factory=list["_Child"])


@dataclass(slots=True)
class _Child:
    """The span of an object member or list item."""

    start: int
    key: str | None
    value: _Node
    comma: int | None = None
    """The position of the comma after it."""


def set_member(text: str, path: Sequence[str], value: JsonValue) -> str:
    """Set the member at a path of keys, creating missing objects.

    Raises:
        JsoncError: The text is invalid, or something along the path isn't an object.
    """
    if not text.strip():
        text = "{}\n"
    node = _parse(text)
    for depth, key in enumerate(path):
        if not node.is_object:
            raise JsoncError(f"{'.'.join(path[:depth]) or 'the file'} is not an object")
        found = _find_member(node, key)
        if found is None:
            for above in reversed(path[depth + 1 :]):
                value = {above: value}
            return _insert_value(text, node, f"{json.dumps(key, ensure_ascii=False)}: ", value)
        node = found.value
    return text[: node.start] + _format_value(text, value, _read_line_indent(text, node.start)) + text[node.end :]


def append_item(text: str, key: str, value: JsonValue) -> str:
    """Append an item to the list under a root key, creating a missing list.

    Raises:
        JsoncError: The text is invalid, or the key's value isn't a list.
    """
    found = _find_member(_parse(text), key) if text.strip() else None
    if found is None:
        return set_member(text, [key], [value])
    if text[found.value.start] != "[":
        raise JsoncError(f"{key} is not a list")
    return _insert_value(text, found.value, "", value)


def remove_member(text: str, path: Sequence[str]) -> str:
    """Remove the member at a path, if any; raises `JsoncError` if the text is invalid."""
    node = _parse(text)
    for key in path[:-1]:
        found = _find_member(node, key)
        if found is None:
            return text
        node = found.value
    child = _find_member(node, path[-1])
    return text if child is None else _remove_child(text, node, child)


def remove_item(text: str, key: str, index: int) -> str:
    """Remove an item from the list under a root key; raises `JsoncError` if the text is invalid."""
    found = _find_member(_parse(text), key)
    if found is None or index >= len(found.value.children):
        return text
    return _remove_child(text, found.value, found.value.children[index])


# -- splicing ---------------------------------------------------------------------------------


def _insert_value(text: str, node: _Node, label: str, value: JsonValue) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    outer = _read_line_indent(text, node.start)
    inner = outer + _find_indent(text)
    if node.children:
        first = node.children[0].start
        before = text[text.rfind("\n", 0, first) + 1 : first]
        inner = before if not before.strip() and first > 0 and "\n" in text[:first] else inner
    shown = f"{newline}{inner}{label}{_format_value(text, value, inner)}"
    at = node.start + 1
    comma: int | None = None
    if node.children:
        last = node.children[-1]
        comma = None if last.comma is not None else last.value.end
        at = last.value.end if last.comma is None else last.comma + 1
    end = _skip_comments(text, at)  # a comment after the last member stays after it
    rest = text[end : node.end - 1]
    tail = rest if "\n" in rest else f"{newline}{outer}"
    head = text[:end] if comma is None else f"{text[:comma]},{text[comma:end]}"
    return f"{head}{shown}{tail}{text[node.end - 1 :]}"


def _remove_child(text: str, node: _Node, child: _Child) -> str:
    at = node.children.index(child)
    start = len(text[: child.start].rstrip())
    end = child.value.end if child.comma is None else child.comma + 1
    if _LINE_END.match(text, end) is None:  # the line continues, or this is the last member
        start = child.start
    result = text[:start] + text[end:]
    before = node.children[at - 1].comma if at else None
    if child.comma is None and before is not None:
        result = result[:before] + result[before + 1 :]
    return result


def _format_value(text: str, value: JsonValue, indent: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = json.dumps(value, indent=_find_indent(text), ensure_ascii=False).split("\n")
    return f"{newline}{indent}".join(lines)


def _find_indent(text: str) -> str:
    found = _INDENT.search(text)
    return found[1] if found else "  "


def _read_line_indent(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    line = text[start:at]
    return line[: len(line) - len(line.lstrip())]


# -- parsing ----------------------------------------------------------------------------------


def _find_member(node: _Node, key: str) -> _Child | None:
    found = [child for child in node.children if child.key == key]
    if len(found) > 1:
        raise JsoncError(f"the key {key!r} is there twice")
    return found[0] if found else None


def _parse(text: str) -> _Node:
    node = _parse_value(text, _skip(text, 0), 0)
    if _skip(text, node.end) != len(text):
        raise JsoncError(f"invalid JSON: {_format_position(text, node.end)}")
    return node


def _parse_value(text: str, at: int, depth: int) -> _Node:
    node = _Node(at)
    opening = text[at : at + 1]
    if depth > _MAX_DEPTH:
        raise JsoncError("invalid JSON: nested too deeply")
    if opening == '"':
        node.end = _find_string_end(text, at)
    elif opening and opening in "{[":
        node.is_object = opening == "{"
        node.end = _parse_children(text, node, depth)
    else:
        found = _PLAIN.match(text, at)
        if found is None:
            raise JsoncError(f"invalid JSON: {_format_position(text, at)}")
        node.end = found.end()
    return node


def _parse_children(text: str, node: _Node, depth: int) -> int:
    closing = "}" if node.is_object else "]"
    at = _skip(text, node.start + 1)
    while text[at : at + 1] != closing:
        start, key = at, None
        if node.is_object:
            end = _find_string_end(text, at)
            key = str(json.loads(text[at:end]))
            at = _skip(text, end)
            if text[at : at + 1] != ":":
                raise JsoncError(f"invalid JSON: {_format_position(text, at)}")
            at = _skip(text, at + 1)
        child = _Child(start, key, _parse_value(text, at, depth + 1))
        node.children.append(child)
        at = _skip(text, child.value.end)
        if text[at : at + 1] == ",":
            child.comma = at
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise JsoncError(f"invalid JSON: {_format_position(text, at)}")
    return at + 1


def _skip(text: str, at: int) -> int:
    """Return the position after whitespace and comments."""
    return _SPACE.match(text, _skip_comments(text, at)).end()  # type: ignore[union-attr] — matches the empty text too


def _skip_comments(text: str, at: int) -> int:
    """Return the end of the last comment after `at`, with only whitespace in between."""
    while True:
        start = _SPACE.match(text, at).end()  # type: ignore[union-attr] — matches the empty text too
        if not text.startswith(("//", "/*"), start):
            return at
        if text.startswith("//", start):
            newline = text.find("\n", start)
            end = len(text) if newline < 0 else newline
            at = end - 1 if text[end - 1 : end] == "\r" else end
        else:
            closing = text.find("*/", start + 2)
            if closing < 0:
                raise JsoncError(f"invalid JSON: {_format_position(text, start)}")
            at = closing + 2


def _find_string_end(text: str, at: int) -> int:
    found = _STRING.match(text, at)
    if found is None:
        raise JsoncError(f"invalid JSON: {_format_position(text, at)}")
    return found.end()


def _format_position(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1} column {at - text.rfind(chr(10), 0, at)}"
