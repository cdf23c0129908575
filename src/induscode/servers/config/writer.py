"""Writes our configuration files: merges rows and replaces the file atomically, locking its directory.

We never write other programs' files. Keys, their order and indentation stay. We refuse to write a file that would lose
something (comments, a repeated key, another dialect).
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import locked_directory, make_dirs, read_small_file, replace_file
from indusagi.core.config_file import LARGEST_BYTES, parse_json
from indusagi.core.json import is_json_object
from induscode.core.faults import BridgeFault
from induscode.servers.config import list_config_paths
from induscode.servers.config.dialects import detect_dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.servers.config.rows import Scope

_KEYS = {"indus": "servers", "claude-code": "mcpServers"}
"""The dialects our files may use, and the key of the servers in each."""
_INDENT = re.compile(r"\n([ \t]+)\S")


def own_config_path(scope: Scope, cwd: str) -> str:
    """Return the path of our user or project file: the first that exists, or of a new one."""
    paths = list_own_paths(scope, cwd)
    return next(filter(os.path.lexists, paths), paths[0])


def list_own_paths(scope: Scope, cwd: str) -> Sequence[str]:
    """List where our user or project file may be: the user's is in one of two folders."""
    return [path for path, owner in list_config_paths(cwd)[:3] if owner == scope]


class OwnConfig:
    """The servers of one of our files."""

    def __init__(self, path: str, document: JsonObject) -> None:
        dialect = detect_dialect(path, document) if document else None
        name = "indus" if dialect is None else dialect.name
        if name not in _KEYS:
            raise BridgeFault(f"{path} is written in the dialect of {name}: change it by hand")
        self.path = path
        self.document = document
        self._key = _KEYS[name]
        servers = document.setdefault(self._key, {})
        if not isinstance(servers, (dict, list)):
            raise BridgeFault(f"{path}: its {self._key!r} are neither a list nor an object")
        self._servers = servers

    def rows(self) -> Mapping[str, JsonObject]:
        """Return the rows by server name. The last one with a name wins."""
        if isinstance(self._servers, list):
            named = [(row.get("name"), row) for row in self._servers if is_json_object(row)]
            return {name: row for name, row in named if isinstance(name, str)}
        return {name: row for name, row in self._servers.items() if is_json_object(row)}

    def put(self, name: str, fields: JsonObject) -> None:
        """Add a row, or replace the one with the same name."""
        if isinstance(self._servers, dict):
            self._servers[name] = fields
            return
        named: JsonObject = {"name": name, **fields}
        indexes = [index for index, row in enumerate(self._servers) if _has_name(row, name)]
        if indexes:
            self._servers[indexes[-1]] = named
        else:
            self._servers.append(named)

    def remove(self, name: str) -> bool:
        """Remove a row and tell whether it existed."""
        if isinstance(self._servers, dict):
            return self._servers.pop(name, None) is not None
        kept = [row for row in self._servers if not _has_name(row, name)]
        removed = len(kept) < len(self._servers)
        self._servers[:] = kept
        return removed


def _has_name(row: JsonValue, name: str) -> bool:
    return is_json_object(row) and row.get("name") == name


def read_own_config(path: str) -> OwnConfig:
    """Read one of our files. A missing one has no servers.

    Raises `BridgeFault` if it's unreadable, or can't be written without loss.
    """
    return OwnConfig(path, _document(path)[0])


@contextmanager
def edit_own_config(path: str, *, private: bool) -> Generator[OwnConfig]:
    """Edit one of our files, writing it when the block ends without an error.

    A `private` file has mode 0600 and may be a symbolic link to wherever the user keeps it. A project's file may not be
    a link: the project's author could point it anywhere. Raises `BridgeFault` if it's unreadable, can't be written
    without loss, or another process holds it, and `OSError` if it can't be written.
    """
    if private:
        path = os.path.realpath(path)
    folder = os.path.dirname(path)
    for name in () if private else (folder, path):
        if os.path.islink(name):
            raise BridgeFault(f"{name} is a link: it is not followed, put a file there instead")
    make_dirs(folder, 0o700 if private else 0o777)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_directory(folder))
        except TimeoutError as exc:
            raise BridgeFault(f"{folder}: {exc.strerror}") from None
        document, text = _document(path)
        config = OwnConfig(path, document)
        before = _format(document, text)
        yield config
        after = _format(document, text)
        if after != before:
            mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else None
            replace_text(path, after, 0o600 if private else mode)


def _document(path: str) -> tuple[JsonObject, str]:
    try:
        text = read_small_file(path, LARGEST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return {}, ""
    except OSError as exc:
        raise BridgeFault(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise BridgeFault(f"{path} is not UTF-8 at byte {exc.start}: correct it first") from exc
    if not text.strip():
        return {}, text
    parsed = parse_json(text)
    if parsed.trouble is not None:
        raise BridgeFault(f"{path}: {parsed.trouble}: correct it first")
    if parsed.repeated:
        raise BridgeFault(f"{path}: the key {parsed.repeated[0]!r} occurs twice: remove one")
    try:
        json.loads(text)
    except ValueError:
        raise BridgeFault(f"{path} has comments or trailing commas, which would be lost: change it by hand") from None
    if not is_json_object(parsed.document):
        raise BridgeFault(f"{path} is not a JSON object: correct it first")
    return parsed.document, text


def _format(document: JsonObject, before: str) -> str:
    """Format a document with its previous indentation."""
    match = _INDENT.search(before)
    indent = match[1] if match else "  "
    try:
        text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as exc:
        raise BridgeFault(f"the file holds what cannot be written again: {exc}") from exc
    return f"{text}\n"


def replace_text(path: str, text: str, mode: int | None) -> None:
    """Atomically write a text file with a mode (`None`: the umask's default)."""
    # UTF-8 can't encode a lone surrogate, but JSON allows it as an escape (RFC 8259 §8.2).
    replace_file(path, text.encode("utf-8", "backslashreplace"), mode=mode)


def change_row(path: str, name: str, change: Callable[[JsonObject], JsonObject], *, private: bool) -> bool:
    """Change one row of a file and tell whether it existed. Raises like `edit_own_config`."""
    with edit_own_config(path, private=private) as config:
        row = config.rows().get(name)
        if row is None:
            return False
        config.put(name, change(dict(row)))
    return True
