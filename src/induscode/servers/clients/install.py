"""Adds this gateway's entry to an MCP client's configuration file, and removes it.

Everything else in the file stays as is, including comments: we edit the text and write it only if the parsed result
differs in just that entry. The file is replaced atomically, with a backup next to it.
"""

from __future__ import annotations

import difflib
import os
import stat
import time
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import cast

from indusagi.core.app_dirs import locked_directory, make_dirs, read_small_file
from indusagi.core.config_file import parse_json
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from induscode.servers.clients import config_places
from induscode.servers.clients.entry import Client, Entry, format_toml_table, is_own_row
from induscode.servers.clients.jsonc import JsoncError, append_item, remove_item, remove_member, set_member
from induscode.servers.config.writer import replace_text

_MAX_BYTES = 16 * 1024 * 1024
_BOM = "\ufeff"


class InstallError(Exception):
    """The file can't be changed."""


@record
class Change:
    """A planned change to a file."""

    path: str
    before: str | None
    """`None`: the file doesn't exist."""
    after: str

    @property
    def is_empty(self) -> bool:
        """Whether the file stays the same."""
        return self.after == (self.before or "")

    def diff(self) -> str:
        """Format the changed lines without context, which may hold secrets."""
        lines = difflib.unified_diff(
            (self.before or "").splitlines(), self.after.splitlines(), self.path, self.path, lineterm="", n=0
        )
        return "\n".join(lines)

    def apply(self) -> str | None:
        """Write the file and return the backup's path, if any.

        Raises:
            InstallError: The file has changed since it was read.
            OSError: It can't be written.
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


def plan_install(client: Client, entry: Entry, path: str) -> Change:
    """Plan to add an entry to a client's file, or to replace an older one of ours.

    Raises:
        InstallError: The file can't be read or edited, or has a different server with this name.
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

    Raises:
        InstallError: The file can't be read or edited, or has a different server with this name.
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
    return Change(path, before, mark + after)


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
