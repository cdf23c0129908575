"""Writes the entry of this gateway into the configuration of an MCP client, and takes it out.

Everything else in the file stays as it is, comments included: an edit is made in the text, and is
only written if the result means the same as before in all but that entry. The file is replaced in
one step, and what was there before is kept beside it.
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

from indusagi.core.app_dirs import make_dirs, read_small_file
from indusagi.core.config_file import parse_json
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from induscode.clients.entry import Client, Entry, is_own_row, toml_table
from induscode.clients.jsonc import JsoncError, append_item, remove_item, remove_member, set_member
from induscode.clients.places import config_places
from induscode.clients.toml import remove_table, set_table

_LARGEST_BYTES = 16 * 1024 * 1024
_BOM = "\ufeff"


class InstallError(Exception):
    """A file that is not changed, and why."""


@record
class Change:
    """What becomes of a file; nothing is written yet."""

    path: str
    before: str | None
    """None: there is no such file."""
    after: str

    @property
    def is_empty(self) -> bool:
        """Whether the file stays as it is."""
        return self.after == (self.before or "")

    def diff(self) -> str:
        """Show the lines that change, and no others: what stands beside them may be secret."""
        lines = difflib.unified_diff(
            (self.before or "").splitlines(), self.after.splitlines(), self.path, self.path, lineterm="", n=0
        )
        return "\n".join(lines)

    def apply(self) -> str | None:
        """Write the file, and give the path of the copy of what was there before.

        Raises:
            InstallError: The file was changed meanwhile.
            OSError: It cannot be written.
        """
        if _read(self.path) != self.before:
            raise InstallError(f"{self.path} was changed meanwhile: try again")
        backup = None
        mode = 0o600
        if self.before is not None:
            mode = stat.S_IMODE(os.stat(self.path).st_mode)
            backup = _backup_path(self.path)
            _write(backup, self.before, mode)
        else:
            make_dirs(os.path.dirname(self.path), 0o700)
        _write(self.path, self.after, mode)
        return backup


def client_file(client: Client, environ: Mapping[str, str]) -> str:
    """Name the user's file of a client: one that is there, else where its folder is."""
    places = config_places(client.program, "", environ)
    files = [os.path.realpath(path) for path, scope in places if scope == "user"]
    there = [path for path in files if os.path.isfile(path)]
    near = [path for path in files if os.path.isdir(os.path.dirname(path))]
    return [*there, *near, *files][0]


def plan_install(client: Client, entry: Entry, path: str) -> Change:
    """Plan to put an entry into a client's file, in the place of an older one of ours.

    Raises:
        InstallError: The file cannot be read or edited, or has another server of this name.
    """
    before = _read(path)
    document = _parse(client, path, before or "")
    row = client.row(entry)
    url = None if entry.address is None else entry.address.url
    present = _servers(client, document).get(entry.name)
    if present == row and _has_inputs(document, client.inputs(entry)):
        return Change(path, before, before or "")
    if present is not None and not is_own_row(present, url, entry.name):
        said = f"{path} has another server {entry.name!r}: choose a name with --name"
        raise InstallError(said)
    expected = deepcopy(document)
    _servers(client, expected, make=True)[entry.name] = row
    text = (before or "").removeprefix(_BOM)
    try:
        if client.is_toml:
            after = set_table(text, [*client.keys, entry.name], toml_table(client.keys[0], entry.name, row))
        else:
            after = set_member(text, [*client.keys, entry.name], row)
            for asked in client.inputs(entry):
                if not _has_inputs(document, [asked]):
                    after = append_item(after, "inputs", asked)
                    cast("list[JsonValue]", expected.setdefault("inputs", [])).append(asked)
    except JsoncError as exc:
        raise InstallError(f"{path}: {exc}: correct it first") from exc
    return _checked(client, path, before, after, expected)


def plan_uninstall(client: Client, name: str, path: str, url: str | None = None) -> Change:
    """Plan to take an entry of ours out of a client's file; without one nothing changes.

    Raises:
        InstallError: The file cannot be read or edited, or its server of this name is another.
    """
    before = _read(path)
    document = _parse(client, path, before or "")
    present = _servers(client, document).get(name)
    if before is None or present is None:
        return Change(path, before, before or "")
    if not is_own_row(present, url, name):
        raise InstallError(f"{path}: the server {name!r} is not one of ours: remove it by hand")
    expected = deepcopy(document)
    servers = _servers(client, expected)
    del servers[name]
    text = before.removeprefix(_BOM)
    if client.is_toml:
        after = remove_table(text, [*client.keys, name])
        if not servers:
            _drop_empty(expected, client.keys)
    else:
        after = remove_member(text, [*client.keys, name])
        after = _without_input(after, expected, f"{name}-token")
    return _checked(client, path, before, after, expected)


def _without_input(text: str, expected: JsonObject, asked: str) -> str:
    inputs = expected.get("inputs")
    for at, one in enumerate(inputs if isinstance(inputs, list) else ()):
        if is_json_object(one) and one.get("id") == asked:
            del cast("list[JsonValue]", inputs)[at]
            return remove_item(text, "inputs", at)
    return text


def _drop_empty(document: JsonObject, keys: Sequence[str]) -> None:
    """Take out a table that stands in the text only through the tables below it."""
    if document.get(keys[0]) == {}:
        del document[keys[0]]


def _has_inputs(document: JsonObject, wanted: Sequence[JsonObject]) -> bool:
    inputs = document.get("inputs")
    return all(isinstance(inputs, list) and one in inputs for one in wanted)


def _servers(client: Client, document: JsonObject, *, make: bool = False) -> JsonObject:
    found: JsonValue = document
    for key in client.keys:
        if not is_json_object(found):
            break
        found = found.setdefault(key, {}) if make else found.get(key, {})
    if not is_json_object(found):
        raise InstallError(f"{'.'.join(client.keys)} is not an object: correct it first")
    return found


def _checked(client: Client, path: str, before: str | None, after: str, expected: JsonObject) -> Change:
    """Accept an edit only if the text now means what it should."""
    try:
        found = _parse(client, path, after)
    except InstallError:
        found = None
    if found != expected:
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
    found = parse_json(text)
    if found.trouble is not None:
        raise InstallError(f"{path}: {found.trouble}: correct it first")
    if not is_json_object(found.document):
        raise InstallError(f"{path} is not an object: correct it first")
    return found.document


def _read(path: str) -> str | None:
    try:
        return read_small_file(path, _LARGEST_BYTES).decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise InstallError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise InstallError(f"{path} is not UTF-8 at byte {exc.start}: correct it first") from exc


def _backup_path(path: str) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    found = f"{path}.{stamp}.bak"
    return found if not os.path.lexists(found) else f"{path}.{stamp}.{new_ulid()}.bak"


def _write(path: str, text: str, mode: int) -> None:
    temporary = f"{path}.{new_ulid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        handle = os.open(temporary, flags, 0o600)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(text.encode())
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
