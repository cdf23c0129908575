"""Adds this gateway's entry to an MCP client's configuration file, and removes it.

Everything else in the file stays as is, including comments: we edit the text and write it only if the parsed result
differs in just that entry. The file is replaced atomically, with a backup next to it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import stat
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import cast

from indusagi.core.app_dirs import locked_directory, make_dirs, read_small_file
from indusagi.core.config_file import parse_json
from indusagi.core.faults import CoreError
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import REDACTED
from induscode.servers.clients import CLIENTS, Client, Entry, config_places, format_toml_table, is_own_row
from induscode.servers.config.rows import VALUE_FIELDS
from induscode.servers.config.writer import replace_text

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

    Raises `JsoncError` if the text is invalid, or something along the path isn't an object.
    """
    if not text.strip():
        text = "{}\n"
    node = _parse_spans(text)
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

    Raises `JsoncError` if the text is invalid, or the key's value isn't a list.
    """
    found = _find_member(_parse_spans(text), key) if text.strip() else None
    if found is None:
        return set_member(text, [key], [value])
    if text[found.value.start] != "[":
        raise JsoncError(f"{key} is not a list")
    return _insert_value(text, found.value, "", value)


def remove_member(text: str, path: Sequence[str]) -> str:
    """Remove the member at a path, if any; raises `JsoncError` if the text is invalid."""
    node = _parse_spans(text)
    for key in path[:-1]:
        found = _find_member(node, key)
        if found is None:
            return text
        node = found.value
    child = _find_member(node, path[-1])
    return text if child is None else _remove_child(text, node, child)


def remove_item(text: str, key: str, index: int) -> str:
    """Remove an item from the list under a root key; raises `JsoncError` if the text is invalid."""
    found = _find_member(_parse_spans(text), key)
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


def _parse_spans(text: str) -> _Node:
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


# -- client files -----------------------------------------------------------------------------


_MAX_BYTES = 16 * 1024 * 1024
_BOM = "\ufeff"


class InstallError(CoreError):
    """The file can't be changed."""


@record
class Change:
    """A planned change to a file."""

    path: str
    before: str | None
    """`None`: the file doesn't exist."""
    after: str
    hidden: Sequence[str] = field(default=(), repr=False)
    """Values of variables and headers, which aren't shown."""

    @property
    def is_empty(self) -> bool:
        """Whether the file stays the same."""
        return self.after == (self.before or "")

    def diff(self) -> str:
        """Format the changed lines, without context or values that may be secrets."""
        lines = difflib.unified_diff(
            (self.before or "").splitlines(), self.after.splitlines(), self.path, self.path, lineterm="", n=0
        )
        text = "\n".join(lines)
        for value in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return text

    def apply(self) -> str | None:
        """Write the file and return the backup's path, if any.

        Raises `InstallError` if the file has changed since it was read, and `OSError` if it can't be written.
        """
        make_dirs(os.path.dirname(self.path), 0o700)
        with locked_directory(os.path.dirname(self.path)):
            if _read(self.path) != self.before:
                raise InstallError(f"{self.path} has changed since you looked: try again")
            backup = None
            mode = 0o600
            if self.before is not None:
                mode = stat.S_IMODE(os.stat(self.path).st_mode)
                stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
                backup = f"{self.path}.{stamp}.bak"
                if os.path.lexists(backup):
                    backup = f"{self.path}.{stamp}.{new_ulid()}.bak"
                replace_text(backup, self.before, mode)
            replace_text(self.path, self.after, mode)
            return backup


def find_client_file(client: Client, environ: Mapping[str, str]) -> str:
    """Find a client's user-level file: an existing one, else one whose directory exists."""
    places = config_places(client.program, "", environ)
    files = [os.path.realpath(path) for path, scope in places if scope == "user"]
    existing = [path for path in files if os.path.isfile(path)]
    possible = [path for path in files if os.path.isdir(os.path.dirname(path))]
    return [*existing, *possible, *files][0]


@record
class FoundClient:
    """A client on this machine."""

    name: str
    """The key in `CLIENTS`."""
    client: Client
    path: str
    """Its user-level file, existing or not."""
    entry: str | None
    """The name of our entry in that file, if it has one."""


def find_clients(environ: Mapping[str, str]) -> Sequence[FoundClient]:
    """Find the clients that have a file, a folder of their own or a command on this machine."""
    found: dict[str, FoundClient] = {}
    for name, client in CLIENTS.items():
        path = find_client_file(client, environ)
        folder = os.path.dirname(path)
        has_folder = os.path.isdir(folder) and folder != os.path.realpath(os.path.expanduser("~"))
        is_here = os.path.isfile(path) or has_folder or shutil.which("code" if name == "vscode" else name)
        if is_here and client.program not in found:
            found[client.program] = FoundClient(name, client, path, _find_own_entry(client, path))
    return [*found.values()]


def _find_own_entry(client: Client, path: str) -> str | None:
    with suppress(InstallError):
        rows = _find_servers(client, _parse(client, path, _read(path) or ""))
        return next((name for name, row in rows.items() if is_own_row(row, name=name)), None)
    return None


def plan_install(client: Client, entry: Entry, path: str) -> Change:
    """Plan to add an entry to a client's file, or to replace an older one of ours.

    Raises `InstallError` if the file can't be read or edited, or has a different server with this name.
    """
    before = _read(path)
    document = _parse(client, path, before or "")
    row = client.row(entry)
    url = None if entry.address is None else entry.address.url
    present = _find_servers(client, document).get(entry.name)
    if present == row and _has_inputs(document, client.inputs(entry)):
        return Change(path, before, before or "")
    if present is not None and not is_own_row(present, url, entry.name):
        raise InstallError(f"{path} has another server {entry.name!r}: choose a name with --name")
    expected = deepcopy(document)
    _find_servers(client, expected, make=True)[entry.name] = row
    text = (before or "").removeprefix(_BOM)
    try:
        if client.is_toml:
            after = set_table(text, [*client.keys, entry.name], format_toml_table(client.keys[0], entry.name, row))
        else:
            after = set_member(text, [*client.keys, entry.name], row)
            for question in client.inputs(entry):
                if not _has_inputs(document, [question]):
                    after = append_item(after, "inputs", question)
                    cast("list[JsonValue]", expected.setdefault("inputs", [])).append(question)
    except JsoncError as exc:
        raise InstallError(f"{path}: {exc}: correct it first") from exc
    return _verify_change(client, path, before, after, expected)


def plan_uninstall(client: Client, name: str, path: str, url: str | None = None) -> Change:
    """Plan to remove our entry, if any, from a client's file.

    Raises `InstallError` if the file can't be read or edited, or has a different server with this name.
    """
    before = _read(path)
    document = _parse(client, path, before or "")
    present = _find_servers(client, document).get(name)
    if before is None or present is None:
        return Change(path, before, before or "")
    if not is_own_row(present, url, name):
        raise InstallError(f"{path}: the server {name!r} is not one of ours: remove it by hand")
    expected = deepcopy(document)
    servers = _find_servers(client, expected)
    del servers[name]
    text = before.removeprefix(_BOM)
    if client.is_toml:
        after = remove_table(text, [*client.keys, name])
        if not servers and expected.get(client.keys[0]) == {}:
            del expected[client.keys[0]]  # an implicit table, which only its subtables define
    else:
        after = remove_member(text, [*client.keys, name])
        inputs = expected.get("inputs")
        for index, question in enumerate(inputs if isinstance(inputs, list) else ()):
            if is_json_object(question) and question.get("id") == f"{name}-token":
                del cast("list[JsonValue]", inputs)[index]
                after = remove_item(after, "inputs", index)
                break
    return _verify_change(client, path, before, after, expected)


def _has_inputs(document: JsonObject, wanted: Sequence[JsonObject]) -> bool:
    inputs = document.get("inputs")
    return all(isinstance(inputs, list) and question in inputs for question in wanted)


def _find_servers(client: Client, document: JsonObject, *, make: bool = False) -> JsonObject:
    servers: JsonValue = document
    for key in client.keys:
        if not is_json_object(servers):
            break
        servers = servers.setdefault(key, {}) if make else servers.get(key, {})
    if not is_json_object(servers):
        raise InstallError(f"{'.'.join(client.keys)} is not an object: correct it first")
    return servers


def _verify_change(client: Client, path: str, before: str | None, after: str, expected: JsonObject) -> Change:
    """Accept an edit only if it parses to the expected document."""
    try:
        document = _parse(client, path, after)
    except InstallError:
        document = None
    if document != expected:
        by_hand = f"paste what --print-config {client.program} prints"
        raise InstallError(f"{path} is written in a way that cannot be edited here: {by_hand}")
    mark = _BOM if (before or "").startswith(_BOM) else ""
    rows = _find_servers(client, _parse(client, path, before or "")).values()
    maps = [row.get(key) for row in rows if is_json_object(row) for key in VALUE_FIELDS]
    values = [text for one in maps if is_json_object(one) for text in one.values() if isinstance(text, str) and text]
    # As they're written in JSON, or in TOML.
    return Change(path, before, mark + after, [json.dumps(text, ensure_ascii=False) for text in values])


def _parse(client: Client, path: str, text: str) -> JsonObject:
    text = text.removeprefix(_BOM)
    if client.is_toml:
        try:
            return cast("JsonObject", tomllib.loads(text))
        except ValueError as exc:
            raise InstallError(f"{path}: invalid TOML: {exc}: correct it first") from exc
    if not text.strip():
        return {}
    content = parse_json(text)
    if content.trouble is not None:
        raise InstallError(f"{path}: {content.trouble}: correct it first")
    if not is_json_object(content.document):
        raise InstallError(f"{path} is not an object: correct it first")
    return content.document


def _read(path: str) -> str | None:
    try:
        return read_small_file(path, _MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise InstallError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise InstallError(f"{path} is not UTF-8 at byte {exc.start}: correct it first") from exc


# -- TOML tables ------------------------------------------------------------------------------


def set_table(text: str, path: Sequence[str], table: str) -> str:
    """Replace or append the table at a path, leaving other lines alone. The caller must verify the result."""
    lines, index = _split_off_table(text, path)
    if index is not None:
        return "".join([*lines[:index], f"{table}\n", *lines[index:]])
    before = "".join(lines)
    gap = "" if not before.strip() else "\n" if before.endswith("\n") else "\n\n"
    return f"{before}{gap}{table}\n"


def remove_table(text: str, path: Sequence[str]) -> str:
    """Remove the table at a path with its subtables, and the blank line before it."""
    lines, index = _split_off_table(text, path)
    if index is not None and index > 0 and not lines[index - 1].strip():
        del lines[index - 1]
    return "".join(lines)


def _split_off_table(text: str, path: Sequence[str]) -> tuple[list[str], int | None]:
    """Return the lines without the tables at or below a path, and the first such table's index."""
    lines: list[str] = []
    ours: list[str] | None = None
    index: int | None = None
    for line in text.splitlines(keepends=True):
        header = _parse_header(line)
        if header is not None:
            lines.extend(_list_trailing(ours or ()))
            ours = [] if header[: len(path)] == [*path] else None
            index = len(lines) if ours is not None and index is None else index
        (lines if ours is None else ours).append(line)
    lines.extend(_list_trailing(ours or ()))
    return lines, index


def _list_trailing(lines: Sequence[str]) -> Sequence[str]:
    """Return the blank lines and comments at the end of a table, which belong to the next one."""
    end = len(lines)
    while end and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return lines[end:]


def _parse_header(line: str) -> list[str] | None:
    """Parse the path of a table header, or return `None` for any other line."""
    if not line.lstrip().startswith("["):
        return None
    try:
        document: object = tomllib.loads(line.strip())
    except ValueError:
        return None
    keys: list[str] = []
    while isinstance(document, dict) and document:  # a header has one key at each level
        key, document = next(iter(cast("dict[str, object]", document).items()))
        keys.append(key)
    return keys
